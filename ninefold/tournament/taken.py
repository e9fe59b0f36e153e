"""Turns that were taken, which of them count, and the number that is made of them.

What is estimated is the mean seconds of a step of a long run on this host as it is most of the
time. A turn is left out by witnesses that are not the turn itself: the CPU time that other programs
used meanwhile, and the turns around it of two other names or more. Its own seconds never matter: an
uninterrupted run waits for its loader, a disk or a network as well. Where most turns are disturbed,
that is the machine's usual state and every turn counts. benchmarks/log/turns.md has how well this
meets the truth, in simulations and on real machines. Studies, `ninefold.time_steps` and reports use
it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from ninefold.stats.verdicts import Name

BUSY = 0.10  # share of the CPU time that other programs used, above which a turn is disturbed
SWAMPED = 0.5  # the same in the median turn, above which times are those of a busy machine
PEERS = 1.25  # times slower than usual the turns around a turn are if the machine was slow
USUAL = 0.5  # share of the turns that must be undisturbed; else disturbance is the usual state
WIDTH = 2  # turns to each side of a turn that tell how slow the machine was

# Why a turn does not count.
OTHERS, AROUND = "other programs", "slow machine"


@dataclass(frozen=True, kw_only=True)
class TakenTurn:
    """A turn that was taken.

    name: of what trained. round: its number. turn: how many turns it had in this round before.
    order: how many turns there were before, of any name. seconds: per step. steps: that were timed.
    A file has no names, rounds and orders: those of its turns follow from where it lies.
    begin, end: seconds of Unix time, of the whole turn; None where they were not recorded.
    others: share of the CPU time that other programs used meanwhile, 0 to 1; None: not known.
    left_out: why it does not count: OTHERS or AROUND; None: it does.
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
    disturbed: the share of turns that OTHERS or AROUND holds for, 0 to 1. Where it is above
        1 - USUAL, every turn counts.
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
    def left_out(self) -> dict[str, float]:
        """The share of turns that do not count, by the reason, the most frequent one first."""
        reasons = Counter(turn.left_out for turn in self.turns if turn.left_out is not None)
        return {why: count / len(self.turns) for why, count in reasons.most_common()}

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
    found = [_marked(replace(t, left_out=None), (t.others or 0.0) > BUSY, OTHERS) for t in turns]
    slow = _around(found)
    found = [_marked(t, around > PEERS, AROUND) for t, around in zip(found, slow, strict=True)]
    disturbed = sum(turn.left_out is not None for turn in found) / max(len(found), 1)
    if disturbed > 1 - USUAL:
        return Counted([replace(turn, left_out=None) for turn in found], disturbed)
    return Counted(found, disturbed)


def _marked(turn: TakenTurn, out: bool, why: str) -> TakenTurn:
    return replace(turn, left_out=why) if out and turn.left_out is None else turn


def _levels(turns: Sequence[TakenTurn]) -> dict[Name, float]:
    """The median seconds of a step of each name in the turns that are not left out; else in all."""
    of_all, of_kept = defaultdict[Name, list[float]](list), defaultdict[Name, list[float]](list)
    for turn in turns:
        of_all[turn.name].append(turn.seconds)
        if turn.left_out is None:
            of_kept[turn.name].append(turn.seconds)
    return {name: median(of_kept[name] or values) for name, values in of_all.items()}


def _around(turns: Sequence[TakenTurn]) -> list[float]:
    """How many times slower than usual the turns around each turn were; 1 without such.

    The median of WIDTH turns before and WIDTH after it, of other names, in the same round. Of one
    other name alone they would tell its own slow steps.
    """
    levels = _levels(turns)
    names = defaultdict[int, set[Name]](set)
    for turn in turns:
        names[turn.round].add(turn.name)
    slowness = [turn.seconds / (levels[turn.name] or turn.seconds or 1.0) for turn in turns]

    def near(i: int, step: int) -> list[float]:
        found = list[float]()
        reach = 3 * WIDTH  # turns of its own may lie between
        for j in range(i + step, i + (reach + 1) * step, step):
            if not 0 <= j < len(turns) or turns[j].round != turns[i].round:
                break
            if turns[j].name != turns[i].name and len(found) < WIDTH:
                found.append(slowness[j])
        return found

    around = (
        [*near(i, -1), *near(i, 1)] if len(names[turn.round]) > 2 else []
        for i, turn in enumerate(turns)
    )
    return [median(each) if each else 1.0 for each in around]
