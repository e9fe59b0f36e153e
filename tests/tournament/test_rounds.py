"""Rounds: when it is looked at what they show, and what is recorded of that."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ninefold.answer import next_steps
from ninefold.bench.rounds import budget_of
from ninefold.stats.looks import looks_until
from ninefold.study.timing import budget_of as study_budget
from ninefold.study_record import Round, StudyRecord
from ninefold.tournament.budget import MOST_ROUNDS, Budget
from ninefold.tournament.contestant import Contestant, Entries, Look, Pace, WarmUp
from ninefold.tournament.plan import Asked, Turn
from ninefold.tournament.rounds import BUDGET, DECIDED, Tournament


class Timed(Entries):
    """Contestants whose turn takes half a second, on a clock that only they move.

    at_first: seconds of a step of their first warm-up. started: who was started in each round.
    """

    names: Sequence[str] = ("a", "b")
    at_first = 0.5

    def __init__(self, done: int = 0) -> None:
        self.done, self.now, self.started = done, 0.0, list[Sequence[str]]()

    def start(self, left: Sequence[str], number: int) -> Sequence[Contestant]:
        self.started.append([*left])
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


def test_one_that_goes_on_looks_again_at_what_it_knew_and_spends_no_level_on_it() -> None:
    before = {3: 0.6, 4: 0.8, 5: 1.0}  # five rounds were made when the time ended
    entries, looked = Timed(done=5), list[int]()

    def look() -> Look:
        looked.append(entries.done)
        entries.names = ["a"]
        return Look(decided=False)

    made = Tournament(
        entries, Budget(seconds=7.0, turns=1), look, elapsed=5.0, looks={**before},
        clock=lambda: entries.now,
    )  # fmt: skip
    made.run()
    assert (looked[0], entries.started[0]) == (5, ["a"])  # b was eliminated before
    assert [*looks_until(made.looks, 5)] == [*looks_until(before, 5)]
    assert made.looks == {**before, **{number: number / 5 for number in looked[1:]}}


def test_a_first_warm_up_that_was_disturbed_does_not_end_a_comparison() -> None:
    entries = Timed()
    entries.at_first = 20.0  # forty times as long as what its turns then take
    made = Tournament(
        entries, Budget(seconds=30.0), lambda: Look(entries.done >= 3), clock=lambda: entries.now
    )
    made.run()
    assert made.ended == DECIDED


class Machine(Timed):
    """Commands with steps of so many seconds; one has eight workers, and warms up longer.

    turns: all that were taken, by round: who, how many steps it had taken, and the turn.
    """

    names = "a", "b", "c"

    def __init__(
        self,
        budget: Budget | None = None,
        done: int = 0,
        elapsed: float = 0.0,
        seed: str | None = None,
    ) -> None:
        super().__init__(done)
        self.turns = list[list[tuple[str, int, Turn]]]()
        self.made = Tournament(
            self, budget or budget_of(120), lambda: Look(False), seed, elapsed,
            clock=lambda: self.now,
        )  # fmt: skip
        self.made.run()

    def start(self, left: Sequence[str], number: int) -> Sequence[Contestant]:
        self.now += 4.0
        self.turns.append([])
        self.started.append([*left])
        return [Command(name, self) for name in left]

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


@pytest.mark.parametrize(("minutes", "share"), [(1, 0.8), (2, 1.0), (5, 1.0)])
def test_the_time_budget_that_is_told_to_make_so_many_rounds_makes_them(
    minutes: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one minute starts take so much that longer ones may leave no time for the last round."""

    def budget(minutes: float) -> Budget:
        return study_budget({"turns": "auto", "pairs": "best", "time_budget": minutes})

    facts: Any = SimpleNamespace(timed=True, group=SimpleNamespace(on_hosts=1))
    makes = []
    for seed in "0123":
        first = Machine(budget(minutes), seed=seed)
        record = StudyRecord(
            command="train.py", settings={"study": {"time_budget": minutes}},
            timing=[Round(number) for number in range(first.done)],
            timing_seconds=first.made.elapsed, timing_ended=BUDGET,
        )  # fmt: skip
        for needed in range(first.done + 2, MOST_ROUNDS + 1):
            monkeypatch.setattr(next_steps, "rounds_for_best", lambda *_, needed=needed: needed)
            told = next_steps.NextSteps(record, "x", False).of_time(facts, found=facts)
            assert told is not None
            assert told.text.endswith(f"{needed} in all would decide it.")
            more = budget(float(told.command.partition("study.time_budget=")[2]))
            further = Machine(more, first.done, first.made.elapsed, seed)
            makes.append(further.done >= needed)
            assert further.done <= needed + 1
    assert sum(makes) >= share * len(makes)


class Apart(Machine):
    """Each alone in its round, and one a hundred times as fast as the others."""

    def start(self, left: Sequence[str], number: int) -> Sequence[Contestant]:
        (each,) = super().start(left[:1], number)
        assert isinstance(each, Command)
        if each.name == "c":
            each.step, each.steps = 0.0005, 2000
        return [each]


def test_what_is_started_alone_does_not_catch_up_with_one_that_is_many_times_faster() -> None:
    taken = [each for turns in Apart(seed="0").turns for each in turns]
    assert max(turn.steps for name, _, turn in taken if name == "a" and not turn.counted) < 100


def test_each_second_round_and_each_second_turn_have_the_orders_before_reversed() -> None:
    made = Machine()
    for number in range(made.done):
        orders = made.orders(number)
        assert all(orders[n + 1] == orders[n][::-1] for n in range(0, len(orders), 2))
        if number % 2:
            shared = zip(orders, made.orders(number - 1), strict=False)
            assert all(now == then[::-1] for now, then in shared)
            assert made.started[number] == made.started[number - 1][::-1]


def test_two_comparisons_have_other_orders_and_each_tells_its_seed() -> None:
    made = [Machine() for _ in range(4)]
    assert len({str(each.started) for each in made}) > 1
    assert len({each.made.seed for each in made}) == len(made)


def test_where_three_rounds_do_not_fit_into_one_and_a_half_times_the_time_it_ends_after_one() -> (
    None
):
    assert played(2.0).looks == {3: 1.0}
    found = played(1.9)
    assert (found.ended, found.looks, found.elapsed) == (BUDGET, {}, 1.0)
