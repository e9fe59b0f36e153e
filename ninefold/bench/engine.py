"""The rounds of a bench: new processes for all commands in each, which take turns in it.

What differs between processes, such as where their memory lies, stays while they live. So the
rounds are what is counted, and as many are made as half of the time can start.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ninefold.answer.decision import are_decided, far_slower
from ninefold.answer.facts import facts_of
from ninefold.answer.times import Times, times
from ninefold.answer.words import interval, shown
from ninefold.bench import batches, change
from ninefold.bench.contestant import LOOK_SECONDS, MARKS, Command, Contestant, Taken
from ninefold.bench.gate import UNDECIDED, verdict
from ninefold.bench.pacing import AHEAD, ENOUGH, Pause, is_short, look
from ninefold.bench.screen import ProgressLine
from ninefold.diff.compare import Training, recorded, recording
from ninefold.errors import Failure
from ninefold.numbers import counted as in_words
from ninefold.stats.verdicts import Pair, Settings
from ninefold.tournament.budget import Budget
from ninefold.tournament.contestant import Ended, Entries, Look, Pace, WarmUp
from ninefold.tournament.neighbors import clock_limits, others_on_gpus
from ninefold.tournament.plan import Asked, Turn, turn_steps
from ninefold.tournament.rounds import Tournament
from ninefold.tournament.taken import Counted, TakenTurn, TurnLog, counted
from ninefold.types import LEAST_ROUNDS
from ninefold.waits import poll_until

TURN = 0.1  # seconds of a turn that are timed
TURN_OF_SEVERAL = 0.3  # the same of several processes, and on a GPU
RECORDED = 5  # steps of the first process that are recorded, at most
WARM_UP_SECONDS = 1.0  # of warm-up steps in each process
ONE_BY_ONE = 0.1  # share of the time in which commands of the first round start one by one


class Helps(NamedTuple):
    """What makes a command faster.

    lines: what is said. notes: what was not tried to its end. changes: those that are named, as
    data. together: all of them, or as much of it as was tried in one command, if that is faster.
    open: what is not decided.
    """

    lines: Sequence[str]
    notes: Sequence[str]
    changes: Sequence[Mapping[str, Any]]
    together: Pair | None
    open: Sequence[Pair]


@dataclass
class Found:
    """What was found, and how.

    minutes: that all takes, starts included. same: share of time within which commands tie. apart:
    whether commands are alive one after another. allowed: the slow-down that a gate allows, if it
    is one.
    log: all turns. places: steps that the process had taken then, by the order of turns. alone:
    seconds of a step in a long stretch, by command and round. waits: commands that wait for the
    host. seed: of what was drawn. paced: what was seen of each command whose steps catch up after a
    pause. marked: seconds of steps that are not counted, by command and what they contained. told:
    what the hook said last, by command. memory: bytes, the peak of the process with the most, by
    command and round. recorded: the first steps, with fixed seeds, by command.
    starts, seconds: that starts took, and all. rounds: that were complete. beside_on_gpu: turns in
    which other programs computed on a command's GPU. limits: turns by what lowered the clocks of
    its GPU. said: what each rank of a command said after its first step. taken: what steps take, by
    command. examples: how many times as many a command's step takes as one of the first; empty: as
    many, or not seen. own: seconds of each rank's own work, of steps of the warm-ups, by command.
    helps: of `--try`, what is said, and as data. looks: the share of the time at each look, by
    rounds. bases: the command that another one is held against, by name, unless it is the first.
    """

    commands: Sequence[Command]
    minutes: float
    same: float
    apart: bool
    allowed: float | None
    log: TurnLog = field(default_factory=TurnLog)
    places: dict[int, int] = field(default_factory=dict)
    alone: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    waits: set[str] = field(default_factory=set)
    seed: str = ""
    paced: dict[str, Pause] = field(default_factory=dict)
    marked: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    restarts: Counter[str] = field(default_factory=Counter)
    told: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    memory: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    recorded: dict[str, Training] = field(default_factory=dict)
    starts: float = 0.0
    seconds: float = 0.0
    rounds: int = 0
    beside_on_gpu: int = 0
    limits: Counter[str] = field(default_factory=Counter)
    said: dict[str, Sequence[change.Hello]] = field(default_factory=dict)
    taken: dict[str, batches.StepBatch | None] = field(default_factory=dict)
    examples: Mapping[str, float] = field(default_factory=dict)
    looks: dict[int, float] = field(default_factory=dict)
    own: dict[str, list[list[float]]] = field(default_factory=lambda: defaultdict(list))
    helps: Helps | None = None
    bases: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [command.name for command in self.commands]

    @property
    def what(self) -> str:
        """What else than the time of a step they are compared by: a part of a sentence."""
        differ = any(factor != 1 for factor in self.examples.values())
        return batches.PER_EXAMPLE if differ else ""

    @property
    def changes(self) -> change.Changes:
        """What was changed of each command."""
        return {command.name: command.changes for command in self.commands}

    @property
    def settings(self) -> Settings:
        """Of the comparison."""
        first, *others = self.names
        asked = {frozenset((base, name)) for name in others for base in (first, self.base(name))}
        return Settings(same=self.same, asked=asked)

    def base(self, name: str) -> str:
        """The command that another one is held against."""
        return self.bases.get(name, self.names[0])

    def counted(self) -> Counted:
        """Which turns of complete rounds count."""
        return counted([turn for turn in self.log.turns if turn.round < self.rounds])

    def times(self) -> Times:
        """The speedups of all commands so far, for as many examples, and the seconds of a step."""
        facts = facts_of(
            self.names,
            self.log.turns,
            self.looks,
            self.rounds,
            self.settings,
            stretches=self.alone,
            waits=self.waits,
            work=self.examples,
        )
        made, of = times(facts), self.examples
        return replace(made, seconds={n: of.get(n, 1.0) * t for n, t in made.seconds.items()})

    def pairs(self, times: Times) -> list[Pair]:
        """Each other command with the first, which is the base of all that is said."""
        return times.against_baseline

    def is_enough(self) -> bool:
        """Whether the answer is known."""
        if self.rounds < LEAST_ROUNDS:
            return False
        pairs = self.pairs(self.times())
        if self.allowed is not None:
            return verdict(pairs[0], self.allowed) != UNDECIDED
        return are_decided(pairs)

    @property
    def cuda(self) -> bool:
        """Whether a command has used a GPU."""
        return any(told.get("cuda", False) for told in self.told.values())

    def drift(self, name: str) -> float:
        """By how much a command's steps take longer at the end of a round than at its start.

        A share, from a line through the logarithms of its turns; 0 if it is within `same`, or
        within 4 standard errors.
        """
        turns = [t for t in self.counted().turns if t.name == name and t.left_out is None]
        places = np.array([self.places.get(turn.order, 0) for turn in turns], float)
        logs = np.log([turn.seconds for turn in turns])
        rounds = np.array([turn.round for turn in turns])
        for number in {*rounds}:
            places[rounds == number] -= places[rounds == number].mean()
            logs[rounds == number] -= logs[rounds == number].mean()
        square = float(places @ places)
        if len(turns) < 8 or not square:
            return 0.0
        slope = float(places @ logs) / square
        rest = logs - slope * places
        error = math.sqrt(float(rest @ rest) / (len(turns) - 2) / square)
        found = math.expm1(slope * float(np.ptp(places)))
        return found if abs(slope) > 4 * error and abs(found) > self.same else 0.0


class Alive:
    """A command that trains in turns: a contestant. number: of the round."""

    def __init__(self, bench: Bench, command: Command, number: int, keep: Path) -> None:
        self._bench, self.name, self._number = bench, command.name, number
        beside = not bench.found.apart and len(bench.found.commands) > 1
        one = bench.has_one_optimizer(command.name)
        records = number == 0 and not command.leaves_out
        these = recording(RECORDED) if records else None
        marking = bench.marking[command.name]
        self.held = Contestant(command, number, keep, marking, beside, one, these)
        self.pace = Pace(1.0, 1.0)
        self._waits = list[bool]()  # in each turn

    @property
    def several(self) -> bool:
        return bool(self.held.said["world"] > 1)

    @property
    def turn_seconds(self) -> float:
        return TURN_OF_SEVERAL if self.several or self.held.said["cuda"] else TURN

    @property
    def processes(self) -> list[int]:
        return self.held.processes

    @property
    def steps(self) -> int:
        return self.held.steps

    @property
    def workers(self) -> int:
        return int(self.held.said.get("workers", 0))

    @property
    def waits(self) -> bool:
        return sum(self._waits) > len(self._waits) / 2

    def warm_up(self, known: Pace | None) -> WarmUp:
        """Return its pace: it has warmed up."""
        yield from ()
        return self.pace

    def prepare(self, looks: bool) -> None:
        """Train until a step takes what it takes from then on. looks: whether it may catch up."""
        spent, steps, takes, records = 0.0, 1, 0, False
        try:
            while spent < WARM_UP_SECONDS or takes < 2 or records:
                soon = spent < WARM_UP_SECONDS / 2 and takes < RECORDED
                records = bool(self.held.recording) and soon
                taken = self.held.turn(0, steps, records=records)
                seconds = taken.end - taken.begin
                self.pace = Pace(taken.seconds, seconds / taken.steps)
                spent, takes = spent + seconds, takes + 1
                steps = 1 if records else 2 * steps
                self._bench.screen.tick()
        except Ended as ended:
            self._restart(ended, helps=takes > 0)
        self._bench.optimizers[self.name] = self.held.optimizers
        if steps_ := recorded(self.held.folder):
            self._bench.found.recorded.setdefault(self.name, Training(self.name, steps_))
        if looks:
            began = time.monotonic()
            self._look()
            self.pace = self.pace._replace(late=time.monotonic() - began)

    def _look(self) -> None:
        """See whether its steps catch up after a pause."""
        bench, looks = self._bench, list[Pause]()
        while len(looks) < ENOUGH:
            each = self.pace.step
            total = 60.0 * bench.found.minutes
            asked = Asked(each, self.turn_seconds, self.several, self.workers)
            turn = Turn(self.name, *turn_steps([asked], total))
            share = total / len(bench.found.names)
            if not is_short(turn, each, self.held.paused, share):
                return
            try:
                found = look(self.held, turn, each)
            except Ended as ended:
                self._restart(ended, helps=True)
                return
            bench.screen.tick()
            if found.later > 2 * each:  # it was not warm, or caught up: this turn is none
                self.pace = Pace(found.later, found.later)
            elif found.ahead < AHEAD:
                return
            else:
                looks.append(found)
        bench.found.paced[self.name] = min(looks, key=lambda each: each.ahead)

    def turn(self, turn: Turn) -> float:
        """Take a turn, after a new start where it has ended.

        Raises Failure; Ended if a turn that does not count was not taken.
        """
        for again in (True, False):
            try:
                taken = self.held.turn(turn.lead, turn.timed, turn.expected)
                break
            except Ended as ended:
                if not turn.counted:
                    raise
                self._restart(ended, helps=again, turn=turn)
        self._waits.append(self.held.said["waits"])
        if turn.counted:
            self._bench.note(self, taken)
        self._bench.screen.tick()
        return taken.seconds

    def _restart(self, ended: Ended, helps: bool, turn: Turn | None = None) -> None:
        """Start it again when it has ended. Raises ConfigError where that helps nothing."""
        held, command = self.held, self.held.command
        if ended.code:
            wrong = f"it ended with code {ended.code} after some {held.steps} steps"
            raise command.ended(ended.code, wrong, held.last_words, held.correction)
        if not helps:
            raise command.failure(
                f"it ends after {held.steps or 'its first'} steps",
                "a turn takes "
                f"{turn.steps if turn else 'more'}, and it is started again when it ends",
                "let it train longer, or --whole",
            )
        self._bench.found.restarts[command.name] += 1
        held.restart()
        poll_until(held.arrived, interval=LOOK_SECONDS)

    def end(self, turns: Sequence[TakenTurn], stretch: float | None) -> None:
        """Note what it said last, and the seconds of a step alone."""
        found = self._bench.found
        found.told[self.name] = self.held.said
        found.own[self.name] += self.held.own
        found.memory[self.name][self._number] = self.held.said["memory"]
        if self.waits:
            found.waits.add(self.name)
        if stretch is not None:
            found.alone[self.name][self._number] = stretch

    def close(self) -> None:
        self.held.close()


class Bench(Entries):
    """Compares commands in turns: the entries of a tournament.

    found: what is to be found. keep: the folder for their output. of_budget: what is other than
    `budget_of` says.
    """

    def __init__(self, found: Found, keep: Path, **of_budget: Any) -> None:
        self.found, self._keep, self.done = found, keep, found.rounds
        self.marking = defaultdict[str, set[str]](lambda: {*MARKS})
        self._budget = replace(budget_of(60.0 * found.minutes), **of_budget)
        self._tournament = Tournament(self, self._budget, lambda: Look(self.is_enough()))
        found.log, found.looks = self._tournament.log, self._tournament.looks
        found.seed = self._tournament.seed
        self._out = set[str]()  # commands that are far slower than the first
        self.optimizers = dict[str, int]()  # that were seen, by command
        self.screen = ProgressLine(self._budget.seconds)
        self.failed = dict[str, Failure]()  # commands that are left out, and why

    def run(self) -> None:
        """Make the rounds. Raises Failure; KeyboardInterrupt, when the commands have ended."""
        with closing(self.screen):
            self.screen.starts(len(self.found.names))
            self._tournament.run()

    def is_enough(self) -> bool:
        """Whether the answer is known."""
        return self.found.is_enough()

    @property
    def names(self) -> Sequence[str]:
        """Those that take part: none that is far slower than the first."""
        found = self.found
        return [] if found.paced else [name for name in found.names if name not in self._out]

    def start(self, left: Sequence[str], number: int) -> Sequence[Alive]:
        """Start commands, and let them warm up.

        All start at once, but in the first round one by one while that is quick: so it is seen what
        a pause does to a command that had none before.
        """
        names = [*left][: 1 if self.found.apart else None]
        commands = {command.name: command for command in self.found.commands}
        alive, began = list[Alive](), time.monotonic()
        try:
            while len(alive) < len(names):
                spent = time.monotonic() - began - sum(each.pace.late for each in alive)
                first = self.watches_pauses(names, number)
                quick = first and spent < ONE_BY_ONE * self._budget.seconds
                at_once = names[len(alive) : len(alive) + 1 if quick else None]
                these = list[Alive]()
                for name in at_once:
                    these.append(Alive(self, commands[name], number, self._keep))
                    alive.append(these[-1])
                self._await(these, [each.name for each in alive])
                these = [each for each in these if each.name not in self.failed]
                self.note_arrival(these)
                for each in these:
                    with self.failing(each):
                        self.require_effect(each)
                        each.prepare(looks=first)
                self.note_batches(these)
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

    def note_arrival(self, these: Sequence[Alive]) -> None:
        """Note what each rank says. Raises ConfigError for a change that took no effect."""
        found = self.found
        found.said |= {each.name: each.held.hellos for each in these}
        change.require_effect(found.changes, found.said)

    def note_batches(self, these: Sequence[Alive]) -> None:
        """Note how many examples steps take. Raises ConfigError where that differs unseen."""
        found = self.found
        for each in these:
            known = found.taken.get(each.name)
            found.taken[each.name] = known or batches.taken(each.held.taken)
        if len(found.taken) == len(found.names):
            found.examples = batches.factors(found.commands, found.said, found.taken)

    def require_effect(self, each: Alive) -> None:
        """Raise ConfigError unless a command does what it was started to do; here all do."""

    def _await(self, these: Sequence[Alive], names: Sequence[str]) -> None:
        """Wait until commands stand behind their first step. names: of all that have started.

        On a GPU one at a time takes it: libraries choose kernels there, by time and free memory.
        """
        waiting = {each.name: each for each in these}

        def arrived() -> bool:
            for each in [*waiting.values()]:
                with self.failing(each):
                    others = [other for other in waiting.values() if other is not each]
                    if not each.held.arrived(not any(other.held.at_gpu for other in others)):
                        continue
                del waiting[each.name]
            self._shows_starts(names, waiting.keys())
            return not waiting

        poll_until(arrived, interval=LOOK_SECONDS)

    def warm(self, alive: Sequence[Any], takes: Mapping[str, float], own: float) -> Sequence[str]:
        """Leave all out where one's steps catch up after a pause: turns would not show its time."""
        found = self.found
        found.starts += own
        if found.paced:
            return [each.name for each in alive]
        if not found.log.turns:
            self._says_starts([each.name for each in alive], own)
        return []

    def shows(self, number: int, nth: int, left: float) -> None:
        self.screen.tick()

    def round_ended(self, number: int) -> None:
        """Count a round, and show what is known."""
        self.found.seconds = self._tournament.elapsed + self._tournament.not_counted
        if not self.found.paced:
            self.done = self.found.rounds = self.found.rounds + 1
            self._shows_estimate()
            if len(self.found.names) > 2:
                self._out = far_slower(self.found.pairs(self.found.times()))

    def is_own(self, pid: int) -> bool:
        """Whether a process is of a command that is alive."""
        return any(pid in each.processes for each in self._tournament.alive.values())

    def note(self, alive: Alive, taken: Taken) -> None:
        """Note what the log does not hold of a turn that counts."""
        found, order = self.found, len(self.found.log.turns)
        found.places[order] = alive.held.steps
        for what, seconds in taken.marked.items():
            found.marked[alive.name][what] += seconds
        if alive.held.said["cuda"]:
            gpus = {gpu for hello in alive.held.hellos for gpu in hello["gpus"]}
            found.limits.update(clock_limits(gpus))
            found.beside_on_gpu += others_on_gpus(taken.begin, self.is_own)

    def _shows_starts(self, names: Sequence[str], waiting: Set[str]) -> None:
        """Show who has reached its first step."""
        stand = [name for name in names if name not in waiting]
        said = f"{', '.join(stand)} stand{'s' * (len(stand) == 1)}; " if stand else ""
        starts = f"{', '.join(sorted(waiting))} start{'s' * (len(waiting) == 1)}"
        if not self.found.rounds:
            self.screen.shows(f"{said}{starts}" if waiting else f"{said}warming up")
        self.screen.tick()

    def _says_starts(self, names: Sequence[str], starts: float) -> None:
        """Say what is known once the commands of the first group train.

        starts: seconds that theirs took.
        """
        groups = len(self.found.names) / len(names)
        who = "all train" if groups == 1 else f"{names[0]} trains"
        self.screen.trains(who, self._budget.planned(starts * groups) - starts)

    def _shows_estimate(self) -> None:
        """Show how many rounds there were, and how each command compares with the first so far."""
        found = self.found
        pairs = [(pair.second, pair) for pair in found.pairs(found.times())]
        so_far = [
            f"{name} {shown(pair.speedup)}" + (f" ({interval(pair)})" if pair.low else "")
            for name, pair in pairs
        ]
        rounds = in_words(found.rounds, "round")
        self.screen.shows(
            f"{rounds}; times as fast as {found.names[0]}{found.what} so far: {', '.join(so_far)}"
        )


def budget_of(seconds: float) -> Budget:
    """Return the budget of a bench: as many rounds as half of the time can start.

    Starts are a part of it, and where three rounds do not fit, the first is the last.
    """
    return Budget(seconds=seconds, with_starts=True)
