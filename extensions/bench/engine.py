"""The rounds of a bench: new processes for all commands in each, which take turns in it.

What differs between processes, such as where their memory lies, stays while they live. So the
rounds are what is counted, and as many are made as half of the time can start.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ninefold.api.rounds import LOOKS, MAX_ROUNDS, SAME_SPEED_FACTOR
from ninefold.process import poll_until
from ninefold.report.numbers import counted as in_words
from ninefold.stats.counted_turns import Counted, TurnLog, counted
from ninefold.stats.verdicts import UNDECIDED as OPEN
from ninefold.stats.verdicts import Pair, Settings
from ninefold.study.load import NeighborLoad
from ninefold.study.turn_plan import MIN_TURNS, Turn, mirrored, spread, stretch_steps, turn_counts
from ninefold.turns.times import Times, interval, is_near, shown, times

from .contestant import LOOK_SECONDS, MARKS, Command, Contestant, Ended, last_line
from .gate import LEAST_ROUNDS, UNDECIDED, verdict
from .pacing import AHEAD, ENOUGH, Look, is_short, look
from .screen import Screen

SLICE = 0.1  # seconds of a turn that are timed
SLICE_OF_SEVERAL = 0.3  # the same of several processes, and on a GPU
WARM_UP_SECONDS = 1.0  # of warm-up steps in each process
ONE_BY_ONE = 0.1  # share of the time in which commands of the first round start one by one
IN_CPU = " in CPU time"
STRETCH_ROUNDS = 4  # in one round of so many each command trains alone for a while


@dataclass
class Found:
    """What was found, and how.

    minutes: that all takes, starts included. same: share of time within which commands tie.
    by: "time" or "cpu". count: "steps", or "all": what happens between steps counts. apart: whether
    commands are alive one after another. allowed: the slow-down that a gate allows, if it is one.
    log: all turns; by their order, cpu: CPU seconds per step, where they are known; places: steps
    that the process had taken then. alone: seconds of a step in turns over those in a stretch
    alone, by command and round. paced: what was seen of each command whose steps catch up after a
    pause. marked: seconds of steps that are not counted, by command and what they contained. told:
    what the hook said last, by command. starts, seconds: that starts took, and all.
    """

    commands: Sequence[Command]
    minutes: float
    same: float
    by: str
    count: str
    apart: bool
    allowed: float | None
    log: TurnLog = field(default_factory=TurnLog)
    cpu: dict[int, float] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    alone: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    paced: dict[str, Look] = field(default_factory=dict)
    marked: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    restarts: Counter[str] = field(default_factory=Counter)
    told: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    starts: float = 0.0
    seconds: float = 0.0
    rounds: int = 0

    @property
    def names(self) -> list[str]:
        return [command.name for command in self.commands]

    @property
    def what(self) -> str:
        """In which else than time the commands are compared: a part of a sentence."""
        return IN_CPU if self.by == "cpu" else ""

    @property
    def settings(self) -> Settings:
        """Of the comparison: the chance of a false verdict is shared out among the looks."""
        return Settings(same=self.same, looks=len(LOOKS))

    def counted(self, by: str = "time") -> Counted:
        """Which turns of complete rounds count. by: "cpu": with CPU seconds in their place."""
        found = counted([turn for turn in self.log.turns if turn.round < self.rounds])
        if by == "time":
            return found
        turns = [turn for turn in found.turns if turn.order in self.cpu]
        return replace(found, turns=[replace(t, seconds=self.cpu[t.order]) for t in turns])

    def times(self, by: str | None = None) -> Times:
        """The speedups of all commands so far."""
        found = self.counted(by or self.by)
        return times(self.names, found, self.settings, stretches=self.alone, borrows=False)

    def pairs(self, times: Times) -> list[Pair]:
        """Each other command with the first, which is the base of all that is said."""
        return times.against_baseline

    def is_enough(self) -> bool:
        """Whether the answer is known at one of the planned looks.

        A large difference is shown after few rounds, which say little of how large it is.
        """
        if self.rounds not in LOOKS or self.rounds < LEAST_ROUNDS:
            return False
        pairs = self.pairs(self.times())
        if self.allowed is not None:
            return verdict(pairs[0], self.allowed) != UNDECIDED
        return all(pair.verdict not in OPEN and is_near(pair) for pair in pairs)

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


class Bench:
    """Compares commands in turns. found: what is to be found. keep: the folder for their output."""

    def __init__(self, found: Found, keep: Path) -> None:
        self.found, self._keep = found, keep
        self._commands = {command.name: command for command in found.commands}
        self._budget = 60.0 * found.minutes
        self._began = time.monotonic()
        self._each: dict[str, float] = {}  # seconds of a step
        self._wall: dict[str, float] = {}  # the same with what is not counted
        self._turns: dict[str, Turn] = {}
        marks = MARKS if found.count == "steps" else ()
        self._marking = {name: {*marks} for name in self._commands}
        self._looked = 0.0  # seconds that it took to see whether steps catch up after a pause
        self._load = NeighborLoad()
        self._screen = Screen(self._budget)

    def run(self) -> None:
        """Make the rounds. Raises Failure; KeyboardInterrupt, when the commands have ended."""
        found, last = self.found, 0.0
        with closing(self._screen):
            while found.rounds < MAX_ROUNDS and self._fits(last) and not found.is_enough():
                began = time.monotonic() - self._looked
                names = mirrored(found.names, "start", found.rounds)
                for group in [[name] for name in names] if found.apart else [names]:
                    self._group(found.rounds, group)
                found.seconds = time.monotonic() - self._began
                if found.paced:
                    break
                last = time.monotonic() - self._looked - began
                found.rounds += 1
                self._shows_estimate()

    def _fits(self, last: float) -> bool:
        """Whether there is time for another round; up to the third it may end late.

        last: seconds of the last round.
        """
        left = self._budget - (time.monotonic() - self._began)
        late = self._looked + last / 2 if self.found.rounds < LEAST_ROUNDS else 0.0
        return left + late >= last * 0.75

    def _group(self, number: int, names: Sequence[str]) -> None:
        """Let commands take turns in new processes."""
        began, found = time.monotonic(), self.found
        alive: dict[str, Contestant] = {}
        try:
            self._start(alive, number, names)
            starts = time.monotonic() - began - (self._looked if number == 0 else 0.0)
            found.starts += starts
            if found.paced:
                return
            share = self._budget * len(names) / len(found.names)
            seconds = min(max(2 * starts, share / MAX_ROUNDS), share / LEAST_ROUNDS)
            if not found.log.turns:
                self._says_starts(names, starts, seconds)
            self._take_turns(alive, number, seconds - starts)
            for name in mirrored([*names], "alone", number):
                found.told[name] = alive[name].said
                if number % STRETCH_ROUNDS == 0:
                    self._stretch(alive[name], number)
        finally:
            for contestant in alive.values():
                contestant.close()

    def _start(self, alive: dict[str, Contestant], number: int, names: Sequence[str]) -> None:
        """Start commands, and train until a step takes what it takes from then on.

        All start at once, but in the first round one by one while that is quick: so it is seen what
        a pause does to a command that had none before.
        """
        left = [*names]
        while left:
            first = number == 0 and len(names) > 1 and self.found.by == "time"
            quick = first and time.monotonic() - self._began < ONE_BY_ONE * self._budget
            these = left[: 1 if quick else None]
            del left[: len(these)]
            for name in these:
                marking = self._marking[name]
                alive[name] = Contestant(self._commands[name], number, self._keep, marking)
            waiting = {*these}

            def arrived(waiting: set[str] = waiting) -> bool:
                waiting.difference_update([name for name in waiting if alive[name].arrived()])
                self._shows_starts(alive, waiting)
                return not waiting

            poll_until(arrived, interval=LOOK_SECONDS)
            for name in these:
                self._warm_up(alive[name])
                if self.found.by == "cpu":
                    require_own_cpu(alive[name])
                if first:
                    self._look(alive[name])

    def _look(self, contestant: Contestant) -> None:
        """See whether the steps of a command catch up after a pause."""
        name, began = contestant.command.name, time.monotonic()
        looks, others = list[Look](), 0  # those that show it, and those that do not
        while len(looks) < ENOUGH and others <= bool(looks):
            each, turn = self._each[name], self._turn(contestant)
            share = self._budget / len(self.found.names)
            if not is_short(turn, each, contestant.paused, share):
                break
            try:
                found = look(contestant, turn, each)
            except Ended as ended:
                self._restart(contestant, ended, helps=True)
                break
            self._screen.tick()
            if found.alone > 2 * each:  # it was not warm, or caught up: this turn is none
                self._each[name] = self._wall[name] = found.alone
            elif found.ahead < AHEAD or (looks and looks[-1].later < AHEAD * found.first):
                others += 1  # steps that only become longer are not shorter again after a pause
            else:
                looks.append(found)
        if len(looks) == ENOUGH:
            self.found.paced[name] = min(looks, key=lambda each: each.ahead)
        self._looked += time.monotonic() - began

    def _warm_up(self, contestant: Contestant) -> None:
        """Train until a step takes what it takes from then on."""
        name, spent, steps, takes = contestant.command.name, 0.0, 1, 0
        try:
            while spent < WARM_UP_SECONDS or takes < 2:
                taken = contestant.turn(0, steps)
                seconds = taken.end - taken.begin
                self._each[name], self._wall[name] = taken.seconds, seconds / taken.steps
                spent, steps, takes = spent + seconds, 2 * steps, takes + 1
                self._screen.tick()
        except Ended as ended:
            self._restart(contestant, ended, helps=takes > 0)

    def _restart(self, contestant: Contestant, ended: Ended, helps: bool) -> None:
        """Start a command again that has ended. Raises ConfigError where that helps nothing."""
        command, turn = contestant.command, self._turns.get(contestant.command.name)
        if ended.code:
            raise command.failure(
                f"it ended with code {ended.code} after some {contestant.steps} steps; its output "
                f"ends: {last_line(contestant.log)}; correct it, see {contestant.log}"
            )
        if not helps:
            raise command.failure(
                f"it ends after {contestant.steps} steps; a slice takes "
                f"{turn.steps if turn else 'more'}, and it is started again when it ends; let it "
                "train longer, or --whole"
            )
        self.found.restarts[command.name] += 1
        contestant.restart()
        poll_until(contestant.arrived, interval=LOOK_SECONDS)

    def _turn(self, contestant: Contestant) -> Turn:
        """The turn of a command; of those that are about as fast, all take as many steps."""
        name, several = contestant.command.name, contestant.said["world"] > 1
        own = self._each[name]
        alike = min(each for each in self._each.values() if SAME_SPEED_FACTOR * each >= own)
        seconds = SLICE_OF_SEVERAL if several or contestant.said["cuda"] else SLICE
        return Turn.of(name, alike, seconds, several)

    def _take_turns(self, alive: dict[str, Contestant], number: int, training: float) -> None:
        """Let commands train in turns for so many seconds together, and log these."""
        self._turns = {name: self._turn(contestant) for name, contestant in alive.items()}
        takes = {name: turn.steps * self._wall[name] for name, turn in self._turns.items()}
        counts = turn_counts(takes, max(training, 1e-9))
        done = Counter[str]()
        late = self._began + self._budget * (1 + 1 / LEAST_ROUNDS)
        for name in spread(counts, lambda n: mirrored([*alive], f"turns/{number}", n)):
            if done[name] >= MIN_TURNS and time.monotonic() > late:
                continue
            done[name] += 1
            for again in (True, False):
                try:
                    self._take_turn(alive[name], number, takes[name])
                    break
                except Ended as ended:
                    self._restart(alive[name], ended, helps=again)
            self._screen.tick()

    def _take_turn(self, contestant: Contestant, number: int, expected: float) -> None:
        """Let a command take a turn, and log it. Raises Ended."""
        found, name = self.found, contestant.command.name
        before, order = [*contestant.processes], len(found.log.turns)
        self._load.begin(before)
        turn = self._turns[name]
        taken = contestant.turn(turn.lead, turn.timed, expected)
        # What a process of its own used that has ended is not known.
        whole = {*before} <= {*contestant.processes}
        others = self._load.share(contestant.processes) if whole else None
        own = {"begin": taken.begin, "end": taken.end, "others": others}
        found.log.add(name, number, seconds=taken.seconds, steps=taken.steps, **own)
        found.places[order] = contestant.steps
        if taken.cpu is not None:
            found.cpu[order] = taken.cpu
        for what, seconds in taken.marked.items():
            found.marked[name][what] += seconds

    def _stretch(self, contestant: Contestant, number: int) -> None:
        """Train alone for a second or more: taking turns may itself change what a step takes."""
        name = contestant.command.name
        steps = stretch_steps(self._each[name])
        try:
            taken = contestant.turn(self._turns[name].lead, steps, steps * self._wall[name])
        except Ended:
            return  # it is too short for one
        own = [t.seconds for t in self.found.log.turns if t.name == name and t.round == number]
        self.found.alone[name][number] = fmean(own) / taken.seconds

    def _shows_starts(self, alive: Mapping[str, Contestant], waiting: Set[str]) -> None:
        """Show who has reached its first step."""
        stand = [name for name in alive if name not in waiting]
        said = f"{', '.join(stand)} stand{'s' * (len(stand) == 1)}; " if stand else ""
        starts = f"{', '.join(sorted(waiting))} start{'s' * (len(waiting) == 1)}"
        if not self.found.rounds:
            self._screen.shows(f"{said}{starts}" if waiting else f"{said}warming up")
        self._screen.tick()

    def _says_starts(self, names: Sequence[str], starts: float, seconds: float) -> None:
        """Say what is known once the commands of the first group train.

        seconds: of the group, of which its starts took so many.
        """
        groups = len(self.found.names) / len(names)
        least = LEAST_ROUNDS * 2 * starts * groups
        if least > self._budget:
            self._screen.says(
                f"starts took {starts:.0f} s: --minutes {math.ceil(least / 30) / 2:g} would have "
                f"time for the {LEAST_ROUNDS} repetitions that an answer takes"
            )
        who = "all train" if groups == 1 else f"{names[0]} trains"
        self._screen.trains(who, groups * seconds - starts)

    def _shows_estimate(self) -> None:
        """Show how many rounds there were, and how each command compares with the first so far."""
        found = self.found
        pairs = [(pair.second, pair) for pair in found.pairs(found.times())]
        so_far = [
            f"{name} {shown(pair.speedup)}" + (f" ({interval(pair)})" if pair.low else "")
            for name, pair in pairs
        ]
        rounds = in_words(found.rounds, "repetition")
        self._screen.shows(
            f"{rounds}; times as fast as {found.names[0]} so far: {', '.join(so_far)}"
        )


def require_own_cpu(contestant: Contestant) -> None:
    """Raise ConfigError unless the CPU time of one process is all that a step costs."""
    said = contestant.said
    costs = {
        "ranks": said["world"] > 1,
        "a GPU": said["cuda"],
        "loader workers": said["workers"] > 0,
    }
    if found := [what for what, there in costs.items() if there]:
        raise contestant.command.failure(
            f"it has {found[0]}, whose work is not in its CPU time; --by time is allowed; leave "
            "--by cpu out"
        )
