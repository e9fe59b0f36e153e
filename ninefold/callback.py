"""Hydra callback that checks a command before Hydra creates its folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from ninefold.config import letters, rules
from ninefold.config.job import GROUPS, ROOT, UNSAID, Job, job_of, not_a_name
from ninefold.errors import ConfigError, Failure
from ninefold.launch import Refused, concurrent
from ninefold.launch.run import check, failure_of
from ninefold.ranks import started_by
from ninefold.study import dry, find, plan, start, sweep, values

CONF = ROOT / "conf" / "train.yaml"


class Check(Callback):
    """Refuses commands that have problems, before anything is written."""

    def __init__(self) -> None:
        self._job: Job | None = None

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check a single run. Raises Refused."""
        try:
            problems = plan.not_honored(config, CONF) or find.problems(config)
            problems = problems or dry.problems(config)
            problems = problems or letters.references("hydra.run.dir", config.hydra.run.dir)
            if not problems:
                job = job_of(config, config.hydra)
                problems = check(job, Path(config.hydra.run.dir))
        except Exception as error:  # Hydra would continue, with a warning
            problems = [failure_of(error, as_written(config))]
        if problems:
            raise Refused(problems)
        self._job = job
        if job.resume is not None:  # it runs in the folder of the resumed run
            with read_write(config), open_dict(config):
                config.resume = job.resume
            with read_write(config.hydra), open_dict(config.hydra):
                config.hydra.run.dir = job.resume

    def on_job_start(self, config: DictConfig, *, task_function: Any, **kwargs: Any) -> None:
        """Hand the checked job to the command that runs it."""
        if self._job is not None:
            task_function.command.job = self._job

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check a sweep. Raises Refused."""
        try:
            problems = self._problems_of_a_sweep(config)
        except Exception as error:  # Hydra would continue, with a warning
            problems = [failure_of(error, as_written(config))]
        if problems:
            raise Refused(problems)
        sweep.for_accuracy(config.hydra)
        choices = config.hydra.runtime.choices
        concurrently = choices["hydra/launcher"] != "basic"
        own = choices["hydra/sweeper"] == plan.SWEEPER
        if concurrently or not own:
            folder = None if own else Path(os.path.abspath(config.hydra.sweep.dir))
            elsewhere = str(choices["hydra/launcher"]).startswith("submitit")
            shared = Path(os.path.abspath(config.hydra.sweep.dir)) if elsewhere else None
            concurrent.announce(
                folder, choices.get("experiments"), config.launch.grace, concurrently, shared
            )

    def _problems_of_a_sweep(self, config: DictConfig) -> list[Failure]:
        sweeper = config.hydra.runtime.choices["hydra/sweeper"]
        loader = GlobalHydra.instance().config_loader()
        parser = OverridesParser.create(config_loader=loader)
        texts = list(config.hydra.overrides.task)
        params = config.hydra.sweeper.get("params") if sweeper in values.LISTS else None
        own = parser.parse_overrides([f"{key}={value}" for key, value in (params or {}).items()])
        problems = values.problems([*own, *parser.parse_overrides(texts)], sweeper)
        problems = problems or odd_options(texts, parser)
        problems = problems or plan.not_honored(config, CONF)
        problems = problems or find.problems(config) or dry.problems(config)
        problems = problems or letters.references("hydra.sweep.dir", config.hydra.sweep.dir)
        if not problems and sweeper != plan.SWEEPER:
            problems = start.occupied(Path(config.hydra.sweep.dir), "choose another")
        problems = problems or rules.breach(
            "launch.grace", OmegaConf.select(config, "launch.grace")
        )
        if (launcher := started_by()) and not problems:
            problems = [
                ConfigError(
                    "hydra.mode",
                    "MULTIRUN",
                    f"a sweep starts processes of its own; {launcher} starts one run; leave "
                    f"{launcher} out: python train.py -m ...",
                )
            ]
        return problems


def as_written(config: DictConfig) -> list[str]:
    """The overrides of the command, unresolved: `key=${other}` reads like a reference."""
    given = OmegaConf.to_container(config.hydra.overrides, resolve=False)
    assert isinstance(given, dict)
    return [*given["task"], *given["hydra"]]


def odd_options(overrides: Sequence[str], parser: OverridesParser | None = None) -> list[Failure]:
    """Options in a sweep's overrides that are not names (see Job.problems), and swept keys that
    must not be swept.

    They are checked before Hydra creates the sweep's folders, whose names contain the options.
    parser: one that knows the options of groups, where an override may glob them.
    """
    found: list[Failure] = []
    for override in (parser or OverridesParser.create()).parse_overrides(list(overrides)):
        group = override.key_or_group
        if group in UNSAID and override.is_sweep_override():
            found.append(plan.in_one_cell(group, str(override.input_line).partition("=")[2]))
        if group not in (*GROUPS, "experiments"):
            continue
        swept = override.is_sweep_override()
        options = list(override.sweep_string_iterator()) if swept else [override.value()]
        found += [
            not_a_name(group, option)
            for option in options
            if isinstance(option, str) and not rules.NAME.fullmatch(option)
        ]
    return found
