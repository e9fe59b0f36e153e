"""Which cells wait for the host: not for the work of their GPUs, but for its launches."""

from __future__ import annotations

from ninefold.report.answer.evidence import Evidence
from ninefold.report.data.cell import Cell
from ninefold.report.data.runs import Run
from ninefold.report.numbers import plural

AT_ONCE = 0.5  # share of a step within which a GPU that is not the limit has done what is queued


def bound_by_host(evidence: Evidence) -> list[Cell]:
    """The cells whose GPUs have nothing left to do soon after the host has queued a step.

    A GPU that is the limit is behind by several steps then: the host runs ahead of it. Cells that
    wait for their data are others.
    """
    return [cell for cell in evidence.cells if _waits(evidence, cell)]


def host_caveat(evidence: Evidence) -> str | None:
    """What follows from `bound_by_host`; None where no cell is."""
    found = bound_by_host(evidence)
    if not found:
        return None
    every = found == evidence.cells
    who = "Every configuration" if every else evidence.labels(found)
    waits = plural(1 if every else found, "waits", "wait")
    graphs = any(run.graph for run in evidence.group.runs)
    change = "a larger batch_size" + ("" if graphs else " or graph=true")
    return (
        f"{who} {waits} for the host: the GPU has done a step almost as soon as the host has "
        f"queued its operations. Fewer or longer operations, as with {change}, would change the "
        "times."
    )


def _waits(evidence: Evidence, cell: Cell) -> bool:
    if evidence.waits_for_data(cell):
        return False
    runs = [run for run in evidence.runs(cell) if run.ok and run.timed is evidence.timed]
    shares = [share for run in runs if (share := _queued(run)) is not None]
    return bool(shares) and sum(shares) / len(shares) < AT_ONCE


def _queued(run: Run) -> float | None:
    """Seconds that the GPU was behind the host, in steps; None if unknown."""
    if run.queued_seconds is None or not run.train_seconds or not run.steps:
        return None
    return run.queued_seconds * run.steps / run.train_seconds
