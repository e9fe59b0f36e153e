"""The values that a sweep gives to a key: that there are some, and not too many to list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from hydra.core.override_parser.types import Override, RangeSweep

from ninefold.config.parse import key_and_value
from ninefold.errors import ConfigError, Failure

MOST = 100_000  # runs of a sweep: more are a mistake, and listing them fills the memory
LISTS = ("study", "basic")  # sweepers that make a run for each value


def problems(overrides: Sequence[Override], sweeper: object) -> list[Failure]:
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
                found.append(_wrong(override, "an interval has no single values"))
            continue
        try:
            count = _count(override)
        except (ValueError, ArithmeticError) as error:  # a step of 0, as range itself says
            found.append(_wrong(override, str(error) or type(error).__name__))
            continue
        if count == 0:
            found.append(_wrong(override, "it has no values"))
        elif sweeper in LISTS and (runs := runs * count) > MOST:
            found.append(_wrong(override, f"the sweep would have more than {MOST:,} runs"))
            break
    return found


def _count(override: Override) -> int:
    """How many values a sweep over a list or a range has, MOST + 1 for more than MOST."""
    value: Any = override.value()
    if isinstance(value, RangeSweep):
        if value.step == 0:
            raise ValueError("its step is 0")
        each: Iterator[Any] = iter(value.range())  # unshuffled: that would list all
    else:
        each = override.sweep_string_iterator()
    return sum(1 for _ in islice(each, MOST + 1))


def _wrong(override: Override, wrong: str) -> ConfigError:
    return ConfigError(
        *key_and_value(override.input_line or ""),
        f"{wrong}; values with commas are allowed, range(START,STOP[,STEP]) with START before "
        "STOP, and glob(PATTERN) of a group's options; correct it",
    )
