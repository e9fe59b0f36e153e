"""Hydra's sweeper of train.py: hands a sweep to ninefold.study."""

from __future__ import annotations

from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser


class StudySweeper(BasicSweeper):
    """Makes jobs of a command as Hydra's basic sweeper does, and runs them in rounds.

    Every command imports this file, so modules of ninefold are imported only for a sweep.
    """

    def __init__(self, params: dict[str, str] | None = None) -> None:
        super().__init__(max_batch_size=None, params=params)
        self._task: Any = None

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self._task = task_function

    def sweep(self, arguments: list[str]) -> None:
        from ninefold.study import sweep

        assert self.hydra_context is not None
        assert self.config is not None
        assert self.launcher is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        (jobs,) = self.split_arguments(overrides, None)
        sweep.run(
            self.config,
            self.hydra_context,
            self._task,
            self.launcher,
            jobs,
            self._task.command,  # see ninefold.main
        )
