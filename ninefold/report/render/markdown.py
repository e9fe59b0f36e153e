"""Sets rows as a Markdown table that also reads well in a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ninefold.errors import one_line

MISSING = "–"


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose columns are padded to the same width."""
    lines = [list(header), *map(list, rows)]
    widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(header))]
    lines.insert(1, ["-" * width for width in widths])
    padded = [
        [text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def plain(text: str) -> str:
    """Return a text of any content as one line that says what it says and does nothing."""
    return re.sub(r"[<|\[]", r"\\\g<0>", one_line(text))


def code(text: str) -> str:
    """Return a text of any content as one line of code."""
    line = one_line(text)
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"


def decimals_for(smallest: float) -> int:
    """Return how many decimals leave three digits to the smallest value of a table."""
    decimals = 0
    while decimals < 6 and abs(smallest) * 10**decimals < 100:
        decimals += 1
    return decimals


def signed(value: float, decimals: int) -> str:
    """Return a difference with its sign, and zero as +0."""
    return f"{round(value, decimals) + 0.0:+.{decimals}f}"


def spread(mean: float, sd: float | None, decimals: int) -> str:
    """Return `mean ± sd`, or the mean alone where one seed gives no deviation."""
    shown = f"{mean:.{decimals}f}"
    return shown if sd is None else f"{shown} ± {sd:.{decimals}f}"
