"""Which turns count: by what other programs used, and by no time."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from ninefold.tournament.taken import TakenTurn, TurnLog, counted

CELLS = {"a": 1.0, "b": 2.0, "c": 3.0}  # seconds of a step
Share = Callable[[int, int, str], float]  # of a round, a turn and a name


def log(others: Share, slow: Share = lambda number, turn, name: 1.0) -> list[TakenTurn]:
    """Four rounds of five turns of CELLS. slow: times that a turn takes longer."""
    draw, found = np.random.default_rng(0), TurnLog()
    for number, turn, (name, seconds) in product(range(4), range(5), CELLS.items()):
        took = seconds * slow(number, turn, name) * draw.normal(1, 0.02)
        found.add(name, number, seconds=took, steps=1, others=others(number, turn, name))
    return found.turns


def left_out(turns: list[TakenTurn]) -> dict[str, set[tuple[int, int, str]]]:
    """The turns that do not count, by the reason: round, turn, name."""
    found: dict[str, set[tuple[int, int, str]]] = {}
    for turn in counted(turns).turns:
        if turn.left_out is not None:
            found.setdefault(turn.left_out, set()).add((turn.round, turn.turn, turn.name))
    return found


def quiet(number: int, turn: int, name: str) -> float:
    return 0.0


def test_on_a_quiet_machine_every_turn_counts_however_long_its_own_time_is():
    alone = log(quiet, slow=lambda n, t, name: 99.0 if (n, t, name) == (1, 2, "b") else 1.0)
    of_all = log(quiet, slow=lambda n, t, name: 1.6 if n == 1 and t in (1, 2, 3) else 1.0)
    assert left_out(alone) == left_out(of_all) == {}  # all are slow with a heavy batch


def test_a_turn_beside_which_other_programs_used_a_tenth_of_the_cpus_is_left_out():
    found = left_out(log(others=lambda n, t, name: 0.11 if (n, t) == (1, 2) else 0.09))
    assert found == {"other programs": {(1, 2, name) for name in CELLS}}


def test_where_most_turns_are_disturbed_every_turn_counts():
    found = counted(log(others=lambda n, t, name: 0.2 if t < 3 else 0.0))
    assert found.busy
    assert found.left_out == 0
    assert found.disturbed == pytest.approx(0.6)


def test_a_name_without_a_turn_that_counts_misses_the_round():
    found = counted(log(others=lambda n, t, name: 0.2 if n == 1 and name == "b" else 0.0))
    rounds = {name: set(of) for name, of in found.seconds().items()}
    assert rounds == {"a": {0, 1, 2, 3}, "b": {0, 2, 3}, "c": {0, 1, 2, 3}}


def test_bursts_of_other_programs_leave_ratios_as_they_are_on_the_quiet_machine():
    bursts = ((0, 1), (1, 4), (3, 0))
    found = counted(
        log(
            others=lambda n, t, name: 0.5 if (n, t) in bursts else 0.01,
            slow=lambda n, t, name: (30.0 if name == "a" else 3.0) if (n, t) in bursts else 1.0,
        )
    ).seconds()
    for name, number in product(CELLS, range(4)):
        assert found[name][number] == pytest.approx(CELLS[name], rel=0.03)
