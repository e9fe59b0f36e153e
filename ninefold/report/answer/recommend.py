"""Decides which configuration to train with: the fastest of those whose score is safe.

The rule, stated once: named is the simplest configuration that is shown, with 95 % confidence, to
be at most `report.same` (2 %) slower than the fastest acceptable one, and not shown to be slower
than another. If none is, nothing is named: the answer lists those that may be the fastest. The
sentences are in `wording`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

from ninefold.report.answer.evidence import Evidence
from ninefold.report.answer.pairs import Pairs
from ninefold.report.data.cell import Cell, plainness
from ninefold.report.stats.measures import SECONDS
from ninefold.stats.best import Standing
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import OPEN, OTHER_HOSTS

NO_RUNS, NOTHING_SAFE, APART = "no runs", "nothing safe", "different hosts"
FAILED_RUN, COPY, OTHER_NUMERICS = "failed run", "copy", "other numerics"
NEEDLESS = "GradScaler without float16"


@dataclass(frozen=True)
class Recommendation:
    """The decision.

    cell: the configuration that is shown to be the one if `decided`, else the fastest so far; None
        where there is none.
    why_none: NO_RUNS, NOTHING_SAFE or APART where there is none.
    seconds: per epoch, by cell and round or seed.
    pairs: the verdicts on these.
    candidates: the acceptable configurations: measured, and their scores shown to be safe.
    chance: the confidence that `cell` is within `Settings.same` of the fastest candidate; None
        where it is the only one, so that none is claimed.
    may_be: those that may be the fastest acceptable one, the simplest first.
    unscored: those not shown to be slower whose score is not yet known to be safe.
    out: the configurations, safe or not yet, that are shown not to be the fastest of the
        acceptable ones: by all pairs together, or by this smaller question alone.
    """

    evidence: Evidence
    cell: Cell | None = None
    why_none: str | None = None
    seconds: Mapping[Cell, Mapping[int, float]] = field(default_factory=dict)
    pairs: Pairs | None = None
    candidates: Sequence[Cell] = ()
    chance: float | None = None
    may_be: Sequence[Cell] = ()
    unscored: Sequence[Cell] = ()
    out: Sequence[Cell] = ()

    @property
    def decided(self) -> bool:
        """Whether `cell` is shown to be within `Settings.same` of the best, whichever are safe."""
        if self.cell is None or self.unscored:
            return False
        return self.chance is None or self.chance >= 1 - self.evidence.settings.level

    @property
    def settled(self) -> bool:
        """Whether more training runs of the same cells cannot change it.

        Where cells are timed in turns, these runs tell their scores alone.
        """
        if self.why_none in (NO_RUNS, NOTHING_SAFE):
            return False
        return not self.unscored and (self.decided or self.evidence.timed or self.cell is None)

    @cached_property
    def means(self) -> dict[Cell, float]:
        """The mean seconds per epoch of each cell that has some."""
        means = {cell: estimate(known).mean for cell, known in self.seconds.items()}
        return {cell: mean for cell, mean in means.items() if mean is not None}


def excluded(cell: Cell, evidence: Evidence) -> str | None:
    """Return why a cell is not recommended whatever its numbers are, or None."""
    if cell in evidence.bad:
        return FAILED_RUN
    if evidence.copies.get(cell) in evidence.cells:
        return COPY
    if (plain := evidence.needless.get(cell)) is not None and plain not in evidence.bad:
        return NEEDLESS
    return OTHER_NUMERICS if cell in evidence.different else None


def fastest(evidence: Evidence, candidates: Sequence[Cell]) -> tuple[Cell, list[Cell], Standing]:
    """Return the candidate to name, those that may be the fastest, and how all of them stand.

    Named is the one of this module's rule; where it finds none, the fastest so far.
    """
    stand, pairs = evidence.standing(candidates), evidence.pairs
    slower = [
        cell
        for cell in candidates
        if any(pairs.verdict(cell, other) == "faster" for other in candidates)
    ]
    may_be = [cell for cell in candidates if cell not in (*stand.out, *slower)] or [stand.lead]
    enough = 1 - evidence.settings.level
    near = [cell for cell in candidates if stand.chance[cell] >= enough and cell not in slower]
    named = min(near, key=plainness) if near else stand.lead
    return named, sorted({*may_be, stand.lead}, key=plainness), stand


def recommend(evidence: Evidence) -> Recommendation:
    """Return the recommendation for a group of runs."""
    seconds = evidence.values(SECONDS)
    if not seconds:
        return Recommendation(evidence, why_none=NO_RUNS)
    pairs = evidence.pairs
    possible = [cell for cell in seconds if excluded(cell, evidence) is None]
    safe = sorted((cell for cell in possible if evidence.safe[cell] == "safe"), key=plainness)
    unknown = [cell for cell in possible if evidence.safe[cell] == OPEN]
    if not safe:
        return Recommendation(evidence, None, NOTHING_SAFE, seconds, pairs, unscored=unknown)
    if any(pairs.verdict(*pair) == OTHER_HOSTS for pair in combinations([*safe, *unknown], 2)):
        return Recommendation(evidence, None, APART, seconds, pairs, safe, unscored=unknown)
    cell, may_be, stand = fastest(evidence, safe)
    slower = [
        *evidence.standing([*safe, *unknown], by=safe).out,
        *(other for other in unknown if any(pairs.verdict(one, other) == "slower" for one in safe)),
    ]
    unscored = [
        other
        for other in unknown
        if other not in slower
        and (pairs.verdict(cell, other) != "tie" or plainness(other) < plainness(cell))
    ]
    return Recommendation(
        evidence,
        cell,
        None,
        seconds,
        pairs,
        safe,
        stand.chance[cell] if len(safe) > 1 else None,
        sorted({*may_be, *unscored}, key=plainness),
        unscored,
        [
            one
            for one in (*safe, *unknown)
            if one not in (cell, *may_be, *unscored) and pairs.verdict(cell, one) != "tie"
        ],
    )
