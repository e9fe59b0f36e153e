"""Whose turn is next among some steps, and when there are enough.

After a warm-up, steps take turns in blocks in which each has one, in random order, every second
block in the reverse order of the one before. So what disturbs the machine is as likely to hit any
of them, however long it lasts: if two steps are equal, the difference of their times in a pair of
blocks has either sign with equal chance, whatever the neighbors did before. A round is a fixed
number of blocks; `ninefold.stats.counted_turns` makes a number of a step's turns in it that count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

from ninefold.stats.counted_turns import Counted, TurnLog, counted
from ninefold.study.turn_plan import Turn, mirrored, spread
from ninefold.types import MAX_TURNS

WARMUP = (1, 1, 1, 2, 4, 8, 16, 32, 64, 71)  # calls of a step in each of its turns: 200 in all
# Of these turns, which all steps have: in the first calls a step may be compiled.
COMMON_WARMUP_TURNS = 3
WARMUP_SHARE = 0.2  # of the time: what the warm-up turns after these may take
LOOKS = (1, 3, 4, 6, 8, 12, 20)  # rounds after which it is seen whether the answer is known
MAX_ROUNDS = LOOKS[-1]
MIN_BLOCKS = 24  # if fewer fit into the time, each is a round
MIN_SECONDS = 1e-8  # of a step: some clocks cannot tell less from nothing
SAME_SPEED_FACTOR = 1.25  # steps whose times differ by less have equal numbers of steps in a turn


class Took(NamedTuple):
    """How long a turn took; seconds: per step, the others as of `TakenTurn`."""

    seconds: float
    begin: float | None = None
    end: float | None = None
    others: float | None = None


Block = tuple[Sequence[Took], float]  # what `Rounds.took` gets


class Rounds:
    """The turns of some steps, one block after the other.

    names: of the steps. minutes: that all takes, without what compiling takes in the first calls.
    slice_: seconds of a turn that are timed. several: whether several processes take it together.
    known: says of the rounds so far whether they are enough.

    block: the turns to take now, in order; None at the end.
    done: complete rounds.
    """

    def __init__(
        self,
        names: Sequence[str],
        minutes: float,
        slice_: float,
        several: bool,
        known: Callable[[Counted], bool],
    ) -> None:
        self._names = sorted(names)  # so that the order in which they were given changes nothing
        self._budget, self._slice, self._several = 60.0 * minutes, slice_, several
        self._known = known
        self._log = TurnLog()
        self.done = 0
        self._blocks = self._plan()
        self.block: Sequence[Turn] | None = next(self._blocks)

    def took(self, turns: Sequence[Took], elapsed: float) -> None:
        """Go on to the next block.

        turns: those of this block, in its order. elapsed: seconds since the beginning.
        """
        try:
            self.block = self._blocks.send((turns, elapsed))
        except StopIteration:
            self.block = None

    def counted(self, rounds: int | None = None) -> Counted:
        """Which turns of complete rounds count. rounds: how many of these; None: all."""
        most = self.done if rounds is None else rounds
        return counted([turn for turn in self._log.turns if turn.round < most])

    def _plan(self) -> Generator[Sequence[Turn], Block, None]:
        """Yield block after block, until the time is up or the answer is known."""
        each, elapsed, late = yield from self._warm_up()
        turns = {name: self._turn(name, each) for name in self._names}
        end = self._budget + late
        takes = sum(turn.steps * each[name] for name, turn in turns.items())
        blocks = blocks_of_round(int(max(end - elapsed, 0) / takes))
        for number in range(MAX_ROUNDS):
            for block in self._blocks_of_round(number, blocks):
                if elapsed >= end:
                    return
                taken, elapsed = yield [turns[name] for name in block]
                for name, took in zip(block, taken, strict=True):
                    steps = turns[name].timed
                    self._log.add(name, number, steps=steps, **took._asdict())
            self.done += 1
            if self.done in LOOKS and self._known(self.counted()):
                return

    def _blocks_of_round(self, number: int, blocks: int) -> list[list[str]]:
        """The names of each block of a round."""

        def order(block: int) -> list[str]:
            return mirrored(self._names, "turns", number * blocks + block)

        names, size = spread(dict.fromkeys(self._names, blocks), order), len(self._names)
        return [names[first : first + size] for first in range(0, len(names), size)]

    def _warm_up(self) -> Generator[Sequence[Turn], Block, tuple[dict[str, float], float, float]]:
        """Yield the turns that do not count.

        Returns the seconds of each step in the last of them, those that have passed, and by how
        many the first turns took longer than later ones: those are not taken from the time.
        """
        each, elapsed, late = dict.fromkeys(self._names, 0.0), 0.0, 0.0
        first: list[Sequence[float]] = []
        for calls in WARMUP:
            takes = calls * sum(each.values())
            common = len(first) < COMMON_WARMUP_TURNS
            if not common and elapsed - late + takes > WARMUP_SHARE * self._budget:
                break
            taken, elapsed = yield [Turn(name, 0, calls) for name in self._names]
            seconds = [took.seconds for took in taken]
            known = (max(of, MIN_SECONDS) for of in seconds)
            each = dict(zip(self._names, known, strict=True))
            if common:
                first.append(seconds)
            late = sum(max(a - b, 0) for of in first for a, b in zip(of, seconds, strict=True))
        return each, elapsed, late

    def _turn(self, name: str, each: Mapping[str, float]) -> Turn:
        """The turn of a step. each: seconds of every step."""
        alike = min(of for of in each.values() if SAME_SPEED_FACTOR * of >= each[name])
        return Turn.of(name, alike, self._slice, self._several)


def blocks_of_round(fit: int) -> int:
    """How many blocks a round has if so many fit into the time: 1, or even, for 10 to 20 rounds."""
    return 1 if fit < MIN_BLOCKS else min(2 * math.ceil(fit / (2 * MAX_ROUNDS)), MAX_TURNS)
