"""Small interval plots on one scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_MARGIN = 5  # percent of a strip's width that stay free at each end


@dataclass(frozen=True)
class Strip:
    """An interval with its value and all single values, in percent of the strip's width.

    rule: position of the value to compare with.
    band: range of differences that are noise.
    about: the strip in words.
    """

    value: float
    low: float | None = None
    high: float | None = None
    dots: tuple[float, ...] = ()
    rule: float | None = None
    band: tuple[float, float] | None = None
    about: str = ""


def scale(values: Iterable[float | None]) -> Callable[[float | None], float]:
    """Return a function from a value to its position on strips that hold all these values.

    An unknown value is put in the middle.
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    width = high - low

    def place(value: float | None) -> float:
        share = (value - low) / width if width and value is not None else 0.5
        return round(_MARGIN + (100 - 2 * _MARGIN) * min(1.0, max(0.0, share)), 2)

    return place
