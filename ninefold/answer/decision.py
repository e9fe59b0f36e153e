"""Decides which contestant to use, and who is measured further.

The rule, stated once. A contestant is acceptable if it is not excluded and its score is shown to be
safe. It is near the fastest if it is shown, with 95 % confidence, to be at most `same` (2 %) slower
than the fastest acceptable one, and not shown to be slower than any. Named is the simplest that is
near; if none is, the fastest so far, and nothing is decided. The sentences are in `words`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from ninefold.answer.facts import Facts
from ninefold.stats.best import Standing
from ninefold.stats.verdicts import OPEN, UNDECIDED, Name, Pair

NEAR = 0.03  # how far from a speedup that is known its interval may reach, as a share of it
FAR = 2.5  # times as fast, from which on it does not matter how many times
Known = TypeVar("Known", bound=Facts)


@dataclass(frozen=True)
class Decision(Generic[Known]):
    """Which contestant to use.

    named: the one that is shown to be it if `decided`, else the fastest so far; None without one.
    candidates: the acceptable ones, the simplest first.
    chance: the confidence, 0 to 1, that `named` is within `same` of the fastest candidate; None
        if it is the only candidate: there is nothing to be confident of.
    may_be: those that may be the fastest acceptable one, the simplest first.
    unscored: those whose score is not yet known to be safe, and that are neither shown to be slower
        nor as fast as `named` and less simple.
    """

    facts: Known
    named: Name | None = None
    candidates: Sequence[Name] = ()
    chance: float | None = None
    may_be: Sequence[Name] = ()
    unscored: Sequence[Name] = ()

    @property
    def decided(self) -> bool:
        """Whether `named` is shown, at the level asked for: then nobody is measured further."""
        if self.named is None or self.unscored:
            return False
        others = {*self.rivals, *self.candidates} - {self.named}
        if not others:  # then there is nothing that more rounds could tell
            return True
        return self.chance is None or self.chance >= 1 - self.facts.settings.level

    @property
    def rivals(self) -> list[Name]:
        """Those with times that do work of their own."""
        return [name for name in self.facts.seconds if name not in self.facts.copies]


def decide(facts: Known) -> Decision[Known]:
    """Return the decision. Names without times take no part in it."""
    verdict, safe = facts.verdict, facts.safe
    possible = [name for name, of in facts.seconds.items() if of and facts.excluded(name) is None]
    possible.sort(key=facts.simplicity)  # type: ignore[arg-type]
    known = [name for name in possible if safe.get(name, "safe") == "safe"]
    unknown = [name for name in possible if safe.get(name) == OPEN]
    if not known:
        return Decision(facts, unscored=unknown)
    named, stand = best_of(facts, known)
    may_be = _unbeaten(facts, known, known)
    rank = facts.simplicity
    unscored = [
        other
        for other in _unbeaten(facts, unknown, known)
        if verdict(named, other) != "tie" or rank(other) < rank(named)  # type: ignore[operator]
    ]
    may_be = sorted({*may_be, stand.lead, *unscored}, key=possible.index)
    chance = stand.chance[named] if len(known) > 1 else None
    return Decision(facts, named, known, chance, may_be, unscored)


def _unbeaten(facts: Facts, names: Iterable[Name], by: Collection[Name]) -> list[Name]:
    """Those of `names` that none of `by` is shown to be faster than."""
    return [name for name in names if all(facts.verdict(name, of) != "faster" for of in by)]


def best_of(facts: Facts, candidates: Sequence[Name]) -> tuple[Name, Standing]:
    """Return who is named of candidates by this module's rule, and how all of them stand."""
    stand, enough = facts.standing(candidates), 1 - facts.settings.level
    near = [
        name for name in _unbeaten(facts, candidates, candidates) if stand.chance[name] >= enough
    ]
    # The lead comes first among what is equally simple.
    near.sort(key=lambda name: name != stand.lead)
    return min(near, key=facts.simplicity) if near else stand.lead, stand  # type: ignore[arg-type]


def left_of_best(facts: Facts) -> tuple[Name | None, list[Name]]:
    """Return who is the best so far, and who is measured further until that is decided: then none.

    Whoever is not shown to have a worse score may be the best. The controls of those that are left
    are measured with them.
    """
    worse = {name: said for name, said in facts.safe.items() if said == "worse"}
    found = decide(replace(facts, safe=worse))
    left = [] if found.named is None or found.decided else [*found.may_be]
    controls = [name for name, of in facts.measured_with.items() if of in left]
    return found.named, left + [name for name in controls if name not in left]


def left_of_pairs(pairs: Iterable[Pair], without: Collection[Name] = ()) -> set[Name]:
    """Return who is measured further until each of these pairs is decided.

    without: a pair with one of these is passed over.
    """
    both = [{pair.first, pair.second} for pair in pairs if pair.verdict in UNDECIDED]
    return set().union(*(names for names in both if not names & {*without}))


def are_decided(pairs: Iterable[Pair]) -> bool:
    """Return whether it is shown how each of these compares, and about how large that is.

    A large difference is shown after few rounds, which say little of how large it is.
    """
    return all(pair.verdict not in UNDECIDED and is_close(pair) for pair in pairs)


def is_close(pair: Pair) -> bool:
    """Return whether the interval of a speedup reaches at most 3 % (NEAR) to either side of it, or
    lies beyond FAR.
    """
    if pair.speedup is None or pair.low is None or pair.high is None:
        return False
    near = pair.high <= (1 + NEAR) * pair.speedup and pair.low >= pair.speedup / (1 + NEAR)
    return near or pair.low >= FAR or pair.high <= 1 / FAR


def far_slower(pairs: Iterable[Pair]) -> set[Name]:
    """Return the second of each pair that is shown to be FAR times as slow as the first."""
    return {p.second for p in pairs if p.high is not None and p.high <= 1 / FAR}
