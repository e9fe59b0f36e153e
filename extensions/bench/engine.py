"""The rounds of a bench: new processes for all commands in each, which take turns in it.

What differs between processes, such as where their memory lies, stays while they live. So the
rounds are what is counted, and as many are made as half of the time can start.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ninefold import progress
from ninefold.api.rounds import LOOKS, MAX_ROUNDS, SAME_SPEED_FACTOR
from ninefold.api.times import Times, times
from ninefold.errors import ConfigError
from ninefold.process import poll_until, scratch
from ninefold.stats.counted_turns import Counted, TurnLog, counted
from ninefold.stats.verdicts import Settings
from ninefold.study.load import NeighborLoad
from ninefold.study.turn_plan import MIN_TURNS, Turn, mirrored, spread, stretch_steps, turn_counts

from .contestant import LOOK_SECONDS, MARKS, Command, Contestant, Ended, Taken, last_line

SLICE = 0.1  # seconds of a turn that are timed
SLICE_OF_SEVERAL = 0.3  # the same of several processes, and on a GPU
WARM_UP_SECONDS = 1.0  # of warm-up steps in each process
SHORT_WARM_UP = 3  # steps of a command that was started again within its round
LEAST_ROUNDS = 3
STRETCH_ROUNDS = 4  # in one round of so many each command trains alone for a while


@dataclass(frozen=True)
class Options:
    """How commands are compared.

    minutes: that all takes, starts included. same: share of time within which commands tie.
    by: "time" or "cpu". count: "steps", or "all": what happens between steps counts. apart: whether
    commands are alive one after another. enough: says of the answer so far whether it is enough.
    """

    minutes: float = 2.0
    same: float = 0.02
    by: str = "time"
    count: str = "steps"
    apart: bool = False
    enough: Callable[[Times], bool] = lambda found: found.known


@dataclass
class Found:
    """What was found.

    log: all turns; cpu: CPU seconds per step of each, None where not known; places: steps that its
    process had taken before. alone: seconds of a step in turns over those in a stretch alone, by
    command and round. marked: by command, how many steps contained what is not counted, and their
    seconds. told: what the hook said last, by command. starts, seconds: that starts took, and all.
    """

    commands: Sequence[Command]
    options: Options
    log: TurnLog = field(default_factory=TurnLog)
    cpu: list[float | None] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    alone: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    marked: dict[str, dict[str, tuple[int, float]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    restarts: Counter[str] = field(default_factory=Counter)
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    starts: float = 0.0
    seconds: float = 0.0
    rounds: int = 0

    @property
    def names(self) -> list[str]:
        return [command.name for command in self.commands]

    @property
    def settings(self) -> Settings:
        """Of the comparison: the chance of a false verdict is shared out among the looks."""
        return Settings(same=self.options.same, looks=len(LOOKS))

    def counted(self, by: str = "time") -> Counted:
        """Which turns of complete rounds count. by: "cpu": with CPU seconds in their place."""
        found = counted([turn for turn in self.log.turns if turn.round < self.rounds])
        if by == "time":
            return found
        pairs = zip(found.turns, self.cpu, strict=False)
        turns = [replace(turn, seconds=cpu) for turn, cpu in pairs if cpu is not None]
        return Counted(turns, found.disturbed)

    def times(self, by: str | None = None) -> Times:
        """The ratios of all commands so far."""
        found = self.counted(by or self.options.by)
        return times(self.names, found, self.settings, stretches=self.alone, borrows=False)

    def is_enough(self) -> bool:
        """Whether the answer is known at one of the planned looks."""
        looks = self.rounds in LOOKS and self.rounds >= LEAST_ROUNDS
        return looks and self.options.enough(self.times())

    def drift(self, name: str) -> float:
        """By how much a command's steps take longer at the end of a round than at its start.

        A share, from a line through the logarithms of its turns; 0 if it is within `same`, or
        within 4 standard errors.
        """
        turns = [t for t in self.counted().turns if t.name == name and t.left_out is None]
        x, y = [np.empty(0)], [np.empty(0)]
        for number in {turn.round for turn in turns}:
            own = [turn for turn in turns if turn.round == number]
            place = np.array([self.places[turn.order] for turn in own], float)
            logs = np.log([turn.seconds for turn in own])
            x.append(place - place.mean())
            y.append(logs - logs.mean())
        places, logs = np.concatenate(x), np.concatenate(y)
        square = float(places @ places)
        if len(turns) < 8 or not square:
            return 0.0
        slope = float(places @ logs) / square
        rest = logs - slope * places
        error = math.sqrt(float(rest @ rest) / (len(turns) - 2) / square)
        found = math.expm1(slope * float(np.ptp(places)))
        return found if abs(slope) > 4 * error and abs(found) > self.options.same else 0.0


class Bench:
    """Compares commands in turns. keep: the folder for their output."""

    def __init__(self, commands: Sequence[Command], options: Options, keep: Path) -> None:
        self.found = Found(commands, options)
        self._options, self._keep = options, keep
        self._budget = 60.0 * options.minutes
        self._began = time.monotonic()
        self._each: dict[str, float] = {}  # seconds of a step
        self._wall: dict[str, float] = {}  # the same with what is not counted
        self._turns: dict[str, Turn] = {}
        self._marking = {command.name: {*MARKS} for command in commands}
        self._round_seconds = 0.0  # of the last round
        self._load = NeighborLoad()
        self._started = 0
        self._bar = progress.bar(
            desc="commands alternate",
            total=math.ceil(self._budget),
            bar_format="{desc}: {n_fmt} of {total_fmt} s",
        )

    def run(self) -> Found:
        """Make the rounds. Raises Failure; KeyboardInterrupt, when the commands have ended."""
        found = self.found
        with closing(self._bar):
            while found.rounds < MAX_ROUNDS and self._fits() and not found.is_enough():
                began = time.monotonic()
                names = mirrored(found.names, "start", found.rounds)
                for group in [[name] for name in names] if self._options.apart else [names]:
                    self._group(found.rounds, group)
                self._round_seconds = time.monotonic() - began
                found.rounds += 1
                found.seconds = time.monotonic() - self._began
        return found

    def _fits(self) -> bool:
        """Whether there is time for another round; up to the third it may end late by half."""
        left = self._budget - (time.monotonic() - self._began)
        late = self._round_seconds / 2 if self.found.rounds < LEAST_ROUNDS else 0.0
        return left + late >= self._round_seconds * 0.75

    def _group(self, number: int, names: Sequence[str]) -> None:
        """Let commands take turns in new processes."""
        began, found = time.monotonic(), self.found
        alive: dict[str, Contestant] = {}
        try:
            for name in names:
                alive[name] = self._start(name, number)
            waiting = {*names}

            def arrived() -> bool:
                waiting.difference_update([name for name in waiting if alive[name].arrived()])
                self._tick()
                return not waiting

            poll_until(arrived, interval=LOOK_SECONDS)
            for name in names:
                self._warm_up(alive, name, number)
                if self._options.by == "cpu":
                    require_own_cpu(alive[name])
            starts = time.monotonic() - began
            found.starts += starts
            share = self._budget * len(names) / len(found.names)
            seconds = min(max(2 * starts, share / MAX_ROUNDS), share / LEAST_ROUNDS)
            self._take_turns(alive, number, seconds - starts)
            for name in mirrored([*names], "alone", number):
                said = {**alive[name].hellos[0], **alive[name].said}
                found.told[name] = {**said, "world": len(alive[name].hellos)}
                if number % STRETCH_ROUNDS == 0:
                    self._stretch(alive[name], number)
        finally:
            for contestant in alive.values():
                contestant.close()

    def _start(self, name: str, number: int) -> Contestant:
        command = next(each for each in self.found.commands if each.name == name)
        self._started += 1
        marking = self._marking[name] if self._options.count == "steps" else set[str]()
        place = scratch() / str(self._started)
        return Contestant(command, number, place, command.log(self._keep, number), marking)

    def _warm_up(self, alive: dict[str, Contestant], name: str, number: int) -> None:
        """Train until a step takes what it takes from then on."""
        spent, steps, takes = 0.0, 1, 0
        try:
            while spent < WARM_UP_SECONDS or takes < 2:
                taken = alive[name].turn(0, steps)
                seconds = taken.end - taken.begin
                self._each[name] = max(taken.seconds, 1e-7)
                self._wall[name] = seconds / taken.steps
                spent, steps, takes = spent + seconds, 2 * steps, takes + 1
                self._tick()
        except Ended as ended:
            self._restart(alive, name, number, ended)

    def _restart(self, alive: dict[str, Contestant], name: str, number: int, ended: Ended) -> None:
        """Start a command again that has ended. Raises ConfigError where that helps nothing."""
        old = alive[name]
        if ended.code:
            raise old.command.failure(
                f"it ended with code {ended.code} after some {old.steps} steps; its output ends: "
                f"{last_line(old.log)}; correct it, see {old.log}"
            )
        old.close()
        self.found.restarts[name] += 1
        alive[name] = self._start(name, number)
        poll_until(alive[name].arrived, interval=LOOK_SECONDS)
        try:
            taken = alive[name].turn(SHORT_WARM_UP - 1, 1)
        except Ended:
            raise self._too_short(old) from None
        self._each.setdefault(name, max(taken.seconds, 1e-7))
        self._wall.setdefault(name, taken.end - taken.begin)

    def _too_short(self, old: Contestant) -> ConfigError:
        turn = self._turns.get(old.command.name)
        return old.command.failure(
            f"it ends after {old.steps} steps; a slice takes {turn.steps if turn else 'more'}, and "
            "it is started again when it ends; let it train longer, or --whole"
        )

    def _turn(self, name: str, contestant: Contestant) -> Turn:
        """The turn of a command; of those that are about as fast, all take as many steps."""
        own = self._each[name]
        alike = min(each for each in self._each.values() if SAME_SPEED_FACTOR * each >= own)
        several = len(contestant.hellos) > 1
        long = several or any(hello["cuda"] for hello in contestant.hellos.values())
        return Turn.of(name, alike, SLICE_OF_SEVERAL if long else SLICE, several)

    def _take_turns(self, alive: dict[str, Contestant], number: int, training: float) -> None:
        """Let commands train in turns for so many seconds together, and log these."""
        self._turns = {name: self._turn(name, contestant) for name, contestant in alive.items()}
        takes = {name: turn.steps * self._wall[name] for name, turn in self._turns.items()}
        counts = turn_counts(takes, max(training, 1e-9))
        done = Counter[str]()
        late = self._began + self._budget * (1 + 1 / LEAST_ROUNDS)
        for name in spread(counts, lambda n: mirrored([*alive], f"turns/{number}", n)):
            if done[name] < MIN_TURNS or time.monotonic() < late:
                done[name] += 1
                self._take_turn(alive, name, number, takes[name])
                self._tick()

    def _take_turn(
        self, alive: dict[str, Contestant], name: str, number: int, expected: float
    ) -> None:
        """Let a command take a turn, and log it; a second time if it ended in it."""
        turn = self._turns[name]
        for again in (True, False):
            contestant = alive[name]
            before, place = contestant.own(), contestant.steps
            self._load.begin(before)
            try:
                taken = contestant.turn(turn.lead, turn.timed, expected)
                break
            except Ended as ended:
                if not again:
                    raise self._too_short(contestant) from None
                self._restart(alive, name, number, ended)
        # What a process of its own used that has ended is not known.
        whole = {*before} <= {*contestant.processes}
        others = self._load.share(contestant.processes) if whole else None
        self._note(name, number, taken, place, others)

    def _note(self, name: str, number: int, taken: Taken, place: int, others: float | None) -> None:
        """Log a turn."""
        found = self.found
        own = {"begin": taken.begin, "end": taken.end, "others": others}
        found.log.add(name, number, seconds=taken.seconds, steps=taken.steps, **own)
        found.cpu.append(taken.cpu)
        found.places.append(place)
        for what, (count, seconds) in taken.marked.items():
            before = found.marked[name].get(what, (0, 0.0))
            found.marked[name][what] = before[0] + count, before[1] + seconds

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

    def _tick(self) -> None:
        elapsed = min(time.monotonic() - self._began, self._budget)
        self._bar.update(int(elapsed) - self._bar.n)


def require_own_cpu(contestant: Contestant) -> None:
    """Raise ConfigError unless the CPU time of one process is all that a step costs."""
    hello = contestant.hellos[0]
    costs = {
        "ranks": hello["world"] > 1,
        "a GPU": hello["cuda"],
        "loader workers": contestant.said["workers"] > 0,
    }
    if found := [what for what, there in costs.items() if there]:
        raise contestant.command.failure(
            f"it has {found[0]}, whose work is not in its CPU time; --by time is allowed; leave "
            "--by cpu out"
        )
