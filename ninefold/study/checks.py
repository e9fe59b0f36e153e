"""What keeps a command from being a sweep, before its jobs are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override, RangeSweep
from omegaconf import DictConfig, OmegaConf

from ninefold.config import rules, schema
from ninefold.config.composition import SWEEPER, Composition, changed, mode_problems
from ninefold.config.job import KEYS_NOT_IN_RESULT, not_a_name
from ninefold.errors import ConfigError, Failure, Refused
from ninefold.study import start
from ninefold.types import MAX_RUNS
from ninefold.words import key_and_value

LISTS = (SWEEPER, "basic")  # sweepers that make a run for each value


def of_a_sweep(composition: Composition) -> list[Failure]:
    """The problems of a sweep, before anything is written: folders are named by its options."""
    config, sweeper = composition.config, composition.choice("hydra/sweeper")
    given = composition.parsed(composition.overrides())
    params = composition.parsed(composition.params()) if sweeper in LISTS else []
    problems = (
        wrong_values([*params, *given], sweeper)
        or odd_options([*params, *given])
        or mode_problems(composition)
    )
    if not problems and sweeper != SWEEPER:
        problems = start.occupied(Path(config.hydra.sweep.dir), "choose another")
    return problems or rules.breach("launch.grace", OmegaConf.select(config, "launch.grace"))


def nothing_swept(config: DictConfig, overrides: Sequence[Override]) -> list[Failure]:
    """That every key has one value; none if the command has keys of a study, such as rounds."""
    if changed(config, "study") or any(each.is_sweep_override() for each in overrides):
        return []
    allowed = "a sweep such as optimizer.lr=1e-4,1e-3 or seed=0,1"
    do = "name several, or leave out -m for a single run"
    return [ConfigError("hydra.mode", "MULTIRUN", "no key has several values", allowed, do)]


def odd_options(overrides: Sequence[Override]) -> list[Failure]:
    """Options in a sweep's overrides that are not names (see `problems` of config/job.py), and
    swept keys that must not be swept.

    They are checked before the sweep's folders are made, whose names contain the options.
    """
    found: list[Failure] = []
    for override in {each.get_key_element(): each for each in overrides}.values():
        group = override.key_or_group
        if group in (*KEYS_NOT_IN_RESULT, "experiments") and override.is_sweep_override():
            values = key_and_value(override.input_line or "")[1]
            wrong, allowed = "it has several values", "its runs would be one configuration"
            found.append(ConfigError(group, values, wrong, allowed, "sweep it in its own commands"))
        if group not in (*schema.GROUPS, "experiments"):
            continue
        swept = override.is_sweep_override()
        options = list(override.sweep_string_iterator()) if swept else [override.value()]
        found += [
            not_a_name(group, option)
            for option in options
            if isinstance(option, str) and not rules.NAME.fullmatch(option)
        ]
    return found


def wrong_values(overrides: Sequence[Override], sweeper: object) -> list[Failure]:
    """What is wrong with the numbers of values that these overrides of a sweep have.

    Of several for one key the last counts. sweeper: the option of hydra/sweeper.
    """
    found: list[Failure] = []
    runs = 1
    for override in {each.get_key_element(): each for each in overrides}.values():
        if not override.is_sweep_override():
            continue
        if override.is_interval_sweep():
            if sweeper in LISTS:
                found.append(_wrong_value(override, "an interval has no single values"))
            continue
        try:
            count = _count_of_values(override)
        except (ValueError, ArithmeticError) as error:  # a step of 0, as range itself says
            found.append(_wrong_value(override, str(error) or type(error).__name__))
            continue
        if count == 0:
            found.append(_wrong_value(override, "it has no values"))
        elif sweeper in LISTS and (runs := runs * count) > MAX_RUNS:
            most = f"the sweep would have more than {MAX_RUNS:,} runs"
            found.append(_wrong_value(override, most))
            break
    return found


def _count_of_values(override: Override) -> int:
    """How many values a sweep over a list or a range has, MAX_RUNS + 1 for more than MAX_RUNS."""
    value: Any = override.value()
    if isinstance(value, RangeSweep):
        if value.step == 0:
            raise ValueError("its step is 0")
        each: Iterator[Any] = iter(value.range())  # unshuffled: that would list all
    else:
        each = override.sweep_string_iterator()
    return sum(1 for _ in islice(each, MAX_RUNS + 1))


def _wrong_value(override: Override, wrong: str) -> ConfigError:
    allowed = (
        "values with commas are allowed, range(START,STOP[,STEP]) with START before STOP, and "
        "glob(PATTERN) of a group's options"
    )
    key, value = key_and_value(override.input_line or "")
    return ConfigError(key, value, wrong, allowed, "correct it")


def settings_of(config: DictConfig) -> dict[str, Any]:
    """The sections of a sweep, as plain values. Raises Refused for wrong ones."""
    found: dict[str, Any] = {
        name: OmegaConf.to_container(config[name], resolve=True) for name in rules.SWEEP_SECTIONS
    }
    wrong = [
        failure
        for section, node in found.items()
        for key, value in node.items()
        for failure in rules.breach(f"{section}.{key}", value)
    ]
    if wrong:
        raise Refused(wrong)
    return found
