"""Numbers the runs' notes, marks the cells they hold for and lists each note once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ninefold.report.data.cells import Group
from ninefold.report.data.runs import Run
from ninefold.report.render.markdown import plain

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def number_notes(runs: Sequence[Run]) -> dict[str, int]:
    """Return every distinct note of the runs that count with its number, in their order."""
    notes = dict.fromkeys(note for run in runs if run.counts for note in run.notes)
    return {note: number for number, note in enumerate(notes, start=1)}


def mark_cells(group: Group, notes: Mapping[str, int]) -> dict[str, str]:
    """Return what each cell's name is followed by: the numbers of its notes.

    A note that holds for every cell says nothing of one, so it marks none.
    """
    marks: dict[str, str] = {}
    for note, number in notes.items():
        held = holders(group, note)
        if len(held) < len(_cells(group)) or len(_cells(group)) == 1:
            for cell in held:
                marks[cell] = f"{marks.get(cell, '')} {superscript(number)}"
    return marks


def superscript(number: int) -> str:
    """Return the number that stands behind a cell for a note."""
    return str(number).translate(_SUPERSCRIPTS)


def note_section(groups: Sequence[Group], notes: Mapping[str, int]) -> str:
    """Return the list of notes, each with the cells it holds for."""
    lines = []
    for note, number in notes.items():
        named = {}
        for group in groups:
            held = holders(group, note)
            named[group.title] = "every cell" if held == _cells(group) else ", ".join(held)
        cells = [f"{names} ({plain(title)})" for title, names in named.items() if names]
        if len(set(named.values())) == 1:  # the groups need not be told apart
            cells = list(named.values())[:1]
        lines.append(f"{number}. {plain(note)} — {'; '.join(cells)}")
    return "## Notes\n\n" + "\n".join(lines) if lines else ""


def _cells(group: Group) -> list[str]:
    return list(dict.fromkeys(run.cell for run in group.runs))


def holders(group: Group, note: str) -> list[str]:
    """Return the cells of a group that a note holds for."""
    return [
        cell
        for cell in _cells(group)
        if any(run.cell == cell and note in run.notes for run in group.runs)
    ]
