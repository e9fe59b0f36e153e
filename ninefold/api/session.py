"""Leads one comparison in turns: its rounds, its clock, what its processes agree on."""

from __future__ import annotations

import math
import multiprocessing
import os
import platform
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed

from ninefold import progress
from ninefold.api import devices
from ninefold.api.rounds import LOOKS, Rounds, Took
from ninefold.errors import ConfigError
from ninefold.stats.counted_turns import Counted
from ninefold.stats.verdicts import Settings
from ninefold.study.load import NeighborLoad
from ninefold.study.turn_plan import Turn
from ninefold.turns.times import Times, times
from ninefold.types import MAX_TIME


class Session:
    """Compares steps of these names in turns; arguments as of `time_steps`.

    Its user calls `begin`, and until `block` is None takes the turns in it, each between
    `begin_turn` and `end_turn`; and calls `close`, after an exception too. Under torchrun all ranks
    construct it together. Raises ConfigError.

    clock, accelerator: tell the time in seconds, and run what steps queue.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        minutes: float,
        turn: float,
        same: float,
        level: float,
        baseline: str | None,
        show: bool,
        clock: Callable[[], float] = time.perf_counter,
        accelerator: Any = torch.accelerator,
    ) -> None:
        for field, value, below in (
            ("minutes", minutes, MAX_TIME),
            ("turn", turn, MAX_TIME),
            ("same", same, 1.0),
            ("level", level, 1.0),
        ):
            check_number(field, value, below)
        if baseline is not None and baseline not in names:
            raise ConfigError(
                "baseline",
                baseline,
                f"there is no such step; there are {', '.join(names)}; name one of these",
            )
        self._names, self._clock, self._accelerator = tuple(names), clock, accelerator
        self._used, self._since = list[int](), 0.0  # of this turn: accelerators, its timed steps
        self._settings = Settings(same=same, level=level, looks=len(LOOKS), baseline=baseline)
        self._ranks = RankSync()
        self._ranks.check(names)
        self._neighbors = self._ranks.neighbors()
        self._rounds = Rounds(names, minutes, turn, self._ranks.several, self._is_known)
        self._load = NeighborLoad()
        self._turn_began = 0.0  # in Unix time
        self._taken: list[Took] = []  # turns of this block
        self._shows = show and self._ranks.rank == 0
        self._total = math.ceil(60 * minutes)
        self._bar = progress.bar(
            desc="steps alternate",
            total=self._total,
            bar_format="{desc}: {n_fmt} of {total_fmt} s",
            disable=None if self._shows else True,
        )
        self._began = 0.0

    @property
    def block(self) -> Sequence[Turn] | None:
        """The turns to take now, in order; None at the end."""
        return self._rounds.block

    def start(self) -> None:
        """Begin the timed steps of a turn, when devices have done what was queued."""
        self._used, self._since = devices.in_use(self._accelerator), 0.0
        self._since = self.seconds()

    def seconds(self) -> float:
        """Since `start`. Which devices are in use is not asked again: that would be timed too."""
        for number in self._used:
            self._accelerator.synchronize(number)
        return self._clock() - self._since

    def begin(self) -> None:
        """Begin the time of the whole comparison."""
        self._began = self._clock()

    @property
    def turn(self) -> Turn | None:
        """The turn to take now; None at the end."""
        return None if self.block is None else self.block[len(self._taken)]

    def begin_turn(self) -> None:
        """Begin a turn, or begin it anew: what other programs use is counted from here on."""
        readers = [child.pid for child in multiprocessing.active_children()]
        self._load.begin([*self._neighbors, *filter(None, readers)])
        self._turn_began = time.time()

    def end_turn(self, seconds: float) -> None:
        """End a turn; with the last of a block every rank must call it.

        seconds: per step, in this process.
        """
        assert self.block is not None
        others = self._load.share()
        self._taken.append(Took(seconds, self._turn_began, time.time(), others))
        if len(self._taken) == len(self.block):
            taken, self._taken = self._taken, []
            self._took(taken)

    def _took(self, taken: Sequence[Took]) -> None:
        """Record a block as the slowest rank took it, and go on to the next."""
        seconds = [turn.seconds for turn in taken]
        others = [-1.0 if turn.others is None else turn.others for turn in taken]  # -1: not known
        *found, elapsed = self._ranks.largest([*seconds, *others, self._clock() - self._began])
        slowest, busiest = found[: len(taken)], found[len(taken) :]
        turns = [
            took._replace(seconds=each, others=None if share < 0 else share)
            for took, each, share in zip(taken, slowest, busiest, strict=True)
        ]
        self._rounds.took(turns, elapsed)
        self._bar.update(min(int(elapsed), self._total) - self._bar.n)

    def times(self, caveats: Sequence[str] = ()) -> Times:
        """The result so far; at the end, of all complete rounds. Every rank must call it."""
        last = self._rounds.done
        # While turns go on: the rounds up to the last planned look. `level` is shared out among the
        # planned looks; with others a false verdict would be more likely.
        if self.block is not None:
            last = max((look for look in LOOKS if look <= last), default=0)
        return times(self._names, self._rounds.counted(last), self._settings, caveats)

    def show(self, found: Times) -> None:
        """Print the answer, in rank 0; not in an interactive session, which does that itself."""
        if self._shows and not hasattr(sys, "ps1"):
            print(found, flush=True)

    def close(self) -> None:
        """Close the progress bar and the group of processes, after an exception too."""
        self._bar.close()
        self._ranks.close()

    def _is_known(self, found: Counted) -> bool:
        return times(self._names, found, self._settings).known


def check_number(field: str, value: object, below: float) -> None:
    """Raise ConfigError unless `value` is a number above 0 and below `below`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and 0 < value < below):  # type: ignore[operator]
        allowed = f"a number above 0 and below {below:g}"
        said = repr(value) if isinstance(value, str) else value  # of a long number it may fail
        raise ConfigError(field, said, f"it cannot be that; {allowed}; correct it")


class RankSync:
    """The processes of the default group; one alone where none was made.

    They speak over a group of their own (gloo), so that nothing is queued on a device.

    rank: of this process. several: whether there are others.
    """

    def __init__(self) -> None:
        there = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if there else 0
        self.several = there and distributed.get_world_size() > 1
        self._group: Any = distributed.new_group(backend="gloo") if self.several else None

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of each of these values over all processes, the same in each of them."""
        if not self.several:
            return list(values)
        found = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self._group)
        return [float(value) for value in found.tolist()]

    def check(self, steps: Sequence[str]) -> None:
        """Raise ConfigError, in all processes, unless all have steps of the same names."""
        code = float(zlib.crc32("\n".join(sorted(steps)).encode()))
        # The largest of -code is the smallest code, so that one call gives both.
        most, least = self.largest([code, -code])
        if most != -least:
            raise ConfigError(
                "steps",
                ", ".join(steps),
                f"other ranks have steps of other names; rank {self.rank} has these; give all "
                "ranks the same",
            )

    def neighbors(self) -> list[int]:
        """The ids of the other processes on this host."""
        if not self.several:
            return []
        own = torch.tensor([os.getpid(), zlib.crc32(platform.node().encode())])
        found = [torch.empty_like(own) for _ in range(distributed.get_world_size(self._group))]
        distributed.all_gather(found, own, group=self._group)
        return [int(pid) for pid, host in found if host == own[1] and pid != own[0]]

    def close(self) -> None:
        """Give the group back."""
        if self._group is not None and distributed.is_initialized():
            distributed.destroy_process_group(self._group)
        self._group, self.several = None, False
