"""Hydra's sweeper of train.py. It hands a sweep to ninefold.study."""

from __future__ import annotations

from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser


class StudySweeper(BasicSweeper):
    """Hydra's own sweeper, but for the order of the jobs, which are run in rounds.

    Hydra imports this file in every command, so it imports nothing of ours before there is a sweep.
    """

    def __init__(self, params: dict[str, str] | None = None) -> None:
        super().__init__(max_batch_size=None, params=params)

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self.command = task_function.command  # see ninefold.main

    def sweep(self, arguments: list[str]) -> Any:
        from ninefold.study import sweep as sweeper

        assert self.hydra_context is not None
        assert self.config is not None
        assert self.launcher is not None
        loader = self.hydra_context.config_loader
        parser = OverridesParser.create(config_loader=loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        (jobs,) = self.split_arguments(overrides, None)
        return sweeper.run(self.config, loader, self.launcher, jobs, self.command)
