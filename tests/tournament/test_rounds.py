"""Rounds: when it is looked at what they show, and what is recorded of that."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ninefold.bench.rounds import budget_of
from ninefold.tournament.budget import Budget
from ninefold.tournament.contestant import Contestant, Entries, Look, Pace, WarmUp
from ninefold.tournament.plan import Asked, Turn
from ninefold.tournament.rounds import BUDGET, DECIDED, Tournament


class Timed(Entries):
    """Two contestants whose turn takes half a second, on a clock that only they move.

    at_first: seconds of a step of their first warm-up.
    """

    names = "a", "b"
    at_first = 0.5

    def __init__(self, done: int = 0) -> None:
        self.done, self.now = done, 0.0

    def start(self, left: Sequence[str], number: int) -> Sequence[Contestant]:
        return [Each(name, self) for name in left]

    def round_ended(self, number: int) -> None:
        self.done += 1


class Each:
    processes, readers, waits = list[int](), 0, False

    def __init__(self, name: str, of: Timed) -> None:
        self.name, self._of, self.steps = name, of, None

    def asks(self, step: float) -> Asked:
        return Asked(step, 0.1, several=False, workers=self.readers)

    def warm_up(self, known: Pace | None) -> WarmUp:
        yield from ()
        return known or Pace(self._of.at_first, self._of.at_first)

    def turn(self, turn: Turn) -> float:
        self._of.now += 0.5
        return 0.5

    def end(self, turns: object, stretch: float | None) -> None:
        pass

    def close(self) -> None:
        pass


def played(
    seconds: float, decided: int = 99, looks: dict[int, float] | None = None, done: int = 0
) -> Tournament:
    """A tournament whose rounds take a second each; it is decided after so many."""
    entries = Timed(done)
    made = Tournament(
        entries, Budget(seconds=seconds, turns=1),
        lambda: Look(entries.done >= decided), elapsed=float(done), looks=looks,
        clock=lambda: entries.now,
    )  # fmt: skip
    made.run()
    return made


def test_the_share_of_the_time_at_each_look_is_kept_and_the_last_has_it_all() -> None:
    ended = played(10.0)
    assert ended.looks == pytest.approx({3: 0.3, 4: 0.4, 6: 0.6, 8: 0.8, 10: 1.0})
    assert ended.ended == BUDGET


def test_a_look_that_settles_it_is_the_last() -> None:
    ended = played(10.0, decided=4)
    assert ended.looks == pytest.approx({3: 0.3, 4: 0.4})
    assert ended.ended == DECIDED


def test_one_that_goes_on_adds_its_looks_to_those_before() -> None:
    before = {3: 0.5, 4: 0.7, 6: 1.0}
    found = played(9.0, looks=before, done=6)
    assert found.looks == {**before, 8: 8 / 6, 9: 9 / 6}  # rounds, as a share of those at the end


def test_a_first_warm_up_that_was_disturbed_does_not_end_a_comparison() -> None:
    entries = Timed()
    entries.at_first = 20.0  # forty times as long as what its turns then take
    made = Tournament(
        entries, Budget(seconds=30.0), lambda: Look(entries.done >= 3), clock=lambda: entries.now
    )
    made.run()
    assert made.ended == DECIDED


class Machine(Entries):
    """Commands with steps of so many seconds; one has eight workers, and warms up longer.

    turns: all that were taken, by round: who, how many steps it had taken, and the turn. starts:
    who was started, in each round.
    """

    names = "a", "b", "c"

    def __init__(self, minutes: float = 2.0) -> None:
        self.done, self.now = 0, 0.0
        self.turns, self.starts = list[list[tuple[str, int, Turn]]](), list[list[str]]()
        self.made = Tournament(
            self, budget_of(60 * minutes), lambda: Look(False), clock=lambda: self.now
        )
        self.made.run()

    def start(self, left: Sequence[str], number: int) -> Sequence[Contestant]:
        self.now += 4.0
        self.turns.append([])
        self.starts.append([*left])
        return [Command(name, self) for name in left]

    def round_ended(self, number: int) -> None:
        self.done += 1

    def orders(self, number: int) -> list[list[str]]:
        """Who took the first, the second ... turn of a round."""
        names = [name for name, _, turn in self.turns[number] if turn.counted]
        return [names[start : start + 3] for start in range(0, len(names), 3)]


class Command(Each):
    def __init__(self, name: str, of: Machine) -> None:
        self.name, self._of = name, of
        self.step = {"a": 0.05, "b": 0.07, "c": 0.03}[name]
        self.readers, self.steps = (8 if name == "b" else 0), (40 if name == "c" else 11)

    def warm_up(self, known: Pace | None) -> WarmUp:
        yield from ()
        return Pace(self.step, self.step)

    def turn(self, turn: Turn) -> float:
        self._of.turns[-1].append((self.name, self.steps, turn))
        self.steps += turn.steps
        self._of.now += turn.steps * self.step
        return self.step


def test_in_a_round_all_take_the_same_steps_in_as_many_turns_after_as_many_steps() -> None:
    made = Machine()
    assert made.done >= 3
    begins = set()
    for taken in made.turns:
        by_name = {
            name: [(steps, turn.lead, turn.timed) for own, steps, turn in taken if own == name
                   and turn.counted]
            for name in made.names
        }  # fmt: skip
        assert by_name["a"] == by_name["b"] == by_name["c"]
        assert len(by_name["a"]) >= 2
        assert len(by_name["a"]) % 2 == 0
        assert all(timed >= 8 for *_, timed in by_name["a"])  # a step of each worker
        begins.add(by_name["a"][0][0])
    assert len(begins) > 1  # where turns begin is drawn


class Apart(Machine):
    """Each alone in its round, and one a hundred times as fast as the others."""

    def start(self, left: Sequence[str], number: int) -> Sequence[Contestant]:
        (each,) = super().start(left[:1], number)
        assert isinstance(each, Command)
        if each.name == "c":
            each.step, each.steps = 0.0005, 2000
        return [each]


def test_what_is_started_alone_does_not_catch_up_with_one_that_is_many_times_faster() -> None:
    taken = [each for turns in Apart().turns for each in turns]
    assert max(turn.steps for name, _, turn in taken if name == "a" and not turn.counted) < 100


def test_each_second_round_and_each_second_turn_have_the_orders_before_reversed() -> None:
    made = Machine()
    for number in range(made.done):
        orders = made.orders(number)
        assert all(orders[n + 1] == orders[n][::-1] for n in range(0, len(orders), 2))
        if number % 2:
            shared = zip(orders, made.orders(number - 1), strict=False)
            assert all(now == then[::-1] for now, then in shared)
            assert made.starts[number] == made.starts[number - 1][::-1]


def test_two_comparisons_have_other_orders_and_each_tells_its_seed() -> None:
    made = [Machine() for _ in range(4)]
    assert len({str(each.starts) for each in made}) > 1
    assert len({each.made.seed for each in made}) == len(made)


def test_where_three_rounds_do_not_fit_into_one_and_a_half_times_the_time_it_ends_after_one() -> (
    None
):
    assert played(2.0).looks == {3: 1.0}
    found = played(1.9)
    assert (found.ended, found.looks, found.elapsed) == (BUDGET, {}, 1.0)
