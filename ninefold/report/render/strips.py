"""Numbers as the page writes them, and intervals as it draws them: small strips of one scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ninefold.report.numbers import MISSING

_MARGIN = 5  # percent of a strip's width that stay free at each end


@dataclass(frozen=True)
class Strip:
    """An interval, the value in it and all single values, in percent of the strip's width.

    `rule` is where the value is that it is held against, `band` a stretch that means nothing.
    """

    value: float
    low: float | None = None
    high: float | None = None
    dots: tuple[float, ...] = ()
    rule: float | None = None
    band: tuple[float, float] | None = None
    about: str = ""


def scale(values: Iterable[float | None]) -> Callable[[float], float]:
    """Return where on a strip that holds all these values one of them is, in percent."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    width = high - low

    def place(value: float) -> float:
        share = (value - low) / width if width else 0.5
        return round(_MARGIN + (100 - 2 * _MARGIN) * min(1.0, max(0.0, share)), 2)

    return place


def number(value: float | None, decimals: int) -> str:
    """A number with thin spaces between its thousands from ten thousand on."""
    if value is None or not math.isfinite(value):
        return MISSING
    shown = f"{round(value, decimals) + 0.0:,.{decimals}f}" if abs(value) >= 10_000 else (
        f"{round(value, decimals) + 0.0:.{decimals}f}")  # fmt: skip
    return shown.replace(",", "\N{NARROW NO-BREAK SPACE}").replace("-", "\N{MINUS SIGN}")


def signed(value: float | None, decimals: int) -> str:
    """A difference with its sign, and zero as +0."""
    shown = number(value, decimals)
    return shown if shown[0] in "\N{MINUS SIGN}" + MISSING else f"+{shown}"


def times(value: float | None, decimals: int = 2) -> str:
    """A ratio."""
    return MISSING if value is None else f"×{number(value, decimals)}"


def between(low: float | None, high: float | None, show: Callable[[float], str]) -> str:
    """An interval in words."""
    return MISSING if low is None or high is None else f"{show(low)} to {show(high)}"


def small(value: float | None) -> str:
    """A number of which the first two or three digits matter, as a p-value or a deviation."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        digits, _, exponent = f"{value:.1e}".partition("e")
        return f"{digits}e{int(exponent)}".replace("-", "\N{MINUS SIGN}")
    return f"{value:.3g}".replace("-", "\N{MINUS SIGN}")


def chance(p: float | None) -> str:
    """A p-value."""
    return "< 0.0001" if p is not None and p < 1e-4 else small(p)


def counted(things: Sequence[object] | int, one: str, many: str | None = None) -> str:
    """`1 run`, `2 runs`."""
    count = things if isinstance(things, int) else len(things)
    return f"{count} {one if count == 1 else many or one + 's'}"
