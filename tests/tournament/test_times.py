"""The answer of what took turns: one table, which agrees with its own speedups."""

from __future__ import annotations

import pytest

from ninefold.answer.facts import facts_of
from ninefold.answer.times import times
from ninefold.stats.verdicts import Settings
from ninefold.tournament.taken import TakenTurn


def test_the_seconds_of_a_table_do_not_contradict_its_speedups() -> None:
    """In the last round b has a single turn, which took five times as long; a misses the first."""
    turns = [
        TakenTurn(
            name=name, round=number, turn=turn, seconds=seconds * (1 + 0.02 * (turn % 3)), steps=1
        )
        for number in range(5)
        for name, seconds in (("a", 2.0), ("b", 1.0))
        for turn in range(12)
        if (name, number) not in (("b", 4), ("a", 0))
    ]
    turns.append(TakenTurn(name="b", round=4, turn=0, seconds=5.0, steps=1))
    found = times(facts_of(["a", "b"], turns, {}, 5, Settings(baseline="a")))
    pair = found.pair("a", "b")
    assert pair is not None
    assert pair.speedup == pytest.approx(found.seconds["a"] / found.seconds["b"])
