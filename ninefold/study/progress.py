"""How the cells of a study stand so far, for the table that is shown while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ninefold.answer.cell import PLAIN, Cell
from ninefold.answer.fields import Field, word
from ninefold.answer.gather import facts_of_study
from ninefold.answer.measures import SECONDS
from ninefold.answer.runs import Run, name_of
from ninefold.answer.study_facts import StudyFacts
from ninefold.numbers import decimals_for, decimals_of_score, number
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import OPEN, UNDECIDED
from ninefold.study_record import StudyRecord


@dataclass(frozen=True)
class CellProgress:
    """One cell so far. A field is empty where nothing is known, and has a word once it is decided.

    cell: what the study calls it.
    runs: how many of its runs are in these figures.
    status: of the first run that ended badly, None without one.
    seconds: of an epoch, the mean and half of its 95 % interval: `1.23 ± 0.04`.
    speedup: over none-fp32, with the interval and the verdict.
    score: as the seconds, with the verdict; in percent if it is a share.
    """

    cell: str
    runs: int
    status: str | None
    seconds: str
    speedup: Field
    score: Field

    @property
    def texts(self) -> dict[str, str]:
        """Its fields as text, by the titles of their columns."""
        return {
            "configuration": self.cell,
            "s/epoch": self.seconds,
            "speedup": str(self.speedup),
            "score": str(self.score),
            "runs": f"{self.runs} {self.status or ''}".rstrip(),
        }


def progress(runs: Sequence[Run], sweep: StudyRecord) -> list[CellProgress]:
    """Return a row for each cell with runs, in each group of comparable runs."""
    return [row for facts in facts_of_study(runs, sweep) for row in _rows(facts)]


def _rows(facts: StudyFacts) -> list[CellProgress]:
    seconds, scores = SECONDS.values(facts.group), facts.scores
    decimals = decimals_for(min((min(known.values()) for known in seconds.values()), default=1.0))
    means = [estimate(known) for known in scores.values()]
    of_score = decimals_of_score(
        facts.group.scoring.mark, [one.mean for one in means], [one.sd for one in means]
    )

    def row(cell: Cell) -> CellProgress:
        speed, score = facts.speedup(cell), _mean(scores.get(cell, {}), of_score)
        return CellProgress(
            name_of(facts.group.of(cell)[0], facts.sweep) or str(cell),
            max(len(seconds.get(cell, ())), len(scores.get(cell, ()))),
            facts.failed.get(cell),
            _mean(seconds.get(cell, {}), decimals),
            _judged(number(speed.value, 2), speed.interval, speed.verdict) if speed else Field(""),
            _judged(score, "", OPEN if cell == PLAIN else facts.safe[cell]),
        )

    return [row(cell) for cell in facts.cells]


def _mean(values: Mapping[int, float], decimals: int) -> str:
    found = estimate(values)
    if found.mean is None:
        return ""
    spread = "" if found.half is None else f" ± {number(found.half, decimals)}"
    return f"{number(found.mean, decimals)}{spread}"


def _judged(text: str, more: str, verdict: str) -> Field:
    return Field(text, more, None if verdict in UNDECIDED or not text else word(verdict))
