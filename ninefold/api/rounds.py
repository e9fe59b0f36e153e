"""Whose turn is next among some steps, and what their turns took.

After a warm-up, steps take turns in blocks in which each has one, in random order, every second
block in the reverse order of the one before. So what disturbs the machine is as likely to hit any
of them, however long it lasts: if two steps are equal, the difference of their times in a pair of
blocks has either sign with equal chance, whatever the neighbors did before. A round is a fixed
number of blocks; its number for a step is the mean of the step's turns, none left out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ninefold.result import TIMING_LOOKS
from ninefold.study.turn_plan import steps_of_turn

WARM_UP = (1, 1, 1, 2, 4, 8, 16, 32, 64, 71)  # calls of a step in each of its turns: 200 in all
FIRST = 3  # of these turns, which all steps have: in the first calls a step may be compiled
SHARE = 0.2  # of the time: what the warm-up turns after these may take
MOST = TIMING_LOOKS[-1]  # rounds
FEW = 24  # blocks: if fewer fit into the time, each is a round
LEAST = 1e-8  # seconds of a step, at least: some clocks cannot tell less from nothing
ALIKE = 1.25  # turns of steps whose times differ by a smaller factor have equal numbers of steps

Values = Mapping[str, Mapping[int, float]]  # step -> round -> seconds
Took = tuple[Sequence[float], float]  # what `Rounds.took` gets


@dataclass(frozen=True)
class Turn:
    """A turn of a step: `lead` calls that are not timed, then `timed` that are."""

    step: str
    lead: int
    timed: int


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
        known: Callable[[Values], bool],
    ) -> None:
        self._names = sorted(names)  # so that the order in which they were given changes nothing
        self._budget, self._slice, self._several = 60.0 * minutes, slice_, several
        self._known = known
        self._rows: list[dict[str, Any]] = []
        self.done = 0
        self._blocks = self._plan()
        self.block: tuple[Turn, ...] | None = next(self._blocks)

    def took(self, seconds: Sequence[float], elapsed: float) -> None:
        """Go on to the next block.

        seconds: per step, of each turn of this block, in its order. elapsed: since the beginning.
        """
        try:
            self.block = self._blocks.send((seconds, elapsed))
        except StopIteration:
            self.block = None

    def rows(self) -> list[dict[str, Any]]:
        """The turns of complete rounds: step, round, turn (of its round), order, seconds, steps."""
        return [row for row in self._rows if row["round"] < self.done]

    def values(self) -> Values:
        """Seconds of a step in each complete round: the mean of its turns."""
        found: dict[str, dict[int, list[float]]] = {name: {} for name in self._names}
        for row in self.rows():
            found[row["step"]].setdefault(row["round"], []).append(row["seconds"])
        return {name: {n: fmean(of) for n, of in rounds.items()} for name, rounds in found.items()}

    def _plan(self) -> Generator[tuple[Turn, ...], Took, None]:
        """Yield block after block, until the time is up or the answer is known."""
        each, elapsed, late = yield from self._warm_up()
        turns = {name: Turn(name, *self._steps(name, each)) for name in self._names}
        takes = sum((turn.lead + turn.timed) * each[name] for name, turn in turns.items())
        end = self._budget + late
        blocks = blocks_of_round(int(max(end - elapsed, 0) / takes))
        draw, order = random.Random(0), list(self._names)
        for block in range(MOST * blocks):
            if elapsed >= end:
                return
            if block % 2:
                order.reverse()
            else:
                draw.shuffle(order)
            seconds, elapsed = yield tuple(turns[name] for name in order)
            self._note(*divmod(block, blocks), order, seconds, turns)
            if (block + 1) % blocks == 0:
                self.done += 1
                if self.done in TIMING_LOOKS and self._known(self.values()):
                    return

    def _warm_up(self) -> Generator[tuple[Turn, ...], Took, tuple[dict[str, float], float, float]]:
        """Yield the turns that do not count.

        Returns the seconds of each step in the last of them, those that have passed, and by how
        many the first turns took longer than later ones: those are not taken from the time.
        """
        each, elapsed, late = dict.fromkeys(self._names, 0.0), 0.0, 0.0
        first: list[Sequence[float]] = []
        for calls in WARM_UP:
            takes = calls * sum(each.values())
            if len(first) >= FIRST and elapsed - late + takes > SHARE * self._budget:
                break
            seconds, elapsed = yield tuple(Turn(name, 0, calls) for name in self._names)
            known = (max(of, LEAST) for of in seconds)
            each = dict(zip(self._names, known, strict=True))
            if len(first) < FIRST:
                first.append(seconds)
            late = sum(max(a - b, 0) for of in first for a, b in zip(of, seconds, strict=True))
        return each, elapsed, late

    def _steps(self, name: str, each: Mapping[str, float]) -> tuple[int, int]:
        """The untimed and the timed steps of a turn of a step. each: seconds of every step."""
        alike = min(seconds for seconds in each.values() if ALIKE * seconds >= each[name])
        return steps_of_turn(alike, self._slice, self._several)

    def _note(
        self,
        number: int,
        turn: int,
        order: Sequence[str],
        seconds: Sequence[float],
        turns: Mapping[str, Turn],
    ) -> None:
        """Keep the times of a block. number: of the round. turn: number of the block in it."""
        for name, each in zip(order, seconds, strict=True):
            self._rows.append(
                {
                    "step": name,
                    "round": number,
                    "turn": turn,
                    "order": len(self._rows),
                    "seconds": each,
                    "steps": turns[name].timed,
                }
            )


def blocks_of_round(fit: int) -> int:
    """How many blocks a round has if so many fit into the time: 1, or even, for 10 to 20 rounds."""
    return 1 if fit < FEW else 2 * math.ceil(fit / (2 * MOST))
