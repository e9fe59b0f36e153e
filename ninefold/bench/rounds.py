"""The rounds of a bench: new processes for all commands in each, which take turns in it.

What differs between processes, such as where their memory lies, stays while they live. So the
rounds are what is counted.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ninefold.answer.decision import far_slower
from ninefold.answer.words import interval, shown
from ninefold.bench import batches, change
from ninefold.bench.command import Command
from ninefold.bench.held import LOOK_SECONDS, HeldCommand
from ninefold.bench.measurements import BESIDE, Measurements
from ninefold.bench.pacing import AHEAD, ENOUGH, Pause, is_short, look
from ninefold.bench.screen import ProgressLine
from ninefold.bench.turns import MARKS, Taken
from ninefold.diff.compare import Training, recorded, recording
from ninefold.errors import Failure
from ninefold.numbers import counted
from ninefold.stats.verdicts import Pair
from ninefold.tournament.budget import Budget
from ninefold.tournament.contestant import Ended, Entries, Look, Pace, WarmUp
from ninefold.tournament.neighbors import clock_limits, others_on_gpus
from ninefold.tournament.plan import Asked, Turn, turn_steps
from ninefold.tournament.rounds import Tournament
from ninefold.tournament.taken import TakenTurn
from ninefold.waits import poll_until

TURN = 0.1  # seconds of a turn that are timed
TURN_OF_SEVERAL = 0.3  # the same of several processes, and on a GPU
RECORDED = 5  # steps of the first process that are recorded, at most
WARM_UP_SECONDS = 1.0  # of warm-up steps in each process
ONE_BY_ONE = 0.1  # share of the time in which commands of the first round start one by one


class Alive(HeldCommand):
    """A command that trains in turns: a contestant. number: of the round."""

    def __init__(self, bench: Bench, command: Command, number: int, keep: Path) -> None:
        self._bench, self._measured, self.name = bench, bench.measured, command.name
        beside = not self._measured.options.apart and len(self._measured.commands) > 1
        one = bench.has_one_optimizer(command.name)
        records = number == 0 and not command.leaves_out
        variables = recording(RECORDED) if records else None
        marking = bench.marking[command.name]
        super().__init__(command, number, keep, marking, beside, one, variables)
        self.pace = Pace(1.0, 1.0)
        self._waits = list[bool]()  # in each turn
        self._warms_up = False  # whether it trains for longer than a warm-up takes

    def asks(self, step: float) -> Asked:
        several = self.told["world"] > 1
        seconds = TURN_OF_SEVERAL if several or self.told["cuda"] else TURN
        return Asked(step, seconds, several, self.told.get("workers", 0))

    @property
    def waits(self) -> bool:
        return sum(self._waits) > len(self._waits) / 2

    def warm_up(self, known: Pace | None) -> WarmUp:
        """Return its pace: it has warmed up."""
        yield from ()
        return self.pace

    def prepare(self, looks: bool) -> None:
        """Train until a step takes what it takes from then on. looks: whether it may catch up."""
        folder = self.folder  # it may have another one once it is started again
        self._warm()
        self._bench.optimizers[self.name] = self.optimizers
        if first_steps := recorded(folder):
            self._measured.recorded.setdefault(self.name, Training(self.name, first_steps))
        if looks:
            began = time.monotonic()
            self._look()
            self.pace = self.pace._replace(late=time.monotonic() - began)

    def _warm(self) -> None:
        """Take warm-up steps. What ends in them is started again, and warms up no more."""
        spent, steps, takes, records = 0.0, 1, 0, False
        try:
            while spent < WARM_UP_SECONDS or takes < 2 or records:
                soon = spent < WARM_UP_SECONDS / 2 and takes < RECORDED
                records = bool(self.recording) and soon
                turn = self.train(0, steps, records=records)
                seconds = turn.end - turn.begin
                self.pace = Pace(turn.seconds, seconds / turn.steps)
                spent, takes = spent + seconds, takes + 1
                steps = 1 if records else 2 * steps
                self._bench.screen.tick()
            self._warms_up = True
        except Ended as ended:
            self._warms_up = False
            self._restart(ended, helps=takes > 0)

    def _look(self) -> None:
        """See whether its steps catch up after a pause."""
        pauses, budget = list[Pause](), 60.0 * self._measured.options.minutes
        share = budget / len(self._measured.commands)
        while len(pauses) < ENOUGH:
            step = self.pace.step
            turn = Turn(self.name, *turn_steps([self.asks(step)], budget))
            if not is_short(turn, step, self.paused, share):
                return
            try:
                pause = look(self, turn, step)
            except Ended as ended:
                self._restart(ended, helps=True, warms_up=True)
                return
            self._bench.screen.tick()
            if pause.later > 2 * step:  # it was not warm, or caught up: this turn is none
                self.pace = Pace(pause.later, pause.later)
            elif pause.ahead < AHEAD:
                return
            else:
                pauses.append(pause)
        self._measured.paced[self.name] = min(pauses, key=lambda pause: pause.ahead)

    def turn(self, turn: Turn) -> float:
        """Take a turn, after a new start where it has ended.

        Raises Failure; Ended if a turn that does not count was not taken.
        """
        for attempt in range(3):
            try:
                taken = self.train(turn.lead, turn.timed, turn.expected)
                break
            except Ended as ended:
                if not turn.counted:
                    raise
                helps = attempt == 0 or (attempt == 1 and self._warms_up)
                self._restart(ended, helps, turn, warms_up=attempt == 0)
        self._waits.append(self.told["waits"])
        if turn.counted:
            self._bench.note(self, taken)
        self._bench.screen.tick()
        return taken.seconds

    def _restart(
        self, ended: Ended, helps: bool, turn: Turn | None = None, warms_up: bool = False
    ) -> None:
        """Start it again when it has ended. Raises ConfigError where that helps nothing.

        warms_up: whether it is to take warm-up steps, if it trains for longer than these take.
        """
        if ended.code:
            raise self.failure_of_end(ended.code)
        if not helps:
            steps = turn.steps if turn else "more"
            raise self.command.failure(
                f"it ends after {counted(self.steps, 'step') if self.steps else 'its first steps'}",
                f"a turn takes {steps} that count, and it is started again when it ends",
                "let it train longer, or --whole",
            )
        self._measured.restarts[self.name] += 1
        self.restart()
        poll_until(self.arrived, interval=LOOK_SECONDS)
        if warms_up and self._warms_up:
            self._warm()

    def end(self, turns: Sequence[TakenTurn], stretch: float | None) -> None:
        """Note what it said last, and the seconds of a step alone."""
        measured = self._measured
        measured.told[self.name] = self.told
        measured.own_work[self.name] += self.own_work
        measured.memory[self.name][self.number] = self.peak
        if self.waits:
            measured.waits.add(self.name)
        if stretch is not None:
            measured.alone[self.name][self.number] = stretch


class Bench(Entries):
    """Compares commands in turns: the entries of a tournament.

    measured: of the commands, with the options. keep: the folder for their output. of_budget: what
    is other than `budget_of` says.
    """

    def __init__(self, measured: Measurements, keep: Path, **of_budget: Any) -> None:
        self.measured, self._keep, self.done = measured, keep, measured.rounds
        self.marking = defaultdict[str, set[str]](lambda: {*MARKS})
        self._budget = replace(budget_of(60.0 * measured.options.minutes), **of_budget)
        self._tournament = Tournament(
            self, self._budget, self.look, measured.seed, looks=measured.looks, log=measured.log
        )
        self._out = set[str]()  # commands that are far slower than the first
        self.optimizers = dict[str, int]()  # that were seen, by command
        self.screen = ProgressLine(self._budget.seconds)
        self.failed = dict[str, Failure]()  # commands that are left out, and why

    def run(self) -> None:
        """Make the rounds. Raises Failure; KeyboardInterrupt, when the commands have ended."""
        with closing(self.screen):
            self.screen.starts(len(self.measured.commands))
            self._tournament.run()

    def look(self) -> Look:
        """Whether the answer is known."""
        return self.measured.look()

    @property
    def names(self) -> Sequence[str]:
        """Those that take part: none that is far slower than the first."""
        measured = self.measured
        return [] if measured.paced else [n for n in measured.names if n not in self._out]

    def start(self, left: Sequence[str], number: int) -> Sequence[Alive]:
        """Start commands, and let them warm up.

        All start at once, but in the first round one by one while that is quick: so it is seen what
        a pause does to a command that had none before.
        """
        names = [*left][: 1 if self.measured.options.apart else None]
        commands = {command.name: command for command in self.measured.commands}
        alive, began = list[Alive](), time.monotonic()
        try:
            while len(alive) < len(names):
                spent = time.monotonic() - began - sum(each.pace.late for each in alive)
                first = self.watches_pauses(names, number)
                quick = first and spent < ONE_BY_ONE * self._budget.seconds
                at_once = names[len(alive) : len(alive) + 1 if quick else None]
                for name in at_once:
                    alive.append(Alive(self, commands[name], number, self._keep))
                started = alive[-len(at_once) :]
                self._await(started)
                started = [each for each in started if each.name not in self.failed]
                self.note_arrival(started)
                for each in started:
                    with self.failing(each):
                        self.require_effect(each)
                        each.prepare(looks=first)
                self.note_batches(started)
                alive = [each for each in alive if each.name not in self.failed]
                names = [name for name in names if name not in self.failed]
        except BaseException:
            for each in alive:
                each.close()
            raise
        return alive

    def has_one_optimizer(self, name: str) -> bool:
        """Whether a process of this command was seen to have one optimizer alone."""
        return self.optimizers.get(name) == 1

    def watches_pauses(self, names: Sequence[str], number: int) -> bool:
        """Whether the effect of a pause (SIGSTOP) is measured, for the commands that start."""
        return number == 0 and len(names) > 1

    @contextmanager
    def failing(self, each: Alive) -> Iterator[None]:
        """Around what may fail because of a command: `drop` raises it, or goes on without it."""
        try:
            yield
        except Failure as failure:
            self.drop(each.name, failure)
            each.close()

    def note_arrival(self, started: Sequence[Alive]) -> None:
        """Note what each rank says. Raises ConfigError for a change that took no effect."""
        measured = self.measured
        measured.hellos.update({each.name: each.hellos for each in started})
        change.require_effect(measured.changes, measured.hellos)

    def note_batches(self, started: Sequence[Alive]) -> None:
        """Note how many examples steps take. Raises ConfigError where that differs unseen."""
        measured = self.measured
        for each in started:
            known = measured.batches.get(each.name)
            measured.batches[each.name] = known or batches.taken(each.batches)
        if len(measured.batches) == len(measured.commands):
            factors = batches.factors(measured.commands, measured.hellos, measured.batches)
            measured.examples.update(factors)

    def require_effect(self, each: Alive) -> None:
        """Raise ConfigError unless a command does what it was started to do; here all do."""

    def _await(self, started: Sequence[Alive]) -> None:
        """Wait until commands stand behind their first step.

        On a GPU one at a time takes it: libraries choose kernels there, by time and free memory.
        """
        waiting, measured = {each.name: each for each in started}, self.measured

        def arrived() -> bool:
            for each in [*waiting.values()]:
                with self.failing(each):
                    others = [other for other in waiting.values() if other is not each]
                    if not each.arrived(not any(other.at_gpu for other in others)):
                        continue
                del waiting[each.name]
            if not measured.rounds:
                starts = f"{', '.join(waiting)} start{'s' * (len(waiting) == 1)}"
                self.screen.shows(starts if waiting else "warming up")
            self.screen.tick()
            return not waiting

        poll_until(arrived, interval=LOOK_SECONDS)

    def warm(self, alive: Sequence[Any], takes: Mapping[str, float], own: float) -> Sequence[str]:
        """Leave all out where one's steps catch up after a pause: turns would not show its time."""
        names = [each.name for each in alive]
        if self.measured.paced:
            return names
        if not self.measured.log.turns:
            groups = len(self.measured.commands) / len(names)
            who = "all train" if groups == 1 else f"{names[0]} trains"
            self.screen.trains(who, self._budget.planned(own * groups) - own)
        return []

    def shows(self, number: int, nth: int, left: float) -> None:
        self.screen.tick()

    def round_ended(self, number: int) -> None:
        """Count a round, unless steps catch up after a pause, and show what is known."""
        measured = self.measured
        self.done += not measured.paced
        measured.ends[self.done] = self._tournament.elapsed + self._tournament.not_counted
        if self.done:
            pairs = measured.times().against_baseline
            self._shows_estimate(pairs)
            if len(measured.commands) > 2:
                self._out = far_slower(pairs)

    def note(self, alive: Alive, taken: Taken) -> None:
        """Note what the log does not hold of a turn that counts."""
        measured = self.measured
        measured.places[len(measured.log.turns)] = alive.steps
        for what, seconds in taken.marked.items():
            measured.marked[alive.name] += [(alive.number, what, each) for each in seconds]
        if alive.told["cuda"]:
            gpus = {gpu for hello in alive.hellos for gpu in hello["gpus"]}
            measured.on_gpu.update(clock_limits(gpus))
            own = {pid for each in self._tournament.alive.values() for pid in each.processes}
            measured.on_gpu[BESIDE] += others_on_gpus(taken.begin, own.__contains__)

    def _shows_estimate(self, pairs: Sequence[Pair]) -> None:
        """Show how many rounds there were, and how each command compares with the first so far."""
        measured = self.measured
        so_far = [
            f"{pair.second} {shown(pair.speedup)}" + (f" ({interval(pair)})" if pair.low else "")
            for pair in pairs
        ]
        what = f"times as fast as {measured.names[0]}{measured.what} so far"
        rounds = counted(measured.rounds, "round")
        self.screen.shows(f"{rounds}; {what}: {', '.join(so_far)}")


def budget_of(seconds: float) -> Budget:
    """Return the budget of a bench: starts are a part of it. Where three rounds do not fit, the
    first is the last.
    """
    return Budget(seconds=seconds, with_starts=True)
