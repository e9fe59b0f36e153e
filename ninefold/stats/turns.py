"""Turns that were taken, which of them count, and the number that is made of them.

What is estimated is the mean seconds of a step of a long run on this host as it is most of the
time. A turn is left out by witnesses that are not the turn itself: the CPU time that other programs
used meanwhile, and the turns of the other names around it. The seconds of the turn itself matter
only from FAR times the median on. Where most turns are disturbed, that is the machine's usual state
and every turn counts. docs/method.md has how well this meets the truth, in simulations and on real
machines. Studies, `ninefold.time_steps` and reports use it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

from ninefold.stats.verdicts import Name

BUSY = 0.10  # share of the CPU time that other programs used, above which a turn is disturbed
PEERS = 1.25  # times slower than usual the turns around a turn are if the machine was slow
USUAL = 0.5  # share of the turns that must be undisturbed; else disturbance is the usual state
FAR = 3.0  # times its name's median, from which on a turn is not of what trained
WIDTH = 2  # turns to each side of a turn that tell how slow the machine was

# Why a turn does not count.
OTHERS, AROUND, ALONE = "other programs", "slow machine", "stall"


@dataclass(frozen=True, kw_only=True)
class TakenTurn:
    """A turn that was taken.

    name: of what trained. round: its number. turn: how many turns it had in this round before.
    order: how many turns there were before, of any name. seconds: per step. steps: that were timed.
    begin, end: seconds of Unix time, of the whole turn; None where they were not recorded.
    others: share of the CPU time that other programs used meanwhile, 0 to 1; None: not known.
    """

    name: Name
    round: int
    turn: int
    order: int
    seconds: float
    steps: int
    begin: float | None = None
    end: float | None = None
    others: float | None = None


class TurnLog:
    """The turns that were taken, in order."""

    def __init__(self) -> None:
        self.turns: list[TakenTurn] = []
        self._counts: Counter[tuple[Name, int]] = Counter()

    def add(
        self,
        name: Name,
        number: int,
        seconds: float,
        steps: int,
        begin: float | None = None,
        end: float | None = None,
        others: float | None = None,
    ) -> None:
        """Note a turn. number: of its round; the others: as of `TakenTurn`."""
        turn = self._counts[name, number]
        self._counts[name, number] += 1
        self.turns.append(
            TakenTurn(
                name=name,
                round=number,
                turn=turn,
                order=len(self.turns),
                seconds=seconds,
                steps=steps,
                begin=begin,
                end=end,
                others=others,
            )
        )


@dataclass(frozen=True)
class Counted:
    """Which turns count.

    turns: all, in the order in which they were taken.
    left_out: why each of them does not count: OTHERS, AROUND or ALONE; None: it counts.
    disturbed: the share of turns that OTHERS or AROUND holds for, 0 to 1. Where it is above
        1 - USUAL, every turn counts.
    """

    turns: Sequence[TakenTurn]
    left_out: Sequence[str | None]
    disturbed: float

    @property
    def busy(self) -> bool:
        """Whether most turns are disturbed, so that all count."""
        return self.disturbed > 1 - USUAL

    def seconds(self) -> dict[Name, dict[int, float]]:
        """Seconds of a step by name and round: the mean of the turns that count.

        A name misses a round in which none of its turns does.
        """
        return self._of_rounds(fmean)

    def noise(self) -> dict[Name, dict[int, float]]:
        """The variance of the logarithm of each of `seconds`, by the turns it is the mean of.

        It is missing where only one turn counts.
        """
        return self._of_rounds(noise, least=2)

    def _of_rounds(
        self, number: Callable[[list[float]], float], least: int = 1
    ) -> dict[Name, dict[int, float]]:
        rounds: dict[Name, dict[int, list[float]]] = {turn.name: {} for turn in self.turns}
        for turn, why in zip(self.turns, self.left_out, strict=True):
            if why is None:
                rounds[turn.name].setdefault(turn.round, []).append(turn.seconds)
        return {
            name: {n: number(values) for n, values in of.items() if len(values) >= least}
            for name, of in rounds.items()
        }


def noise(seconds: Sequence[float]) -> float:
    """The variance of the logarithm of the mean of these turns, of which there are two at least."""
    return variance(seconds) / fmean(seconds) ** 2 / len(seconds)


def counted(turns: Sequence[TakenTurn]) -> Counted:
    """Return which turns count. turns: all so far, in the order in which they were taken."""
    why: list[str | None] = [
        OTHERS if turn.others is not None and turn.others > BUSY else None for turn in turns
    ]
    quiet = [each is None for each in why]
    for i, around in enumerate(_around(turns, quiet)):
        if why[i] is None and around is not None and around > PEERS:
            why[i] = AROUND
    disturbed = 1 - why.count(None) / max(len(why), 1)
    if disturbed > 1 - USUAL:
        return Counted(turns, [None] * len(turns), disturbed)
    levels = _levels(turns, [each is None for each in why])
    for i, turn in enumerate(turns):
        if why[i] is None and turn.seconds > FAR * levels[turn.name]:
            why[i] = ALONE
    return Counted(turns, why, disturbed)


def _levels(turns: Sequence[TakenTurn], kept: Sequence[bool]) -> dict[Name, float]:
    """The median seconds of a step of each name in the turns that are kept; else in all."""
    of_all, of_kept = defaultdict[Name, list[float]](list), defaultdict[Name, list[float]](list)
    for turn, keep in zip(turns, kept, strict=True):
        of_all[turn.name].append(turn.seconds)
        if keep:
            of_kept[turn.name].append(turn.seconds)
    return {name: median(of_kept[name] or values) for name, values in of_all.items()}


def _around(turns: Sequence[TakenTurn], quiet: Sequence[bool]) -> list[float | None]:
    """How many times slower than usual the turns around each turn were; None without such.

    The median of WIDTH turns before and WIDTH after it, of other names, in the same round.
    """
    levels = _levels(turns, quiet)
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

    around = ([*near(i, -1), *near(i, 1)] for i in range(len(turns)))
    return [median(each) if each else None for each in around]
