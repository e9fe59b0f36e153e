"""The schedule, the filter of turns and the intervals on simulated processes."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.polynomial import legendre

from ninefold.answer.decision import are_decided, far_slower, left_of_best, left_of_pairs
from ninefold.answer.facts import facts_of
from ninefold.bench import trial
from ninefold.bench.change import Change
from ninefold.bench.changes import AS_IT_IS
from ninefold.bench.command import Command
from ninefold.bench.measurements import Measurements, Options
from ninefold.bench.rounds import TURN, TURN_OF_SEVERAL, WARM_UP_SECONDS, budget_of
from ninefold.stats.verdicts import Settings
from ninefold.study.timing import budget_of as budget_of_study
from ninefold.tournament.contestant import Entries, Look, Pace, Taken
from ninefold.tournament.plan import Asked
from ninefold.tournament.rounds import Tournament
from ninefold.types import LEAST_ROUNDS
from tests.long.lab.world import Process, steps_of

legendre.leggauss = cache(legendre.leggauss)  # the levels of looks ask for it again and again


class Begun(Process):
    """A process whose steps can begin again."""

    def begin(self):
        order = np.random.default_rng([self.world.seed, 42])
        self._each = steps_of(self.spec, self.world.rng.spawn(1)[0], order)


class Simulated:
    """A contestant, whose turns a simulated process takes."""

    processes = ()

    def __init__(self, play, name, number, place):
        self.name, self.play, self.number = name, play, number
        self.process = Begun(play.world, name, number, place)
        spent, steps, takes = 0.0, 1, 0  # as `ninefold.bench.rounds.Alive.prepare` warms up
        while spent < WARM_UP_SECONDS or takes < 2:
            shows = takes < (20 if spent < WARM_UP_SECONDS / 2 else 3)
            seconds = self.process.train(0, steps, alone=True)
            self.pace, spent, takes = Pace(seconds, seconds), spent + seconds * steps, takes + 1
            steps = 1 if shows else 2 * steps
        self.before = 0
        if play.study:  # the warm-up of a run is undone: its first turn begins with the first batch
            self.process.begin()
            self.before = self.process.steps

    @property
    def steps(self):
        return self.process.steps - self.before

    @property
    def waits(self):
        return self.process.spec.get("waits", False)

    def asks(self, step):
        seconds = TURN_OF_SEVERAL if self.play.world.case.get("gpu") else TURN
        return Asked(step, seconds, False, self.process.spec.get("workers", 0))

    def warm_up(self, known):
        yield from ()
        return self.pace

    def turn(self, turn):
        return self.process.train(turn.lead, turn.timed, alone=not turn.counted)

    def end(self, turns, stretch):
        if stretch is not None:
            self.play.alone.setdefault(self.name, {})[self.number] = stretch

    def close(self):
        pass


class Played:
    """Has a simulated world play the turns of a tournament.

    looks: what was said at each look, by names of a pair: `speedup` of the second over the first,
    `low`, `high`, `verdict`; the last is the end. told: other claims, of `--try`.
    """

    study = False

    def begin(self, world):
        self.world, self.alone, self.told, self.looks, self.ends = world, {}, {}, [], None

    @property
    def seed(self):  # drawn anew for each study, and the same if it is played again
        return f"{self.world.seed}"

    def start(self, left, number):
        self.world.now += self.world.case.get("start", 4.0)
        return [Simulated(self, name, number, place) for place, name in enumerate(left)]

    def play(self, made):
        """Take all turns, with the clock and the witness of the simulated machine."""

        def train(turn):
            began = self.world.now
            seconds = made.alive[turn.name].turn(turn)
            return Taken(seconds, began, self.world.now, self.world.others)

        made.train = train
        made.run()


class Play(Played, Entries):
    """A bench, or a study that asks for all pairs, or for the best."""

    def __init__(self, world):
        self.begin(world)
        case, self.done, self.log, self.shares = world.case, 0, None, {}
        self.scripts, seconds = case["scripts"], 60.0 * case.get("minutes", 2)
        self.kept, self.study = {*self.scripts}, case.get("study", False)
        settings = {"turns": "auto", "time_budget": seconds / 60, "pairs": case.get("pairs", "all")}
        budget = budget_of_study(settings) if self.study else budget_of(seconds)
        elapsed = self.tournament(budget, 0.0)
        if case.get("resumed") and any(pair.verdict == "open" for pair in self.looks[-1].values()):
            self.tournament(replace(budget, seconds=2 * seconds), elapsed)

    def tournament(self, budget, elapsed):
        most, clock = len(self.scripts) if self.log else 0, lambda: self.world.now
        made = Tournament(
            self, budget, self.look, self.seed, elapsed, self.shares, most, clock, self.log
        )
        self.made, self.log = made, made.log
        self.play(made)
        return made.elapsed

    @property
    def names(self):
        return [
            name
            for name, of in self.scripts.items()
            if name in self.kept and of.get("joins", 0) <= self.done < of.get("leaves", 99)
        ]

    def round_ended(self, number):
        self.done += 1
        if not self.study and self.done >= LEAST_ROUNDS and len(self.scripts) > 2:
            self.kept = {*self.scripts} - far_slower(self.pairs())

    @property
    def waits(self):
        return {name for name, of in self.scripts.items() if of.get("waits")}

    def facts(self):
        """What is known now of a study."""
        return facts_of(
            [*self.scripts], self.log.turns, self.shares, self.done, Settings(),
            stretches=self.alone, waits=self.waits,
        )  # fmt: skip

    def pairs(self):
        """What is known now of each pair, or of each with the first."""
        if self.study:
            return self.facts().comparison.seconds
        measured = Measurements(
            [Command("true", name) for name in self.scripts],
            log=self.log,
            looks=self.shares,
            ends={self.done: 0.0},
            alone={name: {} for name in self.scripts} | self.alone,
            waits=self.waits,
        )
        return measured.times().against_baseline

    def look(self):
        pairs = self.pairs()
        self.looks.append({(pair.first, pair.second): pair for pair in pairs})
        waits = any(self.done <= of.get("joins", 0) for of in self.scripts.values())
        if not self.study:
            return Look(self.done >= LEAST_ROUNDS and are_decided(pairs) and not waits)
        left = left_of_pairs(pairs)
        if self.world.case.get("pairs") == "best":
            named, left = left_of_best(self.facts())
            self.told["best"] = [] if left else [named]
        self.kept = left if left and not waits else self.kept
        return Look(not left and not waits)


class Try(Played, trial.ChangesTrial):
    """`bench --try`: the first script as it is, changes of it, and what lacks a part of it."""

    def __init__(self, world):
        self.begin(world)
        scripts = {name: of for name, of in world.case["scripts"].items() if name != AS_IT_IS}
        changes = [name for name, of in scripts.items() if not of.get("part")]
        trial.of_machine = lambda _: [
            Change(name, does=name, line=name, where="optimizer") for name in changes
        ]
        super().__init__(Command("true"), Options(minutes=world.case.get("minutes", 2)), Path())
        self._leave_out({*self.measured.names} - {AS_IT_IS, *scripts})
        self.script = {"framework": None}
        self._tournament = Tournament(
            self,
            self._budget,
            self.look,
            self.seed,
            looks=self.measured.looks,
            clock=lambda: world.now,
            log=self.measured.log,
        )
        self.play(self._tournament)
        self.made, self.done = self._tournament, self.measured.rounds
        left = {name: pair for name, (pair, _) in self.given_up.items() if name in self._tried}
        told = {**left, **self._pairs()}  # what was left is told with its interval, if it has one
        self.looks = [{(self.measured.base(name), name): pair for name, pair in told.items()}]
        self.told["named"] = [name for name, _ in self._named(self._pairs())]
        self.told["no faster"] = [
            name for name, pair in left.items() if pair.verdict in ("tie", "slower")
        ]

    _shows_estimate = warm = lambda self, *_: []


def play(world):
    return (Try if world.case.get("try") else Play)(world)
