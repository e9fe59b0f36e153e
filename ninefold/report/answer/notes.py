"""Numbers the runs' notes and finds the cells that they hold for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ninefold.report.data.cell import Cell
from ninefold.report.data.cells import Group
from ninefold.report.data.runs import Run


def number_notes(runs: Sequence[Run]) -> dict[str, int]:
    """Return every distinct note of the runs that count with its number, in their order."""
    notes = dict.fromkeys(note for run in runs if run.counts for note in run.notes)
    return {note: number for number, note in enumerate(notes, start=1)}


def notes_of(group: Group, numbers: Mapping[str, int]) -> dict[Cell, list[int]]:
    """Return the numbers of the notes that hold for each cell of a group, in order."""
    found: dict[Cell, set[int]] = {}
    for run in group.runs:
        found.setdefault(run.cell, set()).update(
            numbers[note] for note in run.notes if note in numbers
        )
    return {cell: sorted(held) for cell, held in found.items()}
