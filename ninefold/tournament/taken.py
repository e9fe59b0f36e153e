"""Turns that were taken, which of them count, and the number that is made of them.

What is estimated is the mean seconds of a step of a long run on this host as it is most of the
time. A turn is left out by the CPU time that other programs used meanwhile, and by no seconds, its
own or others': an uninterrupted run waits for its loader, a disk or a network as well, and all that
take turns are slow with the same heavy batch. Where most turns are disturbed, that is the machine's
usual state and every turn counts. benchmarks/log/turns.md has how well this meets the truth, in
simulations and on real machines. Studies, `ninefold.time_steps` and reports use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from ninefold.stats.verdicts import Name

BUSY = 0.10  # share of the CPU time that other programs used, above which a turn is disturbed
SWAMPED = 0.5  # the same in the median turn, above which times are those of a busy machine
USUAL = 0.5  # share of the turns that must be undisturbed; else disturbance is the usual state
OTHERS = "other programs"  # why a turn does not count


@dataclass(frozen=True, kw_only=True)
class TakenTurn:
    """A turn that was taken.

    name: of what trained. round: its number. turn: how many turns it had in this round before.
    order: how many turns there were before, of any name. seconds: per step. steps: that were timed.
    A file has no names, rounds and orders: those of its turns follow from where it lies.
    begin, end: seconds of Unix time, of the whole turn; None where they were not recorded.
    others: share of the CPU time that other programs used meanwhile, 0 to 1; None: not known.
    left_out: OTHERS, if it does not count for them; None: it does.
    """

    name: Name = None
    round: int = 0
    turn: int
    order: int = 0
    seconds: float
    steps: int
    begin: float | None = None
    end: float | None = None
    others: float | None = None
    left_out: str | None = None


class TurnLog:
    """The turns that were taken, in order."""

    def __init__(self) -> None:
        self.turns: list[TakenTurn] = []
        self._counts: Counter[tuple[Name, int]] = Counter()

    def add(self, name: Name, number: int, **own: Any) -> None:
        """Note a turn. number: of its round. own: of the turn itself, as of `TakenTurn`."""
        turn, order = self._counts[name, number], len(self.turns)
        self._counts[name, number] += 1
        self.turns.append(TakenTurn(name=name, round=number, turn=turn, order=order, **own))


@dataclass(frozen=True)
class Counted:
    """Which turns count.

    turns: all, in the order in which they were taken, each with why it does not count.
    disturbed: the share of turns that OTHERS holds for, 0 to 1. Where it is above 1 - USUAL, every
        turn counts.
    """

    turns: Sequence[TakenTurn]
    disturbed: float

    @property
    def busy(self) -> bool:
        """Whether most turns are disturbed, so that all count."""
        return self.disturbed > 1 - USUAL

    @property
    def others(self) -> float | None:
        """Share of the CPU time that other programs used in the median turn; None: not known."""
        known = [turn.others for turn in self.turns if turn.others is not None]
        return median(known) if known else None

    @property
    def swamped(self) -> bool:
        """Whether other programs used so much that times say little about the machine alone."""
        return self.others is not None and self.others > SWAMPED

    @property
    def left_out(self) -> float:
        """The share of turns that do not count."""
        return 0.0 if self.busy else self.disturbed

    def seconds(self) -> dict[Name, dict[int, float]]:
        """Seconds of a step by name and round: the mean of the turns that count.

        A name misses a round in which none of its turns does.
        """
        return {
            name: {number: fmean(kept) for number, kept in of.items()}
            for name, of in self.kept().items()
        }

    def kept(self) -> dict[Name, dict[int, list[float]]]:
        """Seconds of a step in each turn that counts, by name and round."""
        rounds: dict[Name, dict[int, list[float]]] = {turn.name: {} for turn in self.turns}
        for turn in self.turns:
            if turn.left_out is None:
                rounds[turn.name].setdefault(turn.round, []).append(turn.seconds)
        return rounds


def counted(turns: Sequence[TakenTurn]) -> Counted:
    """Return which turns count. turns: all so far, in the order in which they were taken."""
    found = [replace(t, left_out=OTHERS if (t.others or 0.0) > BUSY else None) for t in turns]
    disturbed = sum(turn.left_out is not None for turn in found) / max(len(found), 1)
    if disturbed > 1 - USUAL:
        return Counted([replace(turn, left_out=None) for turn in found], disturbed)
    return Counted(found, disturbed)
