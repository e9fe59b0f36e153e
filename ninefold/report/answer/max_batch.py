"""Describes the largest batch that fits each cell, as the study searched for it."""

from __future__ import annotations

from ninefold.errors import one_line
from ninefold.report.answer.tree import LargestBatch, MeasureInfo
from ninefold.report.data.cell import PLAIN, Cell
from ninefold.report.data.cells import Group
from ninefold.report.data.rounds import largest_batch
from ninefold.study_record import LargestBatch as Search
from ninefold.study_record import StudyRecord

_OR_MORE = "or more"


def largest_batches(
    group: Group, sweep: StudyRecord
) -> tuple[MeasureInfo, dict[Cell, LargestBatch]]:
    """Return the measure "largest batch", and its figures by cell of a group."""
    searches = _searches(group, sweep)
    sizes = {cell: search.batch_size for cell, search in searches.items()}
    why = {cell: _why(search) for cell, search in searches.items()}
    plain = None if why.get(PLAIN) else sizes.get(PLAIN)
    figures = {
        cell: LargestBatch(
            n=1,
            mean=size,
            sd=None,
            low=None,
            high=None,
            relative=size / plain if size and plain and not why[cell] else None,
            values={},
            tried=1,
            why=why[cell],
        )
        for cell, size in sizes.items()
    }
    return MeasureInfo(
        key="max_batch",
        title="Largest batch that fits",
        unit="images",
        better="more",
        available=bool(figures),
    ), figures


def _searches(group: Group, sweep: StudyRecord) -> dict[Cell, Search]:
    """Return what was found for a group's cells; searches are of the last segment of a study."""
    last = max((entry.segment for entry in (*sweep.rounds, *sweep.timing)), default=0)
    if group.part != last:
        return {}
    found = [(run.cell, largest_batch(run, sweep)) for run in group.runs]
    return {cell: search for cell, search in found if search is not None}  # not of failed runs


def _why(search: Search) -> str | None:
    """Return why a size is not known or may be larger, None where it is simply the largest."""
    if search.status == "whole_set":
        return _OR_MORE
    if search.batch_size is None or search.status == "failed":
        return one_line(search.why.replace("error: ", "").partition("; ")[0]) or None
    return None
