"""The rounds of a bench: new processes for all commands in each, which take turns in it.

What differs between processes, such as where their memory lies, stays while they live. So the
rounds are what is counted, and as many are made as half of the time can start.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ninefold import progress
from ninefold.api.rounds import LOOKS, MAX_ROUNDS, SAME_SPEED_FACTOR
from ninefold.api.times import Times, times
from ninefold.errors import ResourceError
from ninefold.process import poll_until, scratch
from ninefold.stats.counted_turns import Counted, TurnLog, counted
from ninefold.stats.verdicts import Settings
from ninefold.study.load import NeighborLoad
from ninefold.study.turn_plan import MIN_TURNS, Turn, mirrored, spread, stretch_steps, turn_counts

from .contestant import (
    LOOK_SECONDS,
    Command,
    Contestant,
    Ended,
    Taken,
    last_line,
)

SLICE = 0.1  # seconds of a turn that are timed; of several processes and on a GPU
SLICE_OF_SEVERAL = 0.3
WARM_UP_SECONDS = 1.0  # of warm-up steps in each process
LEAST_ROUNDS = 3  # that the time is divided into
STRETCH_ROUNDS = 4  # in one round of so many each command trains alone for a while
SHORT_WARM_UP = 3  # steps of a command that was started again within its round
WRITTEN = 2000  # files at most that are looked at
NO_MEMORY = "out of memory"


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
    """What the rounds found.

    log: all turns; cpu: CPU seconds per step of each of them, None where not known.
    alone: seconds of a step in turns over those in a stretch alone, by command and round.
    marked: by command and what they contained, how many steps were not counted, and their seconds.
    counted_steps: by command. starts, seconds: that starts took, and all.
    restarts: of commands that ended. written: files that more than one command changed.
    """

    commands: Sequence[Command]
    options: Options
    log: TurnLog = field(default_factory=TurnLog)
    cpu: list[float | None] = field(default_factory=list)
    alone: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    marked: dict[str, dict[str, tuple[int, float]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    counted_steps: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    places: list[int] = field(default_factory=list)  # of each turn: steps that its process had
    restarts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    told: dict[str, dict[str, Any]] = field(default_factory=dict)  # what the hook said, by command
    written: set[str] = field(default_factory=set)
    starts: float = 0.0
    seconds: float = 0.0
    rounds: int = 0

    @property
    def names(self) -> list[str]:
        return [command.name for command in self.commands]

    def counted(self, by: str = "time") -> Counted:
        """Which turns of complete rounds count. by: "cpu": with CPU seconds in their place."""
        turns = [turn for turn in self.log.turns if turn.round < self.rounds]
        found = counted(turns)
        if by == "time":
            return found
        pairs = zip(found.turns, self.cpu, strict=False)
        return Counted(
            [replace(turn, seconds=cpu) for turn, cpu in pairs if cpu is not None], found.disturbed
        )

    @property
    def settings(self) -> Settings:
        """Of the comparison: the chance of a false verdict is shared out among the looks."""
        return Settings(same=self.options.same, looks=len(LOOKS))

    def times(self, by: str | None = None) -> Times:
        """The ratios of all commands so far."""
        found = self.counted(by or self.options.by)
        return times(self.names, found, self.settings, stretches=self.alone)

    def is_enough(self) -> bool:
        """Whether the answer is known at one of the planned looks."""
        looks = self.rounds in LOOKS and self.rounds >= LEAST_ROUNDS
        return looks and self.options.enough(self.times())

    def drift(self) -> dict[str, float]:
        """By how much a command's steps take longer at the end of a round than at its start.

        A share: the slope of the logarithm of their seconds over their numbers, times the numbers
        of a round. Only where it is beyond `same` and its own error.
        """
        found = {}
        for name in self.names:
            turns = [t for t in self.counted().turns if t.name == name and t.left_out is None]
            places = np.array([self.places[t.order] for t in turns], float)
            logs = np.log([t.seconds for t in turns])
            rounds = np.array([t.round for t in turns])
            for number in {*rounds.tolist()}:
                own = rounds == number
                places[own] -= places[own].mean()
                logs[own] -= logs[own].mean()
            spread_of = float(places @ places)
            if len(turns) < 8 or not spread_of:
                continue
            slope = float(places @ logs) / spread_of
            rest = logs - slope * places
            error = math.sqrt(float(rest @ rest) / (len(turns) - 2) / spread_of)
            reach = float(places.max() - places.min())
            if abs(slope) > 4 * error and abs(math.expm1(slope * reach)) > self.options.same:
                found[name] = math.expm1(slope * reach)
        return found


class Bench:
    """Compares commands in turns. keep: the folder for their output. show: whether to tell."""

    def __init__(self, commands: Sequence[Command], options: Options, keep: Path) -> None:
        self.found = Found(commands, options)
        self._options, self._keep = options, keep
        self._budget = 60.0 * options.minutes
        self._began = time.monotonic()
        self._each: dict[str, float] = {}  # seconds of a step
        self._wall: dict[str, float] = {}  # the same with what is not counted
        self._turns: dict[str, Turn] = {}
        self._round_seconds = 0.0  # of the last round
        self._load = NeighborLoad()
        self._files: dict[str, set[str]] = defaultdict(set)  # that changed in its turns
        self._scratch = scratch()
        self._started = 0
        self._bar = progress.bar(
            desc="commands take turns",
            total=math.ceil(self._budget),
            bar_format="{desc}: {n_fmt} of {total_fmt} s{postfix}",
        )

    def run(self) -> Found:
        """Make the rounds. Raises Failure; KeyboardInterrupt, when the commands have ended."""
        found = self.found
        with closing(self._bar):
            for number in range(MAX_ROUNDS):
                if number and not self._fits():
                    break
                began = time.monotonic()
                self._round(number)
                self._round_seconds = time.monotonic() - began
                found.rounds += 1
                found.seconds = time.monotonic() - self._began
                if found.is_enough():
                    break
        return found

    def _fits(self) -> bool:
        """Whether there is time for another round; the third may end late by half of it."""
        left = self._budget - (time.monotonic() - self._began)
        late = self._round_seconds / 2 if self.found.rounds < LEAST_ROUNDS else 0.0
        return left + late >= self._round_seconds * 0.75

    def _round(self, number: int) -> None:
        """Start all commands at once, let them take turns, and kill them."""
        names = mirrored(self.found.names, "start", number)
        groups = [[name] for name in names] if self._options.apart else [names]
        for group in groups:
            self._group(number, group, 1 / len(groups))

    def _group(self, number: int, names: Sequence[str], share: float) -> None:
        """Let commands take turns in new processes. share: of the round that they have."""
        began = time.monotonic()
        alive: dict[str, Contestant] = {}
        try:
            self._say(f"round {number + 1}, starting")
            for name in names:
                alive[name] = self._start(name, number)
            waiting = [*alive]

            def arrived() -> bool:
                waiting[:] = [name for name in waiting if not alive[name].arrived()]
                self._tick()
                return not waiting

            self._wait(arrived, alive)
            for name in names:
                self._warm_up(alive, name, number)
            starts = time.monotonic() - began
            self.found.starts += starts
            seconds = max(2 * starts, share * self._budget / MAX_ROUNDS)
            seconds = min(seconds, share * self._budget / LEAST_ROUNDS)
            self._take_turns(alive, number, seconds - starts)
            if number % STRETCH_ROUNDS == 0:
                for name in mirrored([*names], "alone", number):
                    self._stretch(alive, name, number)
            for name, contestant in alive.items():
                self.found.told[name] = {**contestant.hellos[0], **contestant.said[0]}
                self.found.told[name]["world"] = len(contestant.hellos)
        finally:
            for contestant in alive.values():
                contestant.close()

    def _start(self, name: str, number: int) -> Contestant:
        command = next(each for each in self.found.commands if each.name == name)
        self._started += 1
        log = self._keep / name / f"{number + 1}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        contestant = Contestant(command, number, self._scratch / str(self._started), log)
        if self._options.count == "all":
            contestant.marking.clear()
        return contestant

    def _wait(self, arrived: Callable[[], bool], alive: Mapping[str, Contestant]) -> None:
        """Wait until commands have reached their first step."""
        try:
            poll_until(arrived, interval=LOOK_SECONDS)
        except Exception as error:
            held = [
                each for each in alive.values() if any(h["memory"] for h in each.hellos.values())
            ]
            if NO_MEMORY not in str(error) or not held:
                raise
            taken = {index: of for each in held for index, of in each.hellos[0]["memory"].items()}
            index, (used, whole) = next(iter(taken.items()))
            raise ResourceError(
                "command",
                getattr(error, "value", "?"),
                f"no room for all on device {index}; {held[0].command.name} took "
                f"{used / 2**30:.0f} of {whole / 2**30:.0f} GiB, and {len(alive)} commands are to "
                "be alive at once; smaller batches, or --apart",
            ) from error

    def _warm_up(self, alive: dict[str, Contestant], name: str, number: int) -> None:
        """Train until a step takes what it takes from then on, and plan the turns."""
        contestant, spent, steps, takes = alive[name], 0.0, 1, 0
        while spent < WARM_UP_SECONDS or takes < 2:
            try:
                taken = contestant.turn(0, steps)
            except Ended as ended:
                self._each.setdefault(name, 0.0)
                self._restart(alive, name, number, ended)
                return
            each = taken.seconds
            self._each[name] = max(each, 1e-7)
            self._wall[name] = (taken.end - taken.begin) / taken.steps
            spent += taken.end - taken.begin
            steps, takes = 2 * steps, takes + 1
            self._tick()

    def _restart(self, alive: dict[str, Contestant], name: str, number: int, ended: Ended) -> None:
        """Start a command again that has ended. Raises ConfigError where that helps nothing."""
        old, turn = alive[name], self._turns.get(name)
        command, steps = old.command, f"some {old.steps} steps"
        if ended.code:
            raise command.failure(
                f"it ended with code {ended.code} after {steps}; its output ends: "
                f"{last_line(old.log)}; correct it, see {old.log}"
            )
        if turn is None and self._each[name]:
            turn = self._turn(name, self._each[name], alive)
        if turn is None or old.steps < turn.steps + SHORT_WARM_UP:
            raise command.failure(
                f"it ends after {steps}; a turn takes {turn.steps if turn else 'more'}, and "
                "it is started again when it ends; let it train longer, or --whole"
            )
        old.close()
        self.found.restarts[name] += 1
        alive[name] = self._start(name, number)
        alive[name].marking = old.marking
        self._wait(alive[name].arrived, {name: alive[name]})
        alive[name].turn(SHORT_WARM_UP - 1, 1)

    def _turn(self, name: str, seconds: float, alive: Mapping[str, Contestant]) -> Turn:
        """The turn of a command; of those that are about as fast, all take as many steps."""
        others = [each for each in self._each.values() if SAME_SPEED_FACTOR * each >= seconds > 0]
        hellos = alive[name].hellos
        several = len(hellos) > 1
        long = several or any(hello["cuda"] for hello in hellos.values())
        slice_ = SLICE_OF_SEVERAL if long else SLICE
        return Turn.of(name, min(others, default=seconds), slice_, several)

    def _take_turns(self, alive: dict[str, Contestant], number: int, training: float) -> None:
        """Let commands train in turns for so many seconds together, and log these."""
        self._turns = {name: self._turn(name, self._each[name], alive) for name in alive}
        takes = {name: turn.steps * self._wall[name] for name, turn in self._turns.items()}
        counts = turn_counts(takes, max(training, 1e-9))
        done: dict[str, int] = defaultdict(int)
        late = self._began + self._budget + self._budget / LEAST_ROUNDS
        for name in spread(counts, lambda n: mirrored([*alive], f"turns/{number}", n)):
            if done[name] >= MIN_TURNS and time.monotonic() > late:
                continue
            done[name] += 1
            self._say(f"round {number + 1}, turn {max(done.values())}")
            turn = self._turns[name]
            while True:
                contestant = alive[name]
                before = contestant.own()
                place, since = contestant.steps, time.time()
                self._load.begin(before)
                try:
                    taken = contestant.turn(turn.lead, turn.timed, takes[name])
                    break
                except Ended as ended:
                    self._restart(alive, name, number, ended)
            self._note(name, number, taken, place, self._load.share(contestant.processes))
            if number == 0 and len(self._files[name]) < WRITTEN and done[name] <= MIN_TURNS:
                self._files[name] |= changed(contestant.command.folder, since)
        own = [*self._files.values()]
        if number == 0:
            self.found.written = {
                f for i, files in enumerate(own) for o in own[:i] for f in files & o
            }

    def _note(self, name: str, number: int, taken: Taken, place: int, others: float | None) -> None:
        """Log a turn."""
        found = self.found
        own = {"begin": taken.begin, "end": taken.end, "others": others}
        found.log.add(name, number, seconds=taken.seconds, steps=taken.steps, **own)
        found.cpu.append(taken.cpu)
        found.places.append(place)
        found.counted_steps[name] += taken.steps
        for what, (count, seconds) in taken.marked.items():
            before = found.marked[name].get(what, (0, 0.0))
            found.marked[name][what] = before[0] + count, before[1] + seconds
        self._tick()

    def _stretch(self, alive: dict[str, Contestant], name: str, number: int) -> None:
        """Train alone for a second or more: taking turns may itself change what a step takes."""
        turn = self._turns[name]
        steps = stretch_steps(self._each[name])
        try:
            taken = alive[name].turn(turn.lead, steps, steps * self._wall[name])
        except Ended:
            return  # too short for one; its turns are known
        own = [t.seconds for t in self.found.log.turns if t.name == name and t.round == number]
        self.found.alone[name][number] = float(np.mean(own)) / taken.seconds

    def _say(self, text: str) -> None:
        self._bar.set_postfix_str(f"  {text}", refresh=False)
        self._tick()

    def _tick(self) -> None:
        elapsed = min(time.monotonic() - self._began, self._budget)
        self._bar.update(int(elapsed) - self._bar.n)


def changed(folder: Path, since: float) -> set[str]:
    """Files in a folder that were changed since a time, of the first some thousand."""
    found, seen = set[str](), 0
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            seen += 1
            try:
                if os.stat(os.path.join(root, name)).st_mtime > since:
                    found.add(os.path.relpath(os.path.join(root, name), folder))
            except OSError:
                continue
        if seen > WRITTEN:
            break
    return found
