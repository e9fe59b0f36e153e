"""What keeps a command from being a run or a sweep, before the job itself is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from ninefold.config import combinations, overrides, rules
from ninefold.config.composition import Composition
from ninefold.config.job import GROUPS, KEYS_NOT_IN_RESULT, not_a_name
from ninefold.config.parse import value_of
from ninefold.errors import Failure
from ninefold.places import CONF
from ninefold.ranks import started_by
from ninefold.study import plan, start, values

DEFAULTS = CONF / "train.yaml"


def of_a_run(composition: Composition) -> list[Failure]:
    """The problems of a command that makes one run."""
    config = composition.config
    return (
        plan.not_honored(config, DEFAULTS)
        or combinations.problems(_asked(composition), combinations.REFUSED_COMMANDS)
        or overrides.reference_in("hydra.run.dir", config.hydra.run.dir)
    )


def of_a_sweep(composition: Composition) -> list[Failure]:
    """The problems of a sweep, before anything is written: folders are named by its options."""
    config, sweeper = composition.config, composition.choice("hydra/sweeper")
    given = composition.parsed(composition.overrides())
    params = composition.parsed(composition.params()) if sweeper in values.LISTS else []
    problems = (
        values.problems([*params, *given], sweeper)
        or odd_options(given)
        or plan.not_honored(config, DEFAULTS)
        or combinations.problems(_asked(composition), combinations.REFUSED_COMMANDS)
        or overrides.reference_in("hydra.sweep.dir", config.hydra.sweep.dir)
    )
    if not problems and sweeper != plan.SWEEPER:
        problems = start.occupied(Path(config.hydra.sweep.dir), "choose another")
    return problems or rules.breach("launch.grace", OmegaConf.select(config, "launch.grace"))


def _asked(composition: Composition) -> dict[str, Any]:
    """What a command asks for instead of a run, and what starts it, by key."""
    keys = ("resume", "launch.inline", "study.ask")
    found = {key: OmegaConf.select(composition.config, key) for key in keys}
    return found | {
        "hydra.mode": "MULTIRUN" if composition.sweeps else "RUN",
        "hydra/launcher": composition.choice("hydra/launcher"),
        "started_by": started_by(),
    }


def odd_options(overrides: Sequence[Override]) -> list[Failure]:
    """Options in a sweep's overrides that are not names (see Job.problems), and swept keys that
    must not be swept.

    They are checked before the sweep's folders are made, whose names contain the options.
    """
    found: list[Failure] = []
    for override in overrides:
        group = override.key_or_group
        if group in KEYS_NOT_IN_RESULT and override.is_sweep_override():
            found.append(plan.in_one_cell(group, value_of(override)))
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
