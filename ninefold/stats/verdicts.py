"""The settings and the results of a comparison of cells."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ninefold.stats.looks import level_at

Name = Any  # of what is compared: a Cell, or another thing that can be told from others
Values = Mapping[Name, Mapping[int, float]]  # cell -> round or seed -> value
OPEN = "open"
WITHIN = "below the noise floor"
UNDECIDED = OPEN, WITHIN
PASSED, FAILED, INCONCLUSIVE = "passed", "failed", "inconclusive"  # the states of a control


@dataclass(frozen=True)
class Settings:
    """The settings of a comparison.

    margin: what a cell may lose of the score, in its unit, of a share in percentage points; within
        it, scores tie
    better: which scores are better, more or less
    same: share of time within which cells tie
    level: the chance of any false verdict on times in a study, and of any on scores
    shares: of the time, at each look at the times, of which the last is this one; none: it is the
        only one that there will be
    looks: how often the scores have been looked at, this time included: it has that part of the
        level
    baseline: the cell whose score the others must reach; None: they are not held against one
    asked: the pairs of times that are tested, others have no verdict but a tie; None: all
    """

    margin: float = 0.5
    same: float = 0.02
    level: float = 0.05
    shares: Sequence[float] = ()
    looks: int = 1
    baseline: Name = None
    better: str = "more"
    asked: Collection[frozenset[Name]] | None = None

    @property
    def confidence(self) -> float:
        """The confidence, in percent, that an interval holds in all looks of a study."""
        return 100 * (1 - self.level)

    def level_of_look(self, tests: int = 1) -> float:
        """Return the level of so many tests of times together, at this look."""
        return tests * level_at(self.shares, self.level / tests)


@dataclass(frozen=True)
class Timings:
    """The seconds of a step, or of more, that are known at a look, by cell and round.

    stretches: of a long stretch alone after the turns. waits: cells that wait for the host: they
    and what is compared with them are compared by their stretches, as turns are unlike a long run
    of such a cell. shares: as of `Settings`.
    """

    seconds: Values
    stretches: Values = field(default_factory=dict)
    waits: Collection[Name] = ()
    shares: Sequence[float] = ()


@dataclass(frozen=True)
class Estimate:
    """Mean, standard deviation (n - 1) and 95 % interval of one cell; None if n is too small."""

    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None

    @property
    def half(self) -> float | None:
        """Half of the interval; None where it is not known."""
        return None if self.high is None or self.mean is None else self.high - self.mean


@dataclass(frozen=True)
class Difference:
    """What the values of the second cell are more than those of the first, in their unit.

    n: rounds, or seeds, in which both have a value
    difference: second - first
    low, high: its interval at the level of this look; None while it is not known. Of a pair that is
        open it reaches 0, also where the number of pairs keeps the verdict open
    p: two-sided, of no difference
    adjusted: p after Holm over all pairs that do different work, over the share of the level that
        this look has
    verdict: "tie", "open", and of scores "better" or "worse"
    """

    first: Name
    second: Name
    n: int
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    adjusted: float | None
    verdict: str


@dataclass(frozen=True)
class Pair:
    """How many times as fast the second cell is as the first.

    rounds: in which both have a value
    speedup: of the second over the first, above 1 if the second is faster
    low, high: its interval; None while it is not known, as of fewer than LEAST_ROUNDS rounds,
        and as one is that reaches beyond three times the speedup
    p, adjusted: as of a Difference
    verdict: "tie", "open", "faster" or "slower"; "below the noise floor" if the runs would show
        faster or slower, by less than the controls can tell from a fault of the measurement
    """

    first: Name
    second: Name
    rounds: int
    speedup: float | None
    low: float | None
    high: float | None
    p: float | None
    adjusted: float | None
    verdict: str

    @classmethod
    def of(cls, logs: Difference) -> Pair:
        """The pair of a difference of the logarithms of seconds."""
        speedup, high, low = (
            None if log is None else math.exp(-log)
            for log in (logs.difference, logs.low, logs.high)
        )
        return cls(
            logs.first, logs.second, logs.n, speedup, low, high, logs.p, logs.adjusted, logs.verdict
        )

    def after(self, before: Pair) -> Pair:
        """This pair with what an earlier look has shown of it.

        The intervals of all looks hold together, so what is known lies in all of them; where they
        have nothing in common, as times have changed since, the earlier one stands.
        """
        lows = [end for end in (before.low, self.low) if end is not None]
        highs = [end for end in (before.high, self.high) if end is not None]
        low, high = max(lows, default=None), min(highs, default=None)
        verdict = self.verdict if before.verdict in UNDECIDED else before.verdict
        if low is not None and high is not None and low > high:
            low, high, verdict = before.low, before.high, before.verdict
        speedup = self.speedup
        if speedup is not None and low is not None and high is not None:
            speedup = min(max(speedup, low), high)
        return replace(self, speedup=speedup, low=low, high=high, verdict=verdict)

    @property
    def turned(self) -> Pair:
        """This pair the other way round."""
        speedup, high, low = (end and 1 / end for end in (self.speedup, self.low, self.high))
        said = {"faster": "slower", "slower": "faster"}.get(self.verdict, self.verdict)
        return Pair(
            self.second, self.first, self.rounds, speedup, low, high, self.p, self.adjusted, said
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
    """The A/A control: cells that do the same work, whose speedup should be 1.

    Source of the states: two one-sided tests (Schuirmann 1987).

    pairs: of cells that do the same work
    rounds: in which a pair has both times
    speedup: of the second over the first, the geometric mean
    low, high: its 95 % interval; None while it is not known
    state: "passed" if the 90 % interval is inside the range of ties, "failed" if the 95 % interval
        is outside of it, else "inconclusive"
    """

    pairs: list[tuple[Name, Name]]
    rounds: int
    speedup: float
    low: float | None
    high: float | None
    state: str


@dataclass(frozen=True)
class Comparison:
    """All pairs by each measure, the safety of each cell's score, and the controls.

    control: None where no cells do the same work
    floor: the noise floor: the share within which a speedup is neither faster nor slower: what
        the control shows that the measurement is off by
    looks: the `differences.Differences` of the logarithms of seconds at each look, and its settings
    """

    seconds: list[Pair]
    score: list[Difference]
    safety: list[Safety]
    control: Control | None = None
    floor: float = 0.0
    looks: Sequence[tuple[Any, Settings]] = field(default=(), repr=False)

    def verdict(self, first: Name, second: Name) -> str:
        """Return how the speed of `second` compares with that of `first`: see `Pair`."""
        pair = self.pair(first, second)
        return "tie" if first == second else OPEN if pair is None else pair.verdict

    def pair(self, first: Name, second: Name) -> Pair | None:
        """Return `second` compared with `first`; None without such a pair."""
        return self._pairs.get((first, second))

    @cached_property
    def _pairs(self) -> dict[tuple[Name, Name], Pair]:
        both = [*(pair.turned for pair in self.seconds), *self.seconds]
        return {(pair.first, pair.second): pair for pair in both}
