"""Formats numbers and lists as text, for every layer of the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ninefold.result import SCORE

MISSING = "–"  # stands where a number is not known


def decimals_for(smallest: float) -> int:
    """Return how many decimals show three digits of a table's smallest value."""
    decimals = 0
    while decimals < 6 and abs(smallest) * 10**decimals < 100:
        decimals += 1
    return decimals


def three_digits(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:.{decimals_for(value)}f}"


def signed(value: float, decimals: int) -> str:
    """Return a difference with its sign, and zero as +0."""
    return f"{round(value, decimals) + 0.0:+.{decimals}f}"


def spread(mean: float, sd: float | None, decimals: int) -> str:
    """Return `mean ± sd`, or the mean alone where a single seed has no deviation."""
    shown = f"{mean:.{decimals}f}"
    return shown if sd is None else f"{shown} ± {sd:.{decimals}f}"


def capitalized(text: str) -> str:
    """Return a text with its first letter as a capital: `mean IoU` as `Mean IoU`."""
    return text[:1].upper() + text[1:]


def with_article(score: str) -> str:
    """Return a score's name with its article: `the mean IoU`, but `accuracy`."""
    return score if score == SCORE else f"the {score}"


def ratio(value: float | None) -> str:
    """Return a ratio such as `×1.234`."""
    return MISSING if value is None else f"×{value:.3f}"


def counted(items: int | Sequence[object], one: str, many: str | None = None) -> str:
    """Return a count with its noun: `1 run`, `2 runs`."""
    count = items if isinstance(items, int) else len(items)
    return f"{count} {one if count == 1 else many or one + 's'}"


def listed(items: Sequence[Any]) -> str:
    """Return the items separated by commas."""
    return ", ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in items)


def listed_and(names: Sequence[str]) -> str:
    """Return names as a phrase: `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
