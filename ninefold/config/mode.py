"""A command makes a run or a sweep: what it asks for that does not go with its mode."""

from __future__ import annotations

from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ninefold.config import combinations
from ninefold.config.composition import Composition
from ninefold.config.schema import SWEEP
from ninefold.errors import ConfigError, Failure
from ninefold.ranks import started_by
from ninefold.types import spelled

SWEEPER = "study"  # the option of hydra/sweeper that runs in rounds


def mode_problems(composition: Composition) -> list[Failure]:
    """What is wrong with a command before its job is looked at."""
    hydra = composition.config.hydra
    field, folder = "run.dir", hydra.run.dir
    if composition.sweeps:
        field, folder = "sweep.dir", hydra.sweep.dir
    return (
        not_honored(composition.config)
        or combinations.problems(_asked(composition), combinations.REFUSED_COMMANDS)
        or _unnamed(f"hydra.{field}", folder)
    )


def _asked(composition: Composition) -> dict[str, Any]:
    """What a command asks for instead of a run, and what starts it, by key."""
    keys = ("resume", "launch.inline", "study.ask")
    found = {key: OmegaConf.select(composition.config, key) for key in keys}
    return found | {
        "hydra.mode": "MULTIRUN" if composition.sweeps else "RUN",
        "hydra/launcher": composition.choice("hydra/launcher"),
        "started_by": started_by(),
    }


def not_honored(config: DictConfig) -> list[Failure]:
    """The `study.*` values that have no effect because this command is not a study."""
    if "study" not in config:
        return []
    wrong, do = "a single run has no rounds", "add -m, or leave it out"
    if config.hydra.mode == RunMode.MULTIRUN:
        sweeper = config.hydra.runtime.choices.get("hydra/sweeper")
        if sweeper == SWEEPER:
            return []
        wrong, do = f"hydra/sweeper={sweeper} has no rounds", "leave one of them out"
    return [
        ConfigError(
            f"study.{key}",
            spelled(value),
            wrong,
            f"a sweep with hydra/sweeper={SWEEPER}, the default, has",
            do,
        )
        for key, value in changed_of_study(config).items()
    ]


def changed_of_study(config: DictConfig) -> dict[str, Any]:
    """The `study.*` values that are not the defaults."""
    before = {name: key.default for name, key in SWEEP.items()}
    given = {str(key): value for key, value in config.study.items()}
    return {key: value for key, value in given.items() if value != before.get(f"study.{key}")}


def _unnamed(field: str, folder: str) -> list[Failure]:
    if folder:
        return []
    return [ConfigError(field, "", "it names nothing", "a folder is allowed", "leave it out")]
