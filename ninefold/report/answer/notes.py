"""Numbers the runs' notes and finds the cells that each holds for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ninefold.report.data.cells import Group
from ninefold.report.data.runs import Run


def number_notes(runs: Sequence[Run]) -> dict[str, int]:
    """Return every distinct note of the runs that count with its number, in their order."""
    notes = dict.fromkeys(note for run in runs if run.counts for note in run.notes)
    return {note: number for number, note in enumerate(notes, start=1)}


def cells_of(group: Group) -> list[str]:
    """Return the cells of a group in the order of its runs."""
    return list(dict.fromkeys(run.cell for run in group.runs))


def holders(group: Group, note: str) -> list[str]:
    """Return the cells of a group that a note holds for."""
    return [
        cell
        for cell in cells_of(group)
        if any(run.cell == cell and note in run.notes for run in group.runs)
    ]


def marked(group: Group, notes: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the numbers of the notes by cell, without notes that hold for every cell."""
    every = cells_of(group)
    marks: dict[str, list[int]] = {}
    for note, number in notes.items():
        held = holders(group, note)
        if len(held) < len(every):
            for cell in held:
                marks.setdefault(cell, []).append(number)
    return marks
