"""Rounds: when it is looked at what they show, and what is recorded of that."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ninefold.tournament.budget import Budget
from ninefold.tournament.contestant import Contestant, Entries, Pace, WarmUp
from ninefold.tournament.plan import Turn
from ninefold.tournament.rounds import BUDGET, SETTLED, Tournament
from ninefold.tournament.rule import Look


class Timed(Entries):
    """Two contestants whose turn takes half a second, on a clock that only they move."""

    names = "a", "b"

    def __init__(self, done: int = 0) -> None:
        self.done, self.now = done, 0.0

    def start(self, left: Sequence[str], number: int) -> Sequence[Contestant]:
        return [Each(name, self) for name in left]

    def round_ended(self, number: int) -> None:
        self.done += 1


class Each:
    several, turn_seconds, processes = False, 0.1, list[int]()

    def __init__(self, name: str, of: Timed) -> None:
        self.name, self._of = name, of

    def warm_up(self, known: Pace | None) -> WarmUp:
        yield from ()
        return Pace(0.5, 0.5)

    def turn(self, turn: Turn) -> float:
        self._of.now += 0.5
        return 0.5

    def end(self, turns: object, stretch: float | None) -> None:
        pass

    def close(self) -> None:
        pass


def played(
    seconds: float, settled: int = 99, looks: dict[int, float] | None = None, done: int = 0
) -> Tournament:
    """A tournament whose rounds take a second each; it is settled after so many."""
    entries = Timed(done)
    made = Tournament(
        entries, Budget(seconds=seconds, turns=1, room_of_last=1.0),
        lambda: Look(settled=entries.done >= settled), elapsed=float(done), looks=looks,
        clock=lambda: entries.now,
    )  # fmt: skip
    made.run()
    return made


def test_the_share_of_the_time_at_each_look_is_kept_and_the_last_has_it_all() -> None:
    ended = played(10.0)
    assert ended.looks == pytest.approx({3: 0.3, 4: 0.4, 6: 0.6, 8: 0.8, 10: 1.0})
    assert ended.ended == BUDGET


def test_a_look_that_settles_it_is_the_last() -> None:
    ended = played(10.0, settled=4)
    assert ended.looks == pytest.approx({3: 0.3, 4: 0.4})
    assert ended.ended == SETTLED


def test_one_that_goes_on_adds_its_looks_to_those_before() -> None:
    before = {3: 0.5, 4: 0.7, 6: 1.0}
    assert played(9.0, looks=before, done=6).looks == {3: 0.5, 4: 0.7, 6: 1.0, 8: 8 / 9, 9: 1.0}
