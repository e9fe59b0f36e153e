"""The settings and the results of a comparison of cells."""

from __future__ import annotations

from dataclasses import dataclass

OPEN = "not enough runs"
OTHER_HOSTS = "times of different hosts"


@dataclass(frozen=True)
class Settings:
    """The settings of a comparison.

    margin: percentage points of the score that a cell may lose; within them, scores tie
    same: share of time within which cells tie
    level: the chance of any false verdict in a study
    looks: how often the verdicts are evaluated in all; the level is divided by it
    score_looks: the same of the scores, where they are not evaluated as often; None: as often
    baseline: the cell whose score the others must reach
    """

    margin: float = 0.5
    same: float = 0.02
    level: float = 0.05
    looks: int = 1
    score_looks: int | None = None
    baseline: str = "none-fp32"

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
    estimate: of seconds the ratio second / first, of scores second - first in points
    low, high: its interval at confidence 1 - level / looks
    p: two-sided, of no difference
    adjusted: p after Holm over all pairs of both measures, times the looks
    verdict: "tie", "not enough runs", and "faster", "slower" (seconds) or "better", "worse"
        (scores); "times of different hosts" (seconds) if the runs of the two were not made on the
        same hosts, so that there is nothing to compare
    needed: seeds in all that would settle "not enough runs"; None if more than 100 or unknown
    """

    first: str
    second: str
    n: int
    estimate: float | None
    low: float | None
    high: float | None
    p: float | None
    adjusted: float | None
    verdict: str
    needed: int | None


@dataclass(frozen=True)
class Safety:
    """Non-inferiority of a cell's score: it is not below the baseline's by the margin or more.

    n: rounds in which both have a value
    difference: cell - baseline, in points
    low: its one-sided lower bound, at the level that Holm leaves to this cell
    p: one-sided, of a loss of the margin; None if unknown, or equal in every round
    adjusted: p after Holm, times the looks
    verdict: "safe" (low is above -margin), "worse" (by the verdict of the pair) or "not enough
        runs"
    needed: seeds in all that would settle "not enough runs"; None if more than 100 or unknown
    """

    cell: str
    n: int
    difference: float | None
    low: float | None
    p: float | None
    adjusted: float | None
    verdict: str
    needed: int | None


@dataclass(frozen=True)
class Control:
    """A/A control: two cells that do the same work, so that their ratio of seconds should be 1.

    ratio, low, high: second / first with its interval
    floor: the noise floor, the same in all controls: the largest distance from 1, as a share,
        that the interval of a control reaches
    held: whether the two do not differ; if one control fails, ratios within the floor have no
        verdict
    """

    first: str
    second: str
    ratio: float
    low: float
    high: float
    floor: float
    held: bool


@dataclass(frozen=True)
class Comparison:
    """All pairs by each measure, the safety of each cell's score, and the controls."""

    seconds: list[Pair]
    accuracy: list[Pair]
    safety: list[Safety]
    controls: list[Control]
