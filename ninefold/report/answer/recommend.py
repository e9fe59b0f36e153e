"""What the answer of a study is, before it is put into words by `wording`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from ninefold.answer.decision import Decision, left_of_best, left_of_pairs
from ninefold.report.answer.evidence import Evidence
from ninefold.report.data.cell import PLAIN, Cell
from ninefold.report.data.rounds import name_of
from ninefold.tournament.contestant import Look

FEW_LEFT = 3  # configurations at most, of which it is told what all of them share
Recommendation = Decision[Evidence]


class Kind(Enum):
    """What an answer is: the configurations that it is about are those of its `Lead`."""

    NO_RUN = auto()  # ended well
    NO_BASELINE = auto()
    UNSCALED = auto()  # all that was measured is float16 without a GradScaler
    NOTHING_SAFE = auto()
    # Decided: the one to use
    NOTHING_ELSE = auto()  # was measured
    SAME_WORK = auto()  # is what all others do
    OTHERS_SLOWER = auto()  # and none of them is acceptable
    OTHERS_EXCLUDED = auto()
    FASTER = auto()  # than the baseline
    BASELINE = auto()
    NEAR_FASTEST = auto()
    # Not decided: those that are open
    SCORE_OPEN = auto()
    SCORES_OPEN = auto()
    ONE_PRECISION = auto()  # all have the same, of several that were measured
    ONE_STRATEGY = auto()
    TOO_FEW = auto()  # rounds: the fastest so far
    TWO_LEFT = auto()
    SEVERAL_LEFT = auto()


@dataclass(frozen=True)
class Lead:
    """An answer before it is put into words. speedup: over the baseline, where it is the answer."""

    kind: Kind
    cells: Sequence[Cell] = ()
    speedup: float | None = None


def lead_of(found: Recommendation) -> Lead:
    """Return the answer, to be put into words."""
    facts, cell = found.facts, found.named
    if cell is None:
        if not facts.seconds:
            return Lead(Kind.NO_RUN)
        if {*facts.seconds} <= {*facts.unscaled()}:
            return Lead(Kind.UNSCALED)
        return Lead(Kind.NOTHING_SAFE if PLAIN in facts.scores else Kind.NO_BASELINE)
    if found.decided:
        return _decided(found, cell)
    if found.unscored:
        one = len(found.unscored) == 1
        return Lead(Kind.SCORE_OPEN if one else Kind.SCORES_OPEN, found.unscored)
    if facts.few:
        return Lead(Kind.TOO_FEW, [cell])
    if shared := _shared(found):
        return Lead(shared, found.may_be)
    return Lead(Kind.TWO_LEFT if len(found.may_be) == 2 else Kind.SEVERAL_LEFT, found.may_be)


def _decided(found: Recommendation, cell: Cell) -> Lead:
    """The answer where this is shown to be the one."""
    facts = found.facts
    if found.chance is None:
        others = [other for other in found.rivals if other != cell]
        if not others:
            untimed, planned = facts.sweep.untimed, facts.sweep.planned_cells
            repeated = untimed and len(planned) == 1 + len(untimed)
            return Lead(Kind.SAME_WORK if repeated else Kind.NOTHING_ELSE, [cell])
        slower = all(facts.verdict(cell, other) == "slower" for other in others)
        return Lead(Kind.OTHERS_SLOWER if slower else Kind.OTHERS_EXCLUDED, [cell])
    speed = facts.speedup(cell)
    if speed and speed.verdict == "faster":
        return Lead(Kind.FASTER, [cell], speed.value)
    others = [other for other in found.candidates if other != cell]
    if speed is None and all(facts.verdict(cell, other) == "slower" for other in others):
        return Lead(Kind.OTHERS_SLOWER, [cell])
    return Lead(Kind.BASELINE if cell == PLAIN else Kind.NEAR_FASTEST, [cell])


def _shared(found: Recommendation) -> Kind | None:
    """Return what those that may be the fastest share, and not all that are acceptable do."""
    parts: dict[Kind, Callable[[Cell], str]] = {
        Kind.ONE_PRECISION: found.facts.precision,
        Kind.ONE_STRATEGY: lambda cell: cell.strategy,
    }
    if 1 < len(found.may_be) <= FEW_LEFT:
        for kind, part in parts.items():
            if len(set(map(part, found.may_be))) == 1 < len(set(map(part, found.candidates))):
                return kind
    return None


def look_at(found: Sequence[Evidence], pairs: str) -> Look:
    """Return what is known after the timing rounds so far; cells as the study names them.

    found: evidence of the groups in which cells are timed, largest first. pairs: "best" asks for
    the best cell only, "all" for a verdict on every pair.
    """
    if not found:
        return Look(decided=False)
    bests = [left_of_best(facts) for facts in found]
    left = [set(own) for _, own in bests]
    if pairs == "all":
        left = [left_of_pairs(facts.comparison.seconds, facts.failed) for facts in found]
    cells = {
        name: run.cell
        for facts, open_cells in zip(found, left, strict=True)
        for run in facts.group.timing
        if run.cell in open_cells and (name := name_of(run, facts.sweep))
    }
    best = bests[0][0]
    runs = [run for run in found[0].group.timing if run.cell == best]
    named = next(filter(None, (name_of(run, found[0].sweep) for run in runs)), best and str(best))
    rank = found[0].simplicity
    return Look(not any(left), named, sorted(cells, key=lambda name: (rank(cells[name]), name)))
