"""When it is known: the best of all, how all compare, or whether one is slower than allowed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ninefold.stats.verdicts import UNDECIDED, Name, Pair

NEAR = 0.03  # how far from a speedup that is known its interval may reach, as a share of it
FAR = 2.5  # times as fast, from which on it does not matter how many times


@dataclass(frozen=True)
class Look:
    """What is known after some rounds.

    settled: whether further rounds could not change the answer. named: the best one so far. left:
    those that are to be measured further, if it is not settled; None: all.
    """

    settled: bool
    named: str | None = None
    left: Sequence[str] | None = None


def left_of_best(
    candidates: Sequence[Name],
    best: Name,
    chance: float,
    out: Collection[Name],
    level: float,
    copies: Mapping[Name, Name],
) -> list[Name]:
    """Return who is measured further until the best is known; empty once it is.

    candidates: those that may be the answer. best: of them so far, which is within the ties of the
    best with this chance. out: those shown not to be it. copies: what each repeats the work of: one
    that repeats a candidate's is measured with it.
    """
    if not candidates or chance >= 1 - level:
        return []
    left = [name for name in candidates if name not in out]
    return left + [copy for copy, of in copies.items() if of in left and copy not in left]


def left_of_all(pairs: Sequence[Pair], failed: Collection[Name]) -> set[Name]:
    """Return who is measured further until all pairs are known; empty once they are."""
    open_ = [pair for pair in pairs if pair.verdict in UNDECIDED]
    unclear = [pair for pair in open_ if not {pair.first, pair.second} & {*failed}]
    return {name for pair in unclear for name in (pair.first, pair.second)}


def are_known(pairs: Sequence[Pair]) -> bool:
    """Return whether it is shown how each of these compares, and about how large that is.

    A large difference is shown after few rounds, which say little of how large it is.
    """
    return all(pair.verdict not in UNDECIDED and is_clear(pair) for pair in pairs)


def is_clear(pair: Pair) -> bool:
    """Return whether the interval of a speedup reaches at most 3 % (NEAR) to either side of it, or
    lies beyond FAR.
    """
    if pair.speedup is None or pair.low is None or pair.high is None:
        return False
    near = pair.high <= (1 + NEAR) * pair.speedup and pair.low >= pair.speedup / (1 + NEAR)
    return near or pair.low >= FAR or pair.high <= 1 / FAR


def far_slower(pairs: Sequence[Pair]) -> set[Name]:
    """Return the second of each pair that is shown to be FAR times as slow as the first."""
    return {p.second for p in pairs if p.high is not None and p.high <= 1 / FAR}
