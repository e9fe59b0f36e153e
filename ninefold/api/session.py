"""Leads one comparison of steps in turns: its clock, its warm-up, what it shows."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from ninefold import progress
from ninefold.answer.facts import facts_of
from ninefold.answer.times import Times, times
from ninefold.errors import ConfigError
from ninefold.stats.verdicts import Settings
from ninefold.tournament.budget import Budget
from ninefold.tournament.contestant import Contestant, Entries, Look, Pace, Taken, WarmUp
from ninefold.tournament.neighbors import others_on_gpus
from ninefold.tournament.plan import Asked, Turn
from ninefold.tournament.rounds import Tournament
from ninefold.tournament.taken import TakenTurn
from ninefold.types import MAX_TIME

WARM_UP = (1, 1, 1, 2, 4, 8, 16, 32, 64, 71)  # calls of a step in each of its turns: 200 in all
# Of these turns, which all steps have: in the first calls a step may be compiled.
COMMON_TURNS = 3
WARM_UP_SHARE = 0.2  # of the time: what the warm-up turns after these may take
BESIDE_ON_GPU = "Other programs computed on the GPU meanwhile."
MIN_SECONDS = 1e-8  # of a step: some clocks cannot tell less from nothing


class Session(Entries):
    """Compares training steps of this process, for `time_steps`.

    `play` lets functions take the turns, which time themselves by `start_clock` and `seconds`;
    `times` returns what is known then; `close` ends the progress bar, after an exception too.
    Raises ConfigError for arguments that cannot be used.

    names: of the steps. minutes, turn, show: as of `time_steps`; so are same, level and baseline of
    `settings`. clock: returns seconds. accelerator: what computes queued work, as torch.accelerator
    does. seed: of the orders that are drawn; None: a new one.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        minutes: float,
        turn: float,
        settings: Settings,
        show: bool,
        clock: Callable[[], float] = time.perf_counter,
        accelerator: Any = torch.accelerator,
        seed: str | None = None,
    ) -> None:
        check_number("minutes", minutes, MAX_TIME)
        check_number("turn", turn, MAX_TIME)
        check_number("same", settings.same, 1.0)
        check_number("level", settings.level, 1.0)
        if (baseline := settings.baseline) is not None and baseline not in names:
            wrong = "there is no such step"
            allowed = f"there are {', '.join(names)}"
            raise ConfigError("baseline", baseline, wrong, allowed, "name one of these")
        joined = distributed.is_available() and distributed.is_initialized()
        if joined and (count := distributed.get_world_size()) > 1:
            wrong = "each would take turns of its own, and wait for the others for ever"
            do = "compare commands of torchrun with ninefold bench"
            raise ConfigError("processes", count, wrong, "one is allowed", do)
        self._given, self._clock, self._accelerator = tuple(names), clock, accelerator
        self._used, self._since = list[int](), 0.0  # of this turn: accelerators, its timed steps
        self._settings = settings
        self._beside_on_gpu = False  # whether other programs computed there in a turn
        self._total = math.ceil(60 * minutes)
        self._bar = progress.bar(
            desc="steps alternate",
            total=self._total,
            bar_format="{desc}: {n_fmt} of {total_fmt} s",
            disable=not show or None,
        )
        # Sorted, so that the order in which they were given changes nothing.
        self._names, self.done = sorted(names), 0
        self.turn_seconds = turn
        self.takes: Mapping[str, Callable[[Turn], float]] = {}
        self.tournament = Tournament(
            self, steps_budget(60.0 * minutes), self._look, seed, clock=clock
        )
        self.warm_ups = WarmUps(self._names, lambda: self.tournament.elapsed, 60.0 * minutes)

    def play(self, takes: Mapping[str, Callable[[Turn], float]]) -> None:
        """Let functions take the turns, to the end; each returns the seconds of a step."""
        self.takes = takes
        self.tournament.run()

    def start_clock(self) -> None:
        """Begin the timed steps of a turn, when devices have done what was queued."""
        self._used, self._since = in_use(self._accelerator), 0.0
        self._since = self.seconds()

    def seconds(self) -> float:
        """Since `start_clock`. Which devices are in use is not asked again: that would be timed
        too.
        """
        for number in self._used:
            self._accelerator.synchronize(number)
        return self._clock() - self._since

    def agree(self, turn: Turn, taken: Taken) -> Taken:
        """Note a turn, and return it."""
        if self._used and taken.begin is not None and not self._beside_on_gpu:
            self._beside_on_gpu = others_on_gpus(taken.begin, os.getpid().__eq__)
        if not turn.counted:
            self.warm_ups.took(turn.name, taken.seconds)
        self._bar.update(min(int(self.tournament.elapsed), self._total) - self._bar.n)
        return taken

    @property
    def names(self) -> Sequence[str]:
        return self._names

    def start(self, left: Sequence[str], number: int) -> Sequence[Contestant]:
        """Return the steps: they are in this process, and need no start."""
        return [StepTaker(name, self) for name in self.names]

    def round_ended(self, number: int) -> None:
        self.done += 1

    def times(self, caveats: Sequence[str] = ()) -> Times:
        """The result, of all complete rounds."""
        made, caveats = self.tournament, [*caveats, *[BESIDE_ON_GPU] * self._beside_on_gpu]
        facts = facts_of(self._given, made.log.turns, made.looks, self.done, self._settings)
        return times(facts, caveats, made.seed)

    def close(self) -> None:
        """Close the progress bar, after an exception too."""
        self._bar.close()

    def _look(self) -> Look:
        found = self.times()
        return Look(found.closely, found.best)


