"""Reads the largest batch of each cell from sweep.json's `max_batch`.

An entry is {batch_size, fails_at, status, why}; status is "found", "whole_set" (the whole training
set fits, so the limit is not known) or "failed" (the search did not come to an end).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninefold.errors import one_line
from ninefold.report.answer.tree import LargestBatch, MeasureInfo
from ninefold.report.data.cells import PLAIN, Group
from ninefold.report.data.rounds import name_of, rounds_of
from ninefold.report.data.runs import finite

FOUND, WHOLE_SET, FAILED = "found", "whole_set", "failed"
_OR_MORE = "or more"


def largest_batches(
    group: Group, sweep: Mapping[str, Any]
) -> tuple[MeasureInfo, dict[str, LargestBatch]]:
    """Return the measure "largest batch", and its figures by cell of a group."""
    entries = _entries(group, sweep)
    sizes = {cell: finite(entry.get("batch_size")) for cell, entry in entries.items()}
    why = {cell: _why(sizes[cell], entry) for cell, entry in entries.items()}
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
            why=why[cell],
        )
        for cell, size in sizes.items()
    }
    about = "Global batch, searched for once per cell."
    if _OR_MORE in why.values():
        about += f" “{_OR_MORE}”: the whole training set fits, and the limit is not known."
    return MeasureInfo(
        key="max_batch",
        title="Largest batch that fits",
        unit="images",
        about=about,
        better="more",
        available=bool(figures),
        why_not=None if figures else "study.max_batch=true searches for it.",
    ), figures


def _entries(group: Group, sweep: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the entries of a group's cells; they are of the last segment of a study."""
    said = sweep.get("max_batch")
    segments = [entry.get("part") for entry in rounds_of(sweep)]
    last = max((segment for segment in segments if isinstance(segment, int)), default=0)
    if not isinstance(said, dict) or group.part != last:
        return {}
    found = {run.cell: said.get(name_of(run, sweep)) for run in group.runs}
    return {cell: entry for cell, entry in found.items() if isinstance(entry, dict)}


def _status(entry: Mapping[str, Any]) -> str:
    """Return an entry's status; studies recorded before there was one say it in `why`."""
    status, why = entry.get("status"), str(entry.get("why") or "")
    if status in (FOUND, WHOLE_SET, FAILED):
        return str(status)
    if why == "the whole training set fits":
        return WHOLE_SET
    return FAILED if why.startswith(("the search ended: ", "there was no search: ")) else FOUND


def _why(size: float | None, entry: Mapping[str, Any]) -> str | None:
    """Return why a size is not known or may be larger, None where it is simply the largest."""
    status = _status(entry)
    if status == WHOLE_SET:
        return _OR_MORE
    if size is None or status == FAILED:
        why = str(entry.get("why") or "")
        return one_line(why.replace("error: ", "").partition("; ")[0]) or None
    return None
