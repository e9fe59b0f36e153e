"""The rounds of a tournament: contestants take turns in them, until a rule knows the answer.

What changes with the moment (a neighbor, heat) then slows all alike, as in the duet benchmarking of
Bulej et al. (2020), which runs two programs at the same time. What differs between processes, such
as where their memory lies, stays while they live: a round may start new ones, as Kalibera and Jones
(2013) advise. benchmarks/log/turns.md has the figures.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from ninefold.errors import Failure
from ninefold.tournament.budget import CUT, LOOKS, Budget, shortest
from ninefold.tournament.contestant import Contestant, Ended, Entries, Look, Pace, Taken
from ninefold.tournament.neighbors import NeighborLoad
from ninefold.tournament.plan import (
    REACH,
    Asked,
    Turn,
    common_start,
    drawn,
    offset,
    stretch_steps,
    turn_steps,
)
from ninefold.tournament.taken import TakenTurn, TurnLog
from ninefold.types import LEAST_ROUNDS

MOST_BEFORE_END = 0.95  # share of the time that has passed at a look that is not the last
DECIDED, ROUNDS, FAILED, BUDGET = "decided", "rounds", "failed", "budget"  # why it ended


class Tournament:
    """Rounds of turns of some contestants. rule: what is known after the rounds so far.

    seed: of what is drawn; None: a new one. elapsed: seconds that earlier commands of it took.
    looks: theirs, which those of this one are added to: complete rounds, and the share of the time
    that they took. most: contestants of its first round; 0: it has not been made. clock: in
    seconds. log: all turns that count, these ones added.

    alive: who takes turns now, by name. waits: who has waited for the host, so that from then on
    all train long stretches as well. last_round: seconds of the last round. overhead: of it, those
    that were not turns. ended: why it has.
    """

    def __init__(
        self,
        entries: Entries,
        budget: Budget,
        rule: Callable[[], Look],
        seed: str | None = None,
        elapsed: float = 0.0,
        looks: dict[int, float] | None = None,
        most: int = 0,
        clock: Callable[[], float] = time.monotonic,
        log: TurnLog | None = None,
    ) -> None:
        self._entries, self._rule = entries, rule
        # Time that is added makes more rounds, up to `rounds`: it is told how many it makes.
        self._budget = replace(budget, longest=elapsed / entries.done) if entries.done else budget
        self.seed = secrets.token_hex(8) if seed is None else seed
        self._clock, self._elapsed = clock, elapsed
        self._began = 0.0  # when it would have begun if nothing had interrupted it
        self.alive: dict[str, Contestant] = {}
        self.log = TurnLog() if log is None else log
        self.waits = set[str]()
        self.ended: str | None = None
        self.last_round = elapsed / entries.done if entries.done else 0.0
        self.overhead = 0.0
        self.looks = {} if looks is None else looks
        self.look = Look(decided=False)
        self.not_counted = 0.0  # seconds of warm-ups that are not taken from the time
        self.paces: dict[str, Pace] = {}
        self._takes: dict[str, float] = {}  # seconds that a turn of each is expected to take
        self._round_seconds: float | None = None  # that this round is to take
        self._last_turn_ended: float | None = None
        self._before = 0  # turns of each in the round before
        self._planned: tuple[int, int] | None = None  # steps of a turn of this round
        self._asked = dict[str, Asked]()
        self._started = list[str]()  # in this round, in order
        self._own = 0.0  # seconds of this round that are not turns
        self._trained = 0.0  # seconds of all turns
        self._goals = list[int]()  # of groups: steps that all have taken before their first turn
        self._most = most

    def run(self) -> None:
        """Make the rounds that are left."""
        self._began = self._clock() - self._elapsed
        while (ended := self._ended()) is None:
            began, before, trained = self._clock(), self.not_counted, self._trained
            number = self._entries.done
            self._round(number)
            self.last_round = self._clock() - began - (self.not_counted - before)
            self.overhead = self.last_round - (self._trained - trained)
            self._entries.round_ended(number)
        self.ended = ended

    def train(self, turn: Turn) -> Taken:
        """Let one take a turn; return how it was taken. Raises Failure, Ended."""
        contestant = self.alive[turn.name]
        began = time.time()
        load = NeighborLoad(contestant.processes)
        seconds = contestant.turn(turn)
        others = load.share(contestant.processes)
        return self._entries.agree(turn, Taken(seconds, began, time.time(), others))

    @property
    def elapsed(self) -> float:
        """Seconds so far, without those of warm-ups that are not taken from the time."""
        return self._clock() - self._began - self.not_counted

    @property
    def seconds_left(self) -> float:
        """How long it may still take."""
        return max(self._budget.seconds - self.elapsed, 0.0)

    def expected_seconds(self) -> float:
        """How long it is expected to take: a round that begins in time may end late."""
        return max(self.seconds_left, (self._shortest() or self.last_round) * self._fits())

    def _ended(self) -> str | None:
        """Look at what is known where that is due; return why there is no further round."""
        done, budget = self._entries.done, self._budget
        goes_on = done < budget.rounds and self._fits()
        if done and (done in {*LOOKS, *self.looks} or not goes_on):
            if done >= LEAST_ROUNDS:
                self._note_look(done, goes_on)
            self.look = self._rule()
        if done >= budget.rounds:
            return ROUNDS
        if not self._entries.names:
            return FAILED
        if self.look.decided:
            return DECIDED
        return None if goes_on else BUDGET

    def _note_look(self, done: int, goes_on: bool) -> None:
        """Note the share of the time at a look; after the first end of the time, that of its
        rounds.
        """
        ends = [number for number, share in self.looks.items() if share >= 1 and number < done]
        if ends:
            share = done / min(ends)
        else:
            share = min(self.elapsed / self._budget.seconds, MOST_BEFORE_END) if goes_on else 1.0
        self.looks[done] = max([share, *self.looks.values()])

    def _share(self) -> float:
        """The share of the first round's contestants that are left."""
        return min(len(self._entries.names) / self._most, 1.0) if self._most else 1.0

    def _fits(self) -> bool:
        least = self._shortest() or self.last_round
        return self._budget.fits(
            self._entries.done, self.elapsed, self._trained, self.overhead, least, self._share()
        )

    def _shortest(self) -> float | None:
        """Seconds of another round at least; None: not known, or its turns are given."""
        given = self._budget.turns is not None or self._budget.one_process
        if given or not self._takes:
            return None
        names = self._entries.names
        return shortest(self.overhead, {name: self._takes.get(name, 0.0) for name in names})

    def _round(self, number: int) -> None:
        """Let each contestant take its turns, in an order that every second round reverses."""
        entries = self._entries
        self._own, self._round_seconds, self._planned = 0.0, None, None
        left = drawn(entries.names, f"{self.seed}/start", number)
        if number % 2 and self._started:  # as the round before has started them, reversed
            place = {name: n for n, name in enumerate(self._started)}
            left.sort(key=lambda name: place.get(name, -1), reverse=True)
        self._started = []
        cells = len(left)
        self._most = self._most or cells
        while left:
            began = self._clock()
            ending = 0.0 if self._last_turn_ended is None else began - self._last_turn_ended
            started = entries.start(left, number)
            self.alive = {each.name: each for each in started}
            self._started += self.alive
            left = [name for name in left if name in entries.names and name not in self.alive]
            try:
                self._group(number, began - ending, cells)
            finally:
                for each in started:
                    each.close()
            if len(started) == cells:  # else all groups begin where the others did
                self._goals.clear()
        self.alive = {}

    def _group(self, number: int, began: float, cells: int) -> None:
        """Let those that are alive together take their turns.

        began: when what is not turns did. cells: of the round.
        """
        before = self.not_counted
        paces = self._warm_up()
        self._plan_turns(paces)
        own = self._clock() - began - (self.not_counted - before)
        for name in self._entries.warm([*self.alive.values()], self._takes, own):
            self.alive.pop(name).close()
        self._catch_up(number, paces)
        if not self.alive:
            return
        own = self._clock() - began - (self.not_counted - before)
        share = len(self.alive) / cells
        long = self._stretch_seconds(paces) if self.waits else 0.0
        self._own += own + long
        if self._round_seconds is None:  # other groups of the round take as long, per contestant
            done, left, overhead = self._entries.done, self.seconds_left, self._own / share
            self._round_seconds = self._budget.round_seconds(
                done, left + own, overhead, self._share()
            )
        self._take(number, paces, self._round_seconds * share - own - long)
        self.waits |= {name for name, each in self.alive.items() if each.waits}
        alone = self._stretch(number) if self.waits and self.alive else {}
        self._last_turn_ended = self._clock()
        for name, contestant in list(self.alive.items()):
            of = self._taken(name, number)
            try:
                contestant.end(of, alone.get(name))
            except Failure as failure:
                self._drop(name, failure)
            else:
                step = fmean(turn.seconds for turn in of)
                self._takes[name] *= step / paces[name].step  # a warm-up may be disturbed
                self.paces[name] = Pace(step, step * paces[name].wall / paces[name].step)

    def _warm_up(self) -> dict[str, Pace]:
        """Let all warm up, a turn of each after another."""
        paces = dict[str, Pace]()
        left = {name: each.warm_up(self.paces.get(name)) for name, each in self.alive.items()}
        answers: dict[str, Any] = dict.fromkeys(left)
        while left:
            for name, warm_up in list(left.items()):
                try:
                    turn = warm_up.send(answers[name])
                except StopIteration as end:
                    paces[name] = end.value
                    self.not_counted += end.value.late
                    del left[name]
                    continue
                try:
                    answers[name] = self.train(turn)
                except Failure as failure:
                    self._drop(name, failure)
                    del left[name]
        return paces

    def _plan_turns(self, paces: Mapping[str, Pace]) -> None:
        """Set the steps of a turn: of all that take part, also in other groups of the round."""
        self._asked |= {name: each.asks(paces[name].step) for name, each in self.alive.items()}
        names = [*dict.fromkeys([*self.alive, *self._entries.names])]
        if self._planned is None and self.alive:
            asked = [self._asked[name] for name in names if name in self._asked]
            self._planned = turn_steps(asked, self._budget.seconds)
        if self._planned is not None:
            steps = sum(self._planned) + 0.5  # of the lead, on average
            self._takes |= {name: steps * paces[name].wall for name in self.alive}

    def _catch_up(self, number: int, paces: Mapping[str, Pace]) -> None:
        """Let all begin their turns after the same steps of a process, a drawn number of them."""
        taken = {name: at for name, each in self.alive.items() if (at := each.steps) is not None}
        if not taken:
            return
        walls = [paces[name].wall for name in taken]
        further = offset(f"{self.seed}/warm/{number}", walls, self._budget.seconds)
        own = common_start(taken.values(), further)
        # Groups begin after the same steps, but for those that are so fast that none catches up.
        goal = max([own, *(other for other in self._goals if other <= REACH * own)])
        self._goals.append(own)
        for name, steps in taken.items():
            if (left := goal - steps) > 0:
                try:
                    self.train(Turn(name, 0, left, left * paces[name].wall, counted=False))
                except Ended:
                    continue  # it is started again in its first turn
                except Failure as failure:
                    self._drop(name, failure)

    def _take(self, number: int, paces: Mapping[str, Pace], training: float) -> None:
        """Let all take as many turns, in about these seconds of `training`."""
        assert self._planned is not None
        budget, takes = self._budget, {name: self._takes[name] for name in self.alive}
        count = budget.count(takes, training, self.seconds_left, self._before)
        self._before, (lead, timed), began = count, self._planned, self._clock()
        for nth in range(count):
            if nth and nth % 2 == 0 and self.elapsed >= CUT * budget.seconds:  # the machine is slow
                break
            extra = random.Random(f"{self.seed}/lead/{number}/{nth}").randint(0, 1)
            self._entries.shows(number, nth + 1, (count - nth) * sum(takes.values()))
            # The next turn of the round reverses this order, and so does the next round.
            seed = f"{self.seed}/turns/{number // 2}/{nth // 2}"
            for name in drawn([*self.alive], seed, (number + nth) % 2):
                if name not in self.alive:
                    continue
                wall = paces[name].wall
                turn = Turn(name, lead + extra, timed, (lead + extra + timed) * wall)
                try:
                    found = self.train(turn)
                except Failure as failure:
                    self._drop(name, failure)
                else:
                    self.log.add(name, number, steps=timed, **found._asdict())
        self._trained += self._clock() - began

    def _stretch_seconds(self, paces: Mapping[str, Pace]) -> float:
        """Seconds that a long stretch of each takes, with its lead."""
        assert self._planned is not None
        walls = [paces[name].wall for name in self.alive]
        return (self._planned[0] + stretch_steps(min(walls))) * sum(walls)

    def _stretch(self, number: int) -> dict[str, float]:
        """Let each train alone for a second or more: taking turns itself changes a step of those
        that wait for the host.
        """
        assert self._planned is not None
        lead, found = self._planned[0], dict[str, float]()
        means = {n: fmean(turn.seconds for turn in self._taken(n, number)) for n in self.alive}
        steps = stretch_steps(min(means.values()))
        for name in drawn([*self.alive], f"{self.seed}/stretches", number):
            try:
                own_turn = Turn(name, lead, steps, (lead + steps) * means[name], counted=False)
                found[name] = self.train(own_turn).seconds
            except Ended:
                continue  # it is too short for one
            except Failure as failure:
                self._drop(name, failure)
        return found

    def _taken(self, name: str, number: int) -> list[TakenTurn]:
        """The turns of one in a round that count."""
        return [turn for turn in self.log.turns if (turn.name, turn.round) == (name, number)]

    def _drop(self, name: str, failure: Failure) -> None:
        contestant = self.alive.pop(name)
        self._entries.drop(name, failure)
        contestant.close()
