"""What a study that times its cells in turns may still measure, and which cell is the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninefold.report.answer.evidence import Evidence
from ninefold.report.answer.recommend import excluded, fastest
from ninefold.report.data.cell import Cell, plainness
from ninefold.report.data.rounds import name_of
from ninefold.report.stats.measures import SECONDS
from ninefold.stats.verdicts import UNDECIDED
from ninefold.study_record import StudyRecord


@dataclass(frozen=True)
class TimingState:
    """What is known after the timing rounds so far.

    cells: those to measure further, as the study names them
    settled: whether further timing rounds could not change the answer
    named: the best cell so far, of those whose score is not shown to be worse, as the study names
        it; None without a time
    chance: the confidence that `named` is within `report.same` of the best of them
    """

    cells: list[str]
    settled: bool
    named: str | None
    chance: float | None


def timing_state(found: Sequence[Evidence], sweep: StudyRecord, pairs: str) -> TimingState:
    """Return what is known. found: evidence of the groups in which cells are timed, largest first.

    pairs: "best" asks for the best cell only, "all" for a verdict on every pair.
    """
    if not found:
        return TimingState(sweep.cell_names, False, None, None)
    left = [_left(evidence, pairs) for evidence in found]
    cells = {
        name: run.cell
        for evidence, open_cells in zip(found, left, strict=True)
        for run in evidence.group.timing
        if run.cell in open_cells and (name := name_of(run, sweep))
    }
    candidates = _candidates(found[0])
    best, _, stand = fastest(found[0], candidates) if candidates else (None, None, None)
    runs = [run for run in found[0].group.timing if run.cell == best]
    return TimingState(
        sorted(cells, key=lambda name: (plainness(cells[name]), name)),
        not any(left),
        next(filter(None, (name_of(run, sweep) for run in runs)), best and str(best)),
        stand.chance[best] if best and stand else None,
    )


def _left(evidence: Evidence, pairs: str) -> list[Cell]:
    """The cells of a group that are to be measured further; empty if it is settled."""
    if pairs == "all":
        unclear = {
            cell
            for pair in evidence.comparison.seconds
            if pair.verdict in UNDECIDED and not evidence.bad.keys() & {pair.first, pair.second}
            for cell in (pair.first, pair.second)
        }
        return [cell for cell in evidence.cells if cell in unclear]
    candidates = _candidates(evidence)
    if not candidates:
        return []
    best, _, stand = fastest(evidence, candidates)
    if stand.chance[best] >= 1 - evidence.settings.level:
        return []
    left = [cell for cell in candidates if cell not in stand.out]
    copies = [copy for copy, cell in evidence.copies.items() if cell in left]
    return left + [copy for copy in copies if copy not in left and copy not in evidence.bad]


def _candidates(evidence: Evidence) -> list[Cell]:
    """The cells that may be the answer: timed, and not shown to have a worse score."""
    return [
        cell
        for cell in evidence.values(SECONDS)
        if excluded(cell, evidence) is None and evidence.safe[cell] != "worse"
    ]
