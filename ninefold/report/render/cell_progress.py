"""How the cells of a study stand so far, as text for the table that is shown while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ninefold.report.answer.evidence import Evidence, gather_evidence
from ninefold.report.data.cell import PLAIN
from ninefold.report.data.cells import groups
from ninefold.report.data.rounds import name_of
from ninefold.report.data.runs import Run
from ninefold.report.numbers import decimals_for, decimals_of_score, spread, times
from ninefold.report.stats.measures import SECONDS
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import UNDECIDED
from ninefold.study_record import StudyRecord

WIDEST = 10  # times the lower end of an interval; a wider one is not shown


@dataclass(frozen=True)
class CellProgress:
    """One cell so far. A text is empty where nothing is known.

    cell: what the study calls it.
    runs: how many of its runs are in these figures.
    status: of the first run that ended badly, None without one.
    seconds: of an epoch, the mean and half of its 95 % interval: `1.23 ± 0.04`.
    ratio, interval: of these seconds to none-fp32's: `×0.912`, `0.882 to 0.94`.
    time: the verdict on that ratio: faster, slower or tie.
    score: as the seconds; in percent if it is a share.
    safety: the verdict on the score: safe or worse.
    """

    cell: str
    runs: int
    status: str | None
    seconds: str = ""
    ratio: str = ""
    interval: str = ""
    time: str = ""
    score: str = ""
    safety: str = ""


def standings(runs: Sequence[Run], sweep: StudyRecord) -> list[CellProgress]:
    """Return a row for each cell with runs, in each group of comparable runs."""
    return [
        row
        for group in groups(runs)
        for row in _rows(gather_evidence(group, (), sweep, None), sweep)
    ]


def _rows(evidence: Evidence, sweep: StudyRecord) -> list[CellProgress]:
    seconds, scores = SECONDS.values(evidence.group), evidence.scores
    decimals = decimals_for(min((min(known.values()) for known in seconds.values()), default=1.0))
    compared, unit = evidence.comparison, evidence.group.scoring.mark
    means = [estimate(known) for known in scores.values()]
    of_score = decimals_of_score(unit, [one.mean for one in means], [one.sd for one in means])
    rows = []
    for cell in evidence.cells:
        own = evidence.group.of(cell)
        value, low, high = compared.ratio(PLAIN, cell) or (None, None, None)
        rows.append(
            CellProgress(
                name_of(own[0], sweep) or str(cell),
                max(len(seconds.get(cell, ())), len(scores.get(cell, ()))),
                evidence.failed.get(cell),
                _mean(seconds.get(cell, {}), decimals),
                "" if value is None else times(value, 3),
                _interval(low, high),
                "" if cell == PLAIN else _known(compared.verdict(PLAIN, cell)),
                _mean(scores.get(cell, {}), of_score),
                "" if cell == PLAIN else _known(evidence.safe[cell]),
            )
        )
    return rows


def _mean(values: Mapping[int, float], decimals: int) -> str:
    found = estimate(values)
    if found.mean is None:
        return ""
    return spread(found.mean, None if found.high is None else found.high - found.mean, decimals)


def _interval(low: float | None, high: float | None) -> str:
    """An interval of a ratio; empty if it says nothing, as after two rounds."""
    if low is None or high is None or high > WIDEST * low:
        return ""
    return f"{low:.3g} to {high:.3g}"


def _known(verdict: str) -> str:
    return "" if verdict in UNDECIDED else verdict
