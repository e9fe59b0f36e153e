"""What a comparison is asked, and what it says."""

from __future__ import annotations

from dataclasses import dataclass

OPEN = "not enough runs"


@dataclass(frozen=True)
class Settings:
    """What is asked of a comparison.

    margin: points of accuracy that a cell may lose, and within which accuracies are a tie. same:
    share of time within which cells are a tie. level: the chance of any false verdict in a study.
    looks: how often the verdicts are looked at in all, by which the level is divided. draws: of
    the bootstrap; 0 has Student's intervals, which take less time.
    """

    margin: float = 0.5
    same: float = 0.02
    level: float = 0.05
    looks: int = 1
    baseline: str = "none-fp32"
    draws: int = 1000

    @property
    def confidence(self) -> float:
        """Of the intervals of pairs, in percent."""
        return 100 * (1 - self.level / self.looks)


@dataclass(frozen=True)
class Estimate:
    """One cell's mean, sd (n - 1) and 95 % interval of the mean; None where n has none."""

    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Pair:
    """The second cell against the first, by the n rounds in which both have a value.

    estimate: of seconds the ratio second / first, of accuracy second - first in points. low, high:
    its interval at 1 - level / looks. p: two-sided, of no difference; adjusted: after Holm over
    all pairs of both measures, times the looks. verdict: of seconds "faster", "slower", "tie" or
    "not enough runs"; of accuracy "better" and "worse" instead. needed: seeds in all that would
    settle it, for "not enough runs"; None where that is more than 100 or cannot be known.
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
    """Whether a cell's accuracy is not inferior to the baseline's by the margin or more.

    difference: cell - baseline, in points. low: its one-sided lower bound, at the level that Holm
    leaves to this cell: "safe" is where it lies above -margin. verdict: "safe", "worse" (not safe,
    and worse by the pair's verdict) or "not enough runs", with the seeds needed. p: one-sided, of a
    loss of the margin; None where the two are equal in every round, as where it is not known.
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
    """Two cells that compute the same in the same way: their ratio should be 1.

    floor: the sitting's, the same in each control: the largest departure from 1, as a share, that
    a control's interval reaches. held: whether this control came out as no different; where one
    did not, ratios within the floor have no verdict.
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
    """All pairs by each measure, every cell's safety against the baseline, and the controls."""

    seconds: list[Pair]
    accuracy: list[Pair]
    safety: list[Safety]
    controls: list[Control]
