"""Formats numbers and lists as text, for every layer of the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ninefold.score import SCORE

MISSING = "–"  # stands where a number is not known
EQUAL = "equal"  # stands where there is no difference at all
NOT_KNOWN = "not known yet"  # stands where more runs would tell it


def number(value: float | None, decimals: int, sign: bool = False) -> str:
    """Return a number, without a minus before zero. sign: with a plus, as a difference has."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{round(value, decimals) + 0.0:{'+' if sign else ''}.{decimals}f}"


def digits(value: float) -> str:
    """Return a number of at least 1e-4 with at most four significant digits, such as `25,600`."""
    return f"{float(f'{value:.4g}'):,.12g}"


def times(value: float | None, decimals: int = 2) -> str:
    """Return a ratio such as `×1.23`."""
    return MISSING if value is None else f"×{number(value, decimals)}"


def between(
    low: float | None, high: float | None, show: Callable[[float], str], unknown: str
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
        return f"{digits}e{int(exponent)}"
    return f"{value:.3g}"


def chance(p: float | None) -> str:
    """Return a p-value."""
    return "< 0.0001" if p is not None and p < 1e-4 else small(p)


def typeset(text: str) -> str:
    """Return a number as a page shows it: a true minus, thin spaces from ten thousand on."""
    head, dot, decimals = text.partition(".")
    digits = head.lstrip("+-×")
    if digits.isdigit() and int(digits) >= 10_000:
        thousands = f"{int(digits):,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
        head = head[: -len(digits)] + thousands
    return f"{head}{dot}{decimals}".replace("-", "\N{MINUS SIGN}")


def decimals_for(smallest: float) -> int:
    """Return how many decimals show three digits of a table's smallest value."""
    decimals = 0
    while decimals < 6 and abs(smallest) * 10**decimals < 100:
        decimals += 1
    return decimals


def decimals_of(unit: str, values: Sequence[float | None]) -> int:
    """Return the decimals of the values of a table, in the unit of a measure."""
    if unit == "%":
        return 2
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    return decimals_for(min(sizes, default=1.0))


def decimals_of_score(
    unit: str, values: Sequence[float | None], spreads: Iterable[float | None]
) -> int:
    """Return the decimals of scores: as of other values, but so many that two digits of their
    smallest standard deviation are seen."""
    decimals = decimals_of(unit, values)
    smallest = min((sd for sd in spreads if sd and math.isfinite(sd)), default=math.inf)
    return decimals if unit == "%" else max(decimals, decimals_for(10 * smallest))


def score_text(value: float | None, unit: str) -> str:
    """Return a score alone: a share with two decimals, others with six digits."""
    if unit == "%" or value is None or not math.isfinite(value):
        return number(value, 2)
    return f"{value:.6g}"


def difference(value: float | None, unit: str) -> str:
    """Return a difference of scores with its sign: of shares, in percent, with two decimals."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return EQUAL
    return number(value, 2 if unit == "%" else max(2, decimals_for(value)), sign=True)


def unit_of_difference(unit: str) -> str:
    """Return the unit of a difference of values: points where these are in percent."""
    return "points" if unit == "%" else unit


def difference_with_unit(value: float | None, unit: str) -> str:
    """Return a difference of scores with its unit: `-0.21 points`, or `equal`."""
    text = difference(value, unit)
    return text if text == EQUAL else with_unit(text, unit_of_difference(unit))


def in_words(what: str, unit: str) -> str:
    """Return what is in a unit: `difference in points`, `Test RMSE in m`, `Test R2`."""
    return f"{what} in {'percent' if unit == '%' else unit}" if unit else what


def with_unit(text: str, unit: str) -> str:
    """Return a number with its unit, if it has one."""
    return f"{text} {unit}".rstrip()


def within_margin(margin: float, unit: str, better: str, baseline: object) -> str:
    """Return what is shown of a safe score: `less than 0.5 points below none-fp32's`."""
    if not margin:
        return f"no worse than {baseline}'s"
    most = with_unit(f"{margin:g}", unit_of_difference(unit))
    return f"less than {most} {'below' if better == 'more' else 'above'} {baseline}'s"


def three_digits(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:.{decimals_for(value)}f}"


def rounded_epochs(epochs: float) -> float:
    """Return a number of epochs as it is shown: with one decimal, less than one as it is."""
    return epochs if epochs < 1 else round(epochs, 1)


def plural(items: float | Sequence[object], one: str, many: str | None = None) -> str:
    """Return the word that goes with a count: `run` or `runs`, `is` or `are`."""
    count = items if isinstance(items, int | float) else len(items)
    return one if count == 1 else many or f"{one}s"


def counted(items: int | Sequence[object], one: str, many: str | None = None) -> str:
    """Return a count with its noun: `1 run`, `2 runs`."""
    count = items if isinstance(items, int) else len(items)
    return f"{count} {plural(count, one, many)}"


def amount(count: float) -> str:
    """Return a number of bytes in decimal units, with three digits: `33.6 MB`."""
    units = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    size, unit = next((each for each in units if count >= 0.9995 * each[0]), (1, "B"))
    return f"{count / size:.3g} {unit}"


def listed(items: Sequence[Any]) -> str:
    """Return the items separated by commas."""
    return ", ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in items)


def listed_and(names: Sequence[object]) -> str:
    """Return names as a phrase: `a, b and c`."""
    texts = [str(name) for name in names]
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def capitalized(text: str) -> str:
    """Return a text with its first letter as a capital: `mean IoU` as `Mean IoU`."""
    return text[:1].upper() + text[1:]


def with_article(score: str) -> str:
    """Return a score's name with its article: `the mean IoU`, but `accuracy`."""
    return score if score == SCORE else f"the {score}"
