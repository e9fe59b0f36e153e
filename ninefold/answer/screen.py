"""The screen of an answer: its lead, a table, the notes that matter most, what comes next."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

from ninefold.errors import one_line, printable
from ninefold.numbers import counted, listed_and

NOTES = 3  # that are shown: all of them stand where the details are
WIDTH = 160  # characters of a note
ROWS = 5  # of a table
CELL = 60  # characters of what stands last in a row, such as a command


def narrowed(
    rows: Sequence[tuple[str, ...]], seconds: Mapping[str, float], most: int = ROWS
) -> list[tuple[str, ...]]:
    """Return what a terminal has room for of a table of contestants, whose header comes first.

    The first of them and the fastest others, by their seconds, `most` in all; without columns of
    one value, and without the verdict that the lead says of two.
    """
    header, first, *others = rows
    by_speed = sorted(others, key=lambda row: seconds.get(row[0], math.inf))[: most - 1]
    kept = [header, first, *(row for row in others if row in by_speed)]
    needless = {"verdict"} if len(others) == 1 else set[str]()
    if len({row[-1] for row in rows[1:]}) == 1:
        needless.add(header[-1])
    places = [place for place, title in enumerate(header) if title not in needless]
    return [
        tuple(textwrap.shorten(row[place], CELL, placeholder=" ...") for place in places)
        for row in kept
    ]


def left_out(notes: Sequence[str], most: int | None = NOTES, rows: int = 0) -> str:
    """What follows the place of the details: `, with 2 more rows and 1 more note`.

    most: notes that are shown. rows: of the table that are not; negative if there was room for
    more.
    """
    left = {"more row": rows, "more note": 0 if most is None else len(notes) - most}
    said = [counted(count, what) for what, count in left.items() if count > 0]
    return f", with {listed_and(said)}" if said else ""


def screen(
    lead: str, table: Sequence[str], notes: Sequence[str], *ending: str, most: int | None = NOTES
) -> str:
    """Return the lines of a screen.

    notes: the most important first, of which `most` are shown; None: all, uncut. ending: what
    stands last, whole: where the details are, and the next command.
    """
    lines = [*map(one_line, notes)]
    if most is not None:
        lines = [textwrap.shorten(line, WIDTH, placeholder=" ...") for line in lines[:most]]
    below = ["", *table] if table else []
    return "\n".join([one_line(lead), *below, "", *lines, *map(printable, filter(None, ending))])
