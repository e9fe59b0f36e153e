"""The screen of an answer: its lead, a table, the notes that matter most, what comes next."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ninefold.errors import one_line
from ninefold.numbers import counted

NOTES = 3  # that are shown: all of them stand where the details are
WIDTH = 160  # characters of a note


def more_notes(notes: Sequence[str], most: int | None = NOTES) -> str:
    """What follows the place of the details, if `most` is less than there are."""
    left = 0 if most is None else len(notes) - most
    return f", with {counted(left, 'more note')}" if left > 0 else ""


def screen(
    lead: str,
    table: Sequence[str],
    notes: Sequence[str],
    *ending: str,
    most: int | None = NOTES,
) -> str:
    """Return the lines of a screen.

    notes: the most important first, of which `most` are shown; None: all, uncut. ending: what
    stands last, whole: where the details are, and the next command.
    """
    lines = [*map(one_line, notes)]
    if most is not None:
        lines = [textwrap.shorten(line, WIDTH, placeholder=" ...") for line in lines[:most]]
    below = ["", *table] if table else []
    return "\n".join([one_line(lead), *below, "", *lines, *filter(None, ending)])
