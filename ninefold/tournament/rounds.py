"""The rounds of a tournament: contestants take turns in them, until a rule knows the answer.

What changes with the moment (a neighbor, heat) then slows all alike, as in the duet benchmarking of
Bulej et al. (2020), which runs two programs at the same time. What differs between processes, such
as where their memory lies, stays while they live: a round may start new ones, as Kalibera and Jones
(2013) advise. benchmarks/LOG.md has the figures.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from ninefold.errors import Failure
from ninefold.tournament.budget import LEAST_ROUNDS, LOOKS, Budget, shortest, stretch_seconds
from ninefold.tournament.contestant import Contestant, Ended, Entries, Pace, Taken
from ninefold.tournament.neighbors import NeighborLoad
from ninefold.tournament.plan import Turn, mirrored, spread, stretch_steps
from ninefold.tournament.rule import Look
from ninefold.tournament.taken import BUSY, TakenTurn, TurnLog, counted

MOST_BEFORE_END = 0.95  # share of the time that has passed at a look that is not the last
SETTLED, ROUNDS, FAILED, BUDGET = "settled", "rounds", "failed", "budget"  # why it ended

Turns = Generator[Turn, Taken, None]


class Tournament:
    """Rounds of turns of some contestants. rule: what is known after the rounds so far.

    seed: of the orders. elapsed: seconds that earlier commands of it took. looks: theirs, which
    those of this one are added to: complete rounds, and the share of the time that they took.
    most: contestants of its first round; 0: it has not been made. clock: in seconds.

    alive: who takes turns now, by name. log: all turns that count. alone: seconds of a step in long
    stretches alone, by name and round. last_round: seconds of the last round. overhead: of it,
    those that were not turns. ended: why it has.
    """

    def __init__(
        self,
        entries: Entries,
        budget: Budget,
        rule: Callable[[], Look],
        seed: str = "",
        elapsed: float = 0.0,
        looks: dict[int, float] | None = None,
        most: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries, self._budget, self._rule, self._seed = entries, budget, rule, seed
        self._agree = entries.agree
        self._clock, self._elapsed = clock, elapsed
        self._began = 0.0  # when it would have begun if nothing had interrupted it
        self.alive: dict[str, Contestant] = {}
        self.log = TurnLog()
        self.alone: dict[str, dict[int, float]] = {}
        self.ended: str | None = None
        self.last_round = elapsed / entries.done if entries.done else 0.0
        self.overhead = 0.0
        self.looks = {} if looks is None else looks
        self.look = Look(settled=False)
        self.not_counted = 0.0  # seconds of warm-ups that are not taken from the time
        self.paces: dict[str, Pace] = {}
        self._takes: dict[str, float] = {}  # seconds that a turn of each is expected to take
        self._round_seconds: float | None = None  # that this round is to take
        self._last_turn_ended: float | None = None
        self._before = 0  # turns of each in the round before, where all have as many
        self._blocks = 0  # turns of the one that had most, in all rounds
        self._stretch_seconds = 0.0
        self._extended = False
        self._most = most

    def run(self) -> None:
        """Make the rounds that are left."""
        turns, load = self.turns(), NeighborLoad()
        turn = next(turns, None)
        try:
            while turn is not None:
                contestant = self.alive[turn.name]
                began, before = time.time(), list(contestant.processes)
                load.begin(before)
                try:
                    seconds = contestant.turn(turn)
                except (Failure, Ended) as problem:
                    turn = turns.throw(problem)
                    continue
                # What a process of its own used that has ended is not known.
                whole = {*before} <= {*contestant.processes}
                others = load.share(contestant.processes) if whole else None
                turn = turns.send(Taken(seconds, began, time.time(), others))
        except StopIteration:
            return
        finally:
            turns.close()

    def turns(self) -> Turns:
        """Yield the turns to take, one after another; sent is how each was taken, or thrown what it
        raised. It is for those who lead a loop themselves.
        """
        self._began = self._clock() - self._elapsed
        while (ended := self._ended()) is None:
            began, before = self._clock(), self.not_counted
            number = self._entries.begin_round()
            if not (yield from self._round(number)):
                ended = BUDGET
                break
            self.last_round = self._clock() - began - (self.not_counted - before)
            self._elapsed = self.elapsed
            self._entries.round_ended(number)
        self.ended = ended

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
        done, fits, budget = self._entries.done, self._fits(), self._budget
        goes_on = done < budget.rounds and (fits or self._extends())
        if done and (done in LOOKS or not goes_on or budget.looks_early(done, self.last_round)):
            share = min(self.elapsed / budget.seconds, MOST_BEFORE_END) if goes_on else 1.0
            self.looks[done] = max(share, self.looks.get(done, 0.0))
            self.look = self._rule()
        if done >= budget.rounds:
            return ROUNDS
        if not self._entries.names:
            return FAILED
        # One more if the named one has trained no long stretch yet.
        stretched = self.look.named is None or not self.alone or self.look.named in self.alone
        if self.look.settled and (stretched or not goes_on):
            return SETTLED
        return None if goes_on else BUDGET

    def _share(self) -> float:
        """The share of the first round's contestants that are left."""
        return min(len(self._entries.names) / self._most, 1.0) if self._most else 1.0

    def _fits(self) -> bool:
        planned = self._budget.planned(self.overhead, self._share())
        return self._budget.fits(
            self._entries.done, self.seconds_left, self.last_round, self._shortest(), planned
        )

    def _shortest(self) -> float | None:
        """Seconds of another round at least; None: not known, or its turns are given."""
        if self._budget.turns is not None or not self._takes:
            return None
        names = self._entries.names
        return shortest(self.overhead, {name: self._takes.get(name, 0.0) for name in names})

    def _extends(self) -> bool:
        """Whether there is one more round: for one that others have disturbed in most of them.

        Only if the machine is quiet now, and was most of the time.
        """
        turns, names = self.log.turns, {*self._entries.names}
        most = self._budget.extends * self._budget.seconds
        if (
            self._extended
            or self._entries.done < LEAST_ROUNDS
            or self.last_round > most
            or not turns
        ):
            return False
        found = counted(turns)
        disturbed = any(
            len(of) < LEAST_ROUNDS for name, of in found.seconds().items() if name in names
        )
        last = [turn.others or 0.0 for turn in turns[-len(names) :]]
        self._extended = disturbed and not found.busy and max(last) <= BUSY
        return self._extended

    def _round(self, number: int) -> Generator[Turn, Taken, bool]:
        """Let each contestant take its turns, in an order that every second round reverses.

        Returns whether the round is complete.
        """
        entries = self._entries
        self.overhead, self._round_seconds = 0.0, None
        left = mirrored(entries.names, f"{self._seed}start", number)
        whole, cells = True, len(left)
        self._most = self._most or cells
        blocks = self._blocks
        while left and whole:
            began = self._clock()
            ending = 0.0 if self._last_turn_ended is None else began - self._last_turn_ended
            started = entries.start(left, number)
            self.alive = {each.name: each for each in started}
            left = [name for name in left if name in entries.names and name not in self.alive]
            try:
                whole = yield from self._group(number, began - ending, cells, blocks)
            finally:
                for each in started:
                    each.close()
        self.alive = {}
        return whole

    def _group(
        self, number: int, began: float, cells: int, blocks: int
    ) -> Generator[Turn, Taken, bool]:
        """Let those that are alive together take their turns; return whether all were taken.

        began: when what is not turns did. cells: of the round. blocks: in the rounds before.
        """
        before = self.not_counted
        paces = yield from self._warm_up()
        own = self._clock() - began - (self.not_counted - before)
        turns = self._planned_turns(paces)
        for name in self._entries.warm([*self.alive.values()], self._takes, own):
            self.alive.pop(name).close()
        if not self.alive:
            return True
        share = len(self.alive) / cells
        stretched, long = self._to_stretch(number, turns, paces, own)
        self.overhead += own + long
        self._stretch_seconds += long
        if self._round_seconds is None:  # other groups of the round take as long, per contestant
            done, left, overhead = self._entries.done, self.seconds_left, self.overhead / share
            self._round_seconds = self._budget.round_seconds(
                done, left + own, overhead, self._share()
            )
        training = self._round_seconds * share - own - long
        if not (yield from self._take(number, turns, training, blocks)):
            return False
        alone = yield from self._stretch(stretched, turns, number)
        self._last_turn_ended = self._clock()
        for name, contestant in list(self.alive.items()):
            of = self._taken(name, number)
            try:
                contestant.end(of, alone.get(name))
            except Failure as failure:
                self._drop(name, failure)
            else:
                step = fmean(turn.seconds for turn in of)
                self.paces[name] = Pace(step, step * paces[name].wall / paces[name].step)
        return True

    def _warm_up(self) -> Generator[Turn, Taken, dict[str, Pace]]:
        """Let all warm up, a turn of each after another."""
        paces = dict[str, Pace]()
        left = {name: each.warm_up(self.paces.get(name)) for name, each in self.alive.items()}
        answers: dict[str, Any] = dict.fromkeys(left)
        while left:
            for name, warm_up in list(left.items()):
                try:
                    answers[name] = self._agree((yield warm_up.send(answers[name])))
                except StopIteration as end:
                    paces[name] = end.value
                    self.not_counted += end.value.late
                    del left[name]
                except Failure as failure:
                    self._drop(name, failure)
                    del left[name]
        return paces

    def _planned_turns(self, paces: Mapping[str, Pace]) -> dict[str, Turn]:
        """The turn of each; of those about as fast, all take as many steps."""
        steps = {name: paces[name].step for name in self.alive}
        turns = dict[str, Turn]()
        for name, each in self.alive.items():
            turn = Turn.of(
                name, self._budget.step_to_plan(name, steps), each.turn_seconds, each.several
            )
            turns[name] = replace(turn, expected=turn.steps * paces[name].wall)
            self._takes[name] = turn.steps * paces[name].wall
        return turns

    def _take(
        self, number: int, turns: Mapping[str, Turn], training: float, blocks: int
    ) -> Generator[Turn, Taken, bool]:
        """Let them train in turns, spread evenly over these seconds of `training`.

        Returns whether the round counts.
        """
        budget, takes = self._budget, {name: self._takes[name] for name in self.alive}
        counts = budget.counts(takes, training, self.seconds_left, self._before)
        self._before = most = max(counts.values())
        self._blocks = max(self._blocks, blocks + most)
        to_take = sum(count * takes[name] for name, count in counts.items())
        taken = Counter[str]()

        def order(nth: int) -> list[str]:
            return mirrored([*counts], f"{self._seed}turns", blocks + nth)

        for name in spread(counts, order):
            if name not in self.alive:
                continue
            if self.elapsed >= budget.cut:  # the machine is slow
                if budget.least_turns is None:
                    if taken[name] == max(taken.values(), default=0):  # no one has had this one
                        return False
                elif taken[name] >= budget.least_turns:
                    continue
            self._entries.shows(number, taken[name] + 1, to_take)
            taken[name] += 1
            to_take -= takes[name]
            try:
                found = self._agree((yield turns[name]))
            except Failure as failure:
                self._drop(name, failure)
            else:
                self.log.add(name, number, steps=turns[name].timed, **found._asdict())
        return True

    def _to_stretch(
        self, number: int, turns: Mapping[str, Turn], paces: Mapping[str, Pace], own: float
    ) -> tuple[list[str], float]:
        """Who trains a long stretch in this round, and the seconds that these take.

        Those first that had the fewest, and of these the named one.
        """
        named = self.look.named
        wanted = sorted(
            self._entries.to_stretch([*self.alive]),
            key=lambda name: (len(self.alone.get(name, ())), name != named),
        )
        takes = {name: stretch_seconds(turns[name], paces[name].wall) for name in wanted}
        elapsed = self._elapsed + self._budget.planned(own, self._share())
        always = named if self.look.settled else None
        return self._budget.stretches(wanted, takes, number, self._stretch_seconds, elapsed, always)

    def _stretch(
        self, names: Iterable[str], turns: Mapping[str, Turn], number: int
    ) -> Generator[Turn, Taken, dict[str, float]]:
        """Let some train alone for a second or more: taking turns may itself change a step."""
        found = dict[str, float]()
        for name in filter(self.alive.__contains__, names):
            each = fmean(turn.seconds for turn in self._taken(name, number))
            steps = stretch_steps(each)
            lead = turns[name].lead
            try:
                own_turn = Turn(name, lead, steps, (lead + steps) * each, counted=False)
                taken = self._agree((yield own_turn))
            except Ended:
                continue  # it is too short for one
            except Failure as failure:
                self._drop(name, failure)
                continue
            found[name] = taken.seconds
            self.alone.setdefault(name, {})[number] = taken.seconds
        return found

    def _taken(self, name: str, number: int) -> list[TakenTurn]:
        """The turns of one in a round that count."""
        return [turn for turn in self.log.turns if (turn.name, turn.round) == (name, number)]

    def _drop(self, name: str, failure: Failure) -> None:
        contestant = self.alive.pop(name)
        self._entries.drop(name, failure)
        contestant.close()
