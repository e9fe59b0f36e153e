"""Small interval plots on one scale, and numbers as report.html writes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ninefold.report.numbers import MISSING

NOT_KNOWN = "not known yet"
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


def number(value: float | None, decimals: int) -> str:
    """Return a number, from ten thousand on with thin spaces between its thousands."""
    if value is None or not math.isfinite(value):
        return MISSING
    separator = "," if abs(value) >= 10_000 else ""
    shown = f"{round(value, decimals) + 0.0:{separator}.{decimals}f}"
    return shown.replace(",", "\N{NARROW NO-BREAK SPACE}").replace("-", "\N{MINUS SIGN}")


def signed(value: float | None, decimals: int) -> str:
    """Return a difference with its sign, and zero as +0."""
    shown = number(value, decimals)
    return shown if shown[0] in "\N{MINUS SIGN}" + MISSING else f"+{shown}"


def times(value: float | None, decimals: int = 2) -> str:
    """Return a ratio."""
    return MISSING if value is None else f"×{number(value, decimals)}"


def between(
    low: float | None,
    high: float | None,
    show: Callable[[float], str],
    unknown: str = MISSING,
) -> str:
    """Return an interval in words. unknown: what stands for one that is not known."""
    return unknown if low is None or high is None else f"{show(low)} to {show(high)}"


def small(value: float | None) -> str:
    """Return a number with three significant digits, such as a p-value or a deviation."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        digits, _, exponent = f"{value:.1e}".partition("e")
        return f"{digits}e{int(exponent)}".replace("-", "\N{MINUS SIGN}")
    return f"{value:.3g}".replace("-", "\N{MINUS SIGN}")


def chance(p: float | None) -> str:
    """Return a p-value."""
    return "< 0.0001" if p is not None and p < 1e-4 else small(p)
