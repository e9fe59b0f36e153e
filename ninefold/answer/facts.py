"""Facts: what is known of contestants that were compared, by the turns that they took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ninefold.stats.best import Standing, standing
from ninefold.stats.looks import looks_until
from ninefold.stats.statistics import compare
from ninefold.stats.verdicts import Comparison, Name, Settings, Timings, Values
from ninefold.tournament.taken import Counted, TakenTurn, counted
from ninefold.types import LEAST_ROUNDS


@dataclass(frozen=True)
class Facts:
    """What a decision rests on.

    settings: thresholds of the statistics; `baseline`: see `simplicity`.
    timings: seconds of a step, or of more, at each look, of which the last one is now.
    turns: all that were taken, with those that count.
    comparison: the verdicts on every pair.
    safe: the verdict on each one's score, safe, worse or open; of a name that is missing none was
        asked.
    copies: those that repeat the work of another one, and whose.
    measured_with: those of them that check the measurement, so that they are measured as long as
        the other one is.
    """

    settings: Settings
    timings: Sequence[Timings]
    turns: Counted
    comparison: Comparison
    safe: Mapping[Name, str] = field(default_factory=dict)
    copies: Mapping[Name, Name] = field(default_factory=dict)
    measured_with: Mapping[Name, Name] = field(default_factory=dict)

    @property
    def seconds(self) -> Values:
        """Seconds by name and round; who has no round yet may have an empty entry."""
        return self.timings[-1].seconds

    @property
    def few(self) -> bool:
        """Whether there are fewer rounds than an answer takes."""
        return max(map(len, self.seconds.values()), default=0) < LEAST_ROUNDS

    def excluded(self, name: Name) -> str | None:
        """Return why one is out whatever its numbers are; None: it is not."""
        return None

    def simplicity(self, name: Name) -> object:
        """Return a key that sorts names, the simplest first: that is named among equals."""
        return name != self.settings.baseline

    def verdict(self, first: Name, second: Name) -> str:
        """Return how the time of `second` compares with that of `first`: see `verdicts.Pair`."""
        return self.comparison.verdict(first, second)

    def standing(self, candidates: Sequence[Name]) -> Standing:
        """Return how candidates stand against the fastest of them."""
        names, floor = list(self.seconds), self.comparison.floor
        return standing(names, self.comparison.looks, candidates, floor)


def facts_of(
    names: Sequence[Name],
    turns: Sequence[TakenTurn],
    looks: Mapping[int, float],
    rounds: int,
    settings: Settings,
    **more: Any,
) -> Facts:
    """Return the facts of contestants without scores. names: all. Others: as of `timings_of`."""
    found = timings_of(turns, looks, rounds, **more)
    timings = [replace(t, seconds={n: t.seconds.get(n, {}) for n in names}) for t in found]
    now = counted([turn for turn in turns if turn.round < rounds])
    return Facts(settings, timings, now, compare(timings, {}, settings))


def timings_of(
    turns: Sequence[TakenTurn],
    looks: Mapping[int, float],
    rounds: int,
    stretches: Values | None = None,
    waits: Collection[Name] = (),
    work: Mapping[Name, float] | None = None,
) -> list[Timings]:
    """Return the seconds of a step, by name and round, as they were known at each interim look.

    They are the means over a round's turns (the short times in which one contestant trains and the
    others are paused), without turns that were disturbed as far as that look could tell.

    turns: all that were taken. looks, rounds: as of `looks_until`. stretches: seconds of a step in
    a second or more without a pause, by name and round. waits: contestants whose GPU waits for the
    CPU to queue its work. work: what a step does, such as its number of examples, by name: its
    seconds are divided by that; 1 where it is missing.
    """
    work = defaultdict(lambda: 1.0, work or {})

    def until(number: int, values: Values) -> Values:
        return {
            name: {n: each / work[name] for n, each in of.items() if n < number}
            for name, of in values.items()
        }

    return [
        Timings(
            until(number, counted([turn for turn in turns if turn.round < number]).seconds()),
            until(number, stretches or {}),
            waits,
            shares,
        )
        for number, shares in looks_until(looks, rounds)
    ]
