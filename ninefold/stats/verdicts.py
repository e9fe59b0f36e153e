"""The settings and the results of a comparison of cells."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Name = Any  # of what is compared: a Cell, or another thing that can be told from others
Ratio = tuple[float, float | None, float | None]  # ratio, low and high end of its interval
OPEN = "open"
WITHIN = "below the noise floor"
UNDECIDED = OPEN, WITHIN
PASSED, FAILED, NOT_SHOWN = "passed", "failed", "not shown"  # the states of a control


@dataclass(frozen=True)
class Settings:
    """The settings of a comparison.

    margin: what a cell may lose of the score, in its unit, of a share in percentage points; within
        it, scores tie
    better: which scores are better, more or less
    same: share of time within which cells tie
    level: the chance of any false verdict in a study
    looks: how often the verdicts are evaluated in all; the level is divided by it
    score_looks: the same of the scores, where they are not evaluated as often; None: as often
    baseline: the cell whose score the others must reach; None: they are not held against one
    """

    margin: float = 0.5
    same: float = 0.02
    level: float = 0.05
    looks: int = 1
    score_looks: int | None = None
    baseline: Name = None
    better: str = "more"

    @property
    def confidence(self) -> float:
        """The confidence of the intervals of pairs, in percent."""
        return 100 * (1 - self.level / self.looks)

    @property
    def score_confidence(self) -> float:
        """The same of the scores."""
        return 100 * (1 - self.level / (self.score_looks or self.looks))


@dataclass(frozen=True)
class Estimate:
    """Mean, standard deviation (n - 1) and 95 % interval of one cell; None if n is too small."""

    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Pair:
    """The second cell compared with the first.

    n: rounds in which both have a value
    estimate: of seconds the ratio second / first, of scores second - first
    low, high: its interval at confidence 1 - level / looks; None while it is not known, as one of
        seconds is that reaches beyond three times the estimate
    p: two-sided, of no difference
    adjusted: p after Holm over all pairs of both measures, times the looks
    verdict: "tie", "open", and "faster", "slower" (seconds) or "better", "worse"
        (scores); "below the noise floor" (seconds) if the runs would show faster or slower, by
        less than the controls can tell from a fault of the measurement
    """

    first: Name
    second: Name
    n: int
    estimate: float | None
    low: float | None
    high: float | None
    p: float | None
    adjusted: float | None
    verdict: str

    @property
    def turned(self) -> Pair:
        """This pair of seconds the other way round."""
        estimate, high, low = (end and 1 / end for end in (self.estimate, self.low, self.high))
        said = {"faster": "slower", "slower": "faster"}.get(self.verdict, self.verdict)
        return Pair(
            self.second, self.first, self.n, estimate, low, high, self.p, self.adjusted, said
        )


@dataclass(frozen=True)
class Safety:
    """Non-inferiority of a cell's score: it is not worse than the baseline's by the margin or more.

    n: rounds in which both have a value
    difference: cell - baseline, in the unit of the score; in percentage points if a share
    low: its one-sided bound on the side of a loss, at the level that Holm leaves to this cell: the
        lower one where more is better, else the upper one
    p: one-sided, of a loss of the margin; None if unknown, or equal in every round
    adjusted: p after Holm, times the looks
    verdict: "safe" (low is a loss of less than the margin), "worse" (by the verdict of the pair) or
        "open"
    """

    cell: Name
    n: int
    difference: float | None
    low: float | None
    p: float | None
    adjusted: float | None
    verdict: str


@dataclass(frozen=True)
class Control:
    """The A/A control: cells that do the same work, whose ratio of seconds should be 1.

    Each round gives one number, the mean over the pairs. Source of the states: two one-sided tests
    (Schuirmann 1987).

    pairs: of cells that do the same work
    n: rounds in which a pair has both times
    ratio: second / first, the geometric mean
    low, high: its 95 % interval; None while it is not known
    state: "passed" if the 90 % interval is inside the range of ties, "failed" if the 95 % interval
        is outside of it, else "not shown"
    resolution: the farther end of the 95 % interval from 1, as a share: a smaller difference
        between two cells may be a fault of the measurement; None while it is not known
    """

    pairs: list[tuple[Name, Name]]
    n: int
    ratio: float
    low: float | None
    high: float | None
    state: str
    resolution: float | None


@dataclass(frozen=True)
class Steady:
    """Steady-state control: the step of a cell in its turns over that in a long stretch alone.

    n: processes that trained such a stretch after their turns
    ratio, low, high: the geometric mean with its 95 % interval; None while it is not known
    state: as of a Control
    """

    cell: Name
    n: int
    ratio: float
    low: float | None
    high: float | None
    state: str


@dataclass(frozen=True)
class Comparison:
    """All pairs by each measure, the safety of each cell's score, and the controls.

    control: None where no cells do the same work
    floor: the noise floor: the share within which ratios of seconds are neither faster nor slower:
        the resolution of the control, and what failed steady-state controls are off by
    """

    seconds: list[Pair]
    accuracy: list[Pair]
    safety: list[Safety]
    control: Control | None = None
    steady: list[Steady] = field(default_factory=list)
    floor: float = 0.0

    def verdict(self, first: Name, second: Name) -> str:
        """Return how the seconds of `second` compare with those of `first`: see `Pair`."""
        pair = self._pairs.get((first, second))
        return "tie" if first == second else OPEN if pair is None else pair.verdict

    def ratio(self, first: Name, second: Name) -> Ratio | None:
        """Return the ratio of seconds second / first and its interval, None where not known."""
        pair = self._pairs.get((first, second))
        return (pair.estimate, pair.low, pair.high) if pair and pair.estimate else None

    @cached_property
    def _pairs(self) -> dict[tuple[Name, Name], Pair]:
        both = [*(pair.turned for pair in self.seconds), *self.seconds]
        return {(pair.first, pair.second): pair for pair in both}
