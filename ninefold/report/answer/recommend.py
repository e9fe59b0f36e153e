"""Decides which cell to train with, for each goal: the best of those whose score is safe.

Of cells that are not shown to differ from the best, the simplest is taken. The sentences are in
`wording`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

from ninefold.report.answer.evidence import Evidence
from ninefold.report.answer.pairs import Pairs, pairs_of
from ninefold.report.data.cell import Cell, plainness
from ninefold.report.stats.measures import BYTES, SECONDS, TO_TARGET
from ninefold.stats.best import Standing
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import OPEN, OTHER_HOSTS, UNDECIDED

NO_RUNS, NOTHING_SAFE, NOT_ENOUGH = "no runs", "nothing safe", "not enough runs"
APART = "different hosts"
FAILED_RUN, COPY, OTHER_NUMERICS = "failed run", "copy", "other numerics"
NEEDLESS = "GradScaler without float16"


@dataclass(frozen=True)
class Goal:
    """What a cell may be best at. name: as in report.json; key: of the measure, less is better."""

    name: str
    key: str


GOALS = (
    Goal("fastest epoch", SECONDS.key),
    Goal("fastest to target", TO_TARGET),
    Goal("least memory", BYTES.key),
)


@dataclass(frozen=True)
class Recommendation:
    """The decision for one goal.

    cell: the recommended cell, None where there is none.
    why_none: NO_RUNS, NOTHING_SAFE, NOT_ENOUGH or APART where there is none.
    values: of the goal's measure, by cell and seed.
    pairs: the verdicts on that measure.
    candidate: the cell that would be recommended if the runs were enough.
    lowest: the cell with the lowest mean of those that are not shown to be beaten.
    tied: cells that tie with the recommended one.
    unsure: cells of which it is not known whether they are better than the candidate and safe.
    open: cells on which more runs could change the decision.
    chance: of the fastest epoch, the confidence that `cell` is within `Settings.same` of the
        fastest safe one; None elsewhere.
    may_be: the cells that may be the fastest safe one, `cell` among them; empty for other goals.
    unscored: cells that are not shown to be slower, and whose score is not yet known to be safe.
    """

    goal: Goal
    evidence: Evidence
    cell: Cell | None = None
    why_none: str | None = None
    values: Mapping[Cell, Mapping[int, float]] = field(default_factory=dict)
    pairs: Pairs | None = None
    candidate: Cell | None = None
    lowest: Cell | None = None
    tied: list[Cell] = field(default_factory=list)
    unsure: list[Cell] = field(default_factory=list)
    open: list[Cell] = field(default_factory=list)
    chance: float | None = None
    may_be: list[Cell] = field(default_factory=list)
    unscored: list[Cell] = field(default_factory=list)

    @property
    def decided(self) -> bool:
        """Whether `cell` is shown to be within `Settings.same` of the best, whichever are safe."""
        sure = self.chance is not None and self.chance >= 1 - self.evidence.settings.level
        return sure and not self.unscored

    @cached_property
    def means(self) -> dict[Cell, float]:
        """The mean of each cell that has one."""
        means = {cell: estimate(known).mean for cell, known in self.values.items()}
        return {cell: mean for cell, mean in means.items() if mean is not None}

    def needed_for(self, others: Sequence[Cell]) -> dict[str, int]:
        """Return how many runs it takes to decide whether `others` beat the candidate.

        The keys are "seed" and "timing round", the values how many of them in all. Open scores need
        seeds, open times what the values are of. Empty if a number is unknown or none is needed.
        """
        found: list[tuple[str, int | None]] = []
        assert self.pairs is not None
        assert self.candidate is not None
        for other in others:
            if self.pairs.verdict(self.candidate, other) in UNDECIDED:
                found.append((self.unit, self.pairs.needed(self.candidate, other)))
            if self.evidence.safe[other] == OPEN:
                safety = self.evidence.safety(other)
                found.append(("seed", safety.needed if safety else None))
        needed: dict[str, int] = {}
        for unit, count in found:
            if count is None:
                return {}
            needed[unit] = max(count, needed.get(unit, 0))
        return needed

    @property
    def unit(self) -> str:
        """What there is one value for: a seed or a timing round."""
        timed = self.evidence.timed and self.goal.key == SECONDS.key
        return "timing round" if timed or not self.evidence.group.training else "seed"


def recommend(evidence: Evidence) -> list[Recommendation]:
    """Return a recommendation for each goal that was measured; that for time always."""
    found = [_for_goal(evidence, goal) for goal in GOALS]
    return [each for each in found if each is not None]


def is_settled(recommendation: Recommendation) -> bool:
    """Return whether more training runs of the same cells cannot change it.

    Where cells are timed in turns, these runs tell their scores alone.
    """
    if recommendation.evidence.timed:
        safe = recommendation.evidence.safe
        return all(safe[cell] != OPEN for cell in recommendation.open)
    return not recommendation.open


def excluded(cell: Cell, evidence: Evidence) -> str | None:
    """Return why a cell is not recommended whatever its numbers are, or None."""
    if cell in evidence.bad:
        return FAILED_RUN
    if evidence.copies.get(cell) in evidence.cells:
        return COPY
    if (plain := evidence.needless.get(cell)) is not None and plain not in evidence.bad:
        return NEEDLESS
    return OTHER_NUMERICS if cell in evidence.different else None


def named(evidence: Evidence, candidates: Sequence[Cell]) -> tuple[Cell, list[Cell], Standing]:
    """Return the candidate to name as the fastest, those that may be it, and how all stand.

    It is the simplest of those that are shown to be within `Settings.same` of the fastest, and not
    shown to be slower than another one; without any, the simplest of those that may be the fastest.
    """
    stand, pairs = evidence.standing(candidates), Pairs(evidence.comparison)
    slower = [
        cell
        for cell in candidates
        if any(pairs.verdict(cell, other) == "faster" for other in candidates)
    ]
    may_be = [cell for cell in candidates if cell not in (*stand.out, *slower)] or [stand.lead]
    enough = 1 - evidence.settings.level
    near = [cell for cell in candidates if stand.chance[cell] >= enough and cell not in slower]
    return min(near or may_be, key=plainness), sorted(may_be, key=plainness), stand


def _fastest(
    found: Recommendation, pairs: Pairs, safe: Sequence[Cell], unknown: Sequence[Cell]
) -> Recommendation:
    """The fastest safe cell. unknown: cells whose score is not yet known to be safe."""
    evidence = found.evidence
    cell, may_be, stand = named(evidence, safe)
    sure = stand.chance[cell] >= 1 - evidence.settings.level
    others = [each for each in may_be if each != cell]
    others = others or [each for each in safe if each not in (cell, *stand.out)]
    unsure = [] if sure else others
    unscored = [other for other in unknown if pairs.verdict(cell, other) != "slower"]
    unsure += [
        other
        for other in unscored
        if pairs.verdict(cell, other) != "tie" or plainness(other) < plainness(cell)
    ]
    known = len(safe) == 1 or any(pairs.ratio(cell, other) for other in safe if other != cell)
    return replace(
        found,
        cell=cell if known else None,
        why_none=None if known else NOT_ENOUGH,
        pairs=pairs,
        candidate=cell,
        lowest=stand.lead,
        tied=[other for other in safe if other != cell and pairs.verdict(cell, other) == "tie"],
        unsure=unsure,
        open=unsure,
        chance=stand.chance[cell],
        may_be=sorted({cell, *may_be, *unscored}, key=plainness),
        unscored=unscored,
    )


def _are_apart(cells: Sequence[Cell], pairs: Pairs) -> bool:
    """Whether two of the cells were run on different hosts, so that no time is the shortest."""
    return any(pairs.verdict(*pair) == OTHER_HOSTS for pair in combinations(cells, 2))


def _for_goal(evidence: Evidence, goal: Goal) -> Recommendation | None:
    values = evidence.of_goal(goal.key)
    if not values:
        if goal is not GOALS[0]:
            return None
        return Recommendation(goal, evidence, why_none=NO_RUNS, open=evidence.cells)
    pairs = pairs_of(evidence, goal.key, values)
    means = Recommendation(goal, evidence, values=values).means
    possible = [cell for cell in means if excluded(cell, evidence) is None]
    safe = sorted((cell for cell in possible if evidence.safe[cell] == "safe"), key=plainness)
    unknown = [cell for cell in possible if evidence.safe[cell] == OPEN]
    if not safe:
        return Recommendation(
            goal, evidence, why_none=NOTHING_SAFE, values=values, open=unknown or evidence.cells
        )
    if _are_apart([*safe, *unknown], pairs):
        return Recommendation(goal, evidence, why_none=APART, values=values, open=unknown)
    if goal.key == SECONDS.key:
        return _fastest(Recommendation(goal, evidence, values=values), pairs, safe, unknown)
    unbeaten = [
        cell for cell in safe if not any(pairs.verdict(cell, other) == "faster" for other in safe)
    ]
    lowest = min(unbeaten or safe, key=lambda cell: means[cell])
    level = [
        cell
        for cell in unbeaten
        if cell == lowest or pairs.verdict(lowest, cell) in ("tie", *UNDECIDED)
    ]
    cell = level[0] if level else lowest
    tied = [other for other in level if other != cell and pairs.verdict(cell, other) == "tie"]
    # Cells that might still turn out to be faster and safe.
    unsure = [other for other in safe if pairs.verdict(cell, other) in UNDECIDED and other != cell]
    unsure += [
        other
        for other in unknown
        if pairs.verdict(cell, other) in ("faster", *UNDECIDED)
        or (pairs.verdict(cell, other) == "tie" and plainness(other) < plainness(cell))
    ]
    others = [other for other in possible if other != cell and evidence.safe[other] != "worse"]
    enough = not others or any(pairs.verdict(cell, other) not in UNDECIDED for other in others)
    return Recommendation(
        goal,
        evidence,
        cell if enough else None,
        None if enough else NOT_ENOUGH,
        values,
        pairs,
        cell,
        lowest,
        tied if enough else [],
        unsure,
        unsure if enough else others,
    )
