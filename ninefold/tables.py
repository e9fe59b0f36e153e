"""Rows of any text as tables, in Markdown and in HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from ninefold.errors import one_line


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
    """Return text of any content as one line without markup, but for emphasis by `_` and `~`."""
    return re.sub(r"[\\&<|\[*`]", r"\\\g<0>", one_line(text))


def code(text: str) -> str:
    """Return text of any content as one line of code."""
    line = one_line(text)
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"


def html_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return rows of any text below their header as an HTML table."""
    lines = [
        "".join(
            f"<{tag} style='text-align:left;padding:.1em .8em .1em 0'>{escape(str(text))}</{tag}>"
            for text in row
        )
        for tag, row in [("th", header), *(("td", row) for row in rows)]
    ]
    return f"<table style='color:inherit'>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