@dataclass(frozen=True)
class StepTaker:
    """A step of this process: a contestant."""

    name: str
    session: Session
    steps, waits = None, False

    @property
    def processes(self) -> list[int]:
        """Those that read for steps."""
        readers = (child.pid for child in multiprocessing.active_children())
        return [*filter(None, readers)]

    def asks(self, step: float) -> Asked:
        return Asked(step, self.session.turn_seconds, several=False, workers=0)

    def warm_up(self, known: Pace | None) -> WarmUp:
        return self.session.warm_ups.of(self.name)

    def turn(self, turn: Turn) -> float:
        return self.session.takes[self.name](turn)

    def end(self, turns: Sequence[TakenTurn], stretch: float | None) -> None:
        pass

    def close(self) -> None:
        pass


def steps_budget(seconds: float) -> Budget:
    """Return the budget of steps of one process: 10 to 20 rounds of equal numbers of turns."""
    return Budget(seconds=seconds, one_process=True)


def in_use(accelerator: Any) -> list[int]:
    """The numbers of the accelerators that this process uses; empty where it uses none.

    To ask another one for anything would begin to use it, which takes memory of it.
    accelerator: torch's module of that name.
    """
    if not accelerator.is_available():
        return []
    module = torch.get_device_module(accelerator.current_accelerator())
    if not getattr(module, "is_initialized", lambda: True)():  # MPS has no such function
        return []
    current, count = accelerator.current_device_index(), accelerator.device_count()
    return [n for n in range(count) if count > 1 and accelerator.memory_reserved(n)] or [current]


class WarmUps:
    """The warm-up of steps: turns that do not count, as many of each, as long as time allows."""

    def __init__(self, names: Sequence[str], elapsed: Callable[[], float], budget: float) -> None:
        self._elapsed, self._budget = elapsed, budget
        self._each = dict.fromkeys(names, 0.0)
        self._first: dict[str, list[float]] = {name: [] for name in names}
        self._goes_on: dict[int, bool] = {}  # by turn
        self._paces: dict[str, Pace] = {}

    def of(self, name: str) -> WarmUp:
        """Yield the turns of a step, and return its pace."""
        if name in self._paces:
            return self._paces[name]._replace(late=0.0)
        for number, calls in enumerate(WARM_UP):
            if not self._continues(number, calls):
                break
            yield Turn(name, 0, calls, counted=False)
        step = self._each[name]
        self._paces[name] = Pace(step, step, self._late(name))
        return self._paces[name]

    def took(self, name: str, seconds: float) -> None:
        """Note the seconds of a call in a turn of these.

        Each step's are known when the next turn of all is decided.
        """
        self._each[name] = max(seconds, MIN_SECONDS)
        if len(self._first[name]) < COMMON_TURNS:
            self._first[name].append(seconds)

    def _late(self, name: str) -> float:
        """By how much its first turns took longer than later ones: a step may be compiled."""
        return sum(max(first - self._each[name], 0.0) for first in self._first[name])

    def _continues(self, number: int, calls: int) -> bool:
        """Whether there is time for a turn of each: decided once for all of them."""
        if number not in self._goes_on:
            late = sum(map(self._late, self._each))
            takes = calls * sum(self._each.values())
            spent = self._elapsed() - late + takes
            common = number < COMMON_TURNS
            self._goes_on[number] = common or spent <= WARM_UP_SHARE * self._budget
        return self._goes_on[number]


def check_number(field: str, value: object, below: float) -> None:
    """Raise ConfigError unless `value` is a number above 0 and below `below`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and 0 < value < below):  # type: ignore[operator]
        allowed = f"a number above 0 and below {below:g}"
        said = repr(value) if isinstance(value, str) else value  # of a long number it may fail
        raise ConfigError(field, said, "it cannot be that", allowed, "correct it")
