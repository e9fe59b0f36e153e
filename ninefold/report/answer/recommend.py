"""Decides which configuration to train with: the fastest of those whose score is safe.

The rule, stated once: named is the simplest configuration that is shown, with 95 % confidence, to
be at most `report.same` (2 %) slower than the fastest acceptable one, and not shown to be slower
than another. If none is, nothing is named: the answer lists those that may be the fastest. The
sentences are in `wording`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from ninefold.report.answer.evidence import Evidence
from ninefold.report.data.cell import PLAIN, Cell, plainness
from ninefold.report.data.rounds import name_of
from ninefold.stats.best import Standing
from ninefold.stats.verdicts import OPEN
from ninefold.tournament.rule import Look, left_of_all, left_of_best

FAILED_RUN, COPY, OTHER_NUMERICS = "failed run", "copy", "other numerics"
NEEDLESS = "GradScaler without float16"
UNSCALED, OTHER_LOSS = "float16 without a GradScaler", "loss of a part of the batch"
SHORT_WEIGHTS = "weights in bfloat16"
FEW_LEFT = 3  # configurations at most, of which it is told what all of them share


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


@dataclass(frozen=True)
class Recommendation:
    """The decision.

    cell: the configuration that is shown to be the one if `decided`, else the fastest so far; None
        where there is none.
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
    candidates: Sequence[Cell] = ()
    chance: float | None = None
    may_be: Sequence[Cell] = ()
    unscored: Sequence[Cell] = ()
    out: Sequence[Cell] = ()

    @property
    def decided(self) -> bool:
        """Return whether `cell` is shown to be within `Settings.same` of the best of all."""
        if self.cell is None or self.unscored:
            return False
        if not {*self.rivals} - {self.cell}:  # then there is nothing that more rounds could tell
            return True
        return self.chance is None or self.chance >= 1 - self.evidence.settings.level

    @property
    def settled(self) -> bool:
        """Return whether more training runs of the same cells cannot change it.

        They tell its scores alone, as times are those of turns.
        """
        return not self.unscored

    @property
    def rivals(self) -> list[Cell]:
        """The measured configurations that do work of their own."""
        left_out = (*self.evidence.no_op_of, *self.evidence.redundant_scaler_of)
        return [cell for cell in self.evidence.seconds if cell not in left_out]

    @property
    def lead(self) -> Lead:
        """The answer, to be put into words."""
        evidence, cell = self.evidence, self.cell
        if cell is None:
            if not evidence.seconds:
                return Lead(Kind.NO_RUN)
            if {*evidence.seconds} <= {*evidence.unscaled()}:
                return Lead(Kind.UNSCALED)
            return Lead(Kind.NOTHING_SAFE if PLAIN in evidence.scores else Kind.NO_BASELINE)
        if self.decided:
            return self._decided(cell)
        if self.unscored:
            one = len(self.unscored) == 1
            return Lead(Kind.SCORE_OPEN if one else Kind.SCORES_OPEN, self.unscored)
        if evidence.few:
            return Lead(Kind.TOO_FEW, [cell])
        if shared := self._shared():
            return Lead(shared, self.may_be)
        return Lead(Kind.TWO_LEFT if len(self.may_be) == 2 else Kind.SEVERAL_LEFT, self.may_be)

    def _decided(self, cell: Cell) -> Lead:
        """The answer where this is shown to be the one."""
        evidence = self.evidence
        if self.chance is None:
            others = [other for other in self.rivals if other != cell]
            if not others:
                untimed, planned = evidence.sweep.untimed, evidence.sweep.planned_cells
                repeated = untimed and len(planned) == 1 + len(untimed)
                return Lead(Kind.SAME_WORK if repeated else Kind.NOTHING_ELSE, [cell])
            slower = all(evidence.verdict(cell, other) == "slower" for other in others)
            return Lead(Kind.OTHERS_SLOWER if slower else Kind.OTHERS_EXCLUDED, [cell])
        speed = evidence.speedup(cell)
        if speed and speed.verdict == "faster":
            return Lead(Kind.FASTER, [cell], speed.value)
        others = [other for other in self.candidates if other != cell]
        if speed is None and all(evidence.verdict(cell, other) == "slower" for other in others):
            return Lead(Kind.OTHERS_SLOWER, [cell])
        return Lead(Kind.BASELINE if cell == PLAIN else Kind.NEAR_FASTEST, [cell])

    def _shared(self) -> Kind | None:
        """Return what those that may be the fastest share, and not all that are acceptable do."""
        parts: dict[Kind, Callable[[Cell], str]] = {
            Kind.ONE_PRECISION: self.evidence.precision,
            Kind.ONE_STRATEGY: lambda cell: cell.strategy,
        }
        if 1 < len(self.may_be) <= FEW_LEFT:
            for kind, part in parts.items():
                if len(set(map(part, self.may_be))) == 1 < len(set(map(part, self.candidates))):
                    return kind
        return None


def excluded(cell: Cell, evidence: Evidence) -> str | None:
    """Return why a cell is not recommended whatever its numbers are, or None."""
    if cell in evidence.failed:
        return FAILED_RUN
    if evidence.no_op_of.get(cell) in evidence.cells:
        return COPY
    plain = evidence.redundant_scaler_of.get(cell)
    if plain is not None and plain not in evidence.failed:
        return NEEDLESS
    if cell in evidence.other_numerics():
        return OTHER_NUMERICS
    if evidence.scored:  # then the scores judge
        return None
    if cell in evidence.unscaled():
        return UNSCALED
    if cell in evidence.in_short_weights():
        return SHORT_WEIGHTS
    return OTHER_LOSS if cell in evidence.other_losses() else None


def open_scores(evidence: Evidence) -> list[Cell]:
    """Return the cells whose score is open, without those that are not named whatever it is."""
    return [
        cell
        for cell, verdict in evidence.safe.items()
        if verdict == OPEN and excluded(cell, evidence) is None
    ]


def scores_decided(evidence: Evidence) -> bool:
    """Return whether scores were compared with the baseline's, all conclusively."""
    if PLAIN not in evidence.scores or open_scores(evidence):
        return False
    return any(cell != PLAIN and verdict != OPEN for cell, verdict in evidence.safe.items())


def fastest(evidence: Evidence, candidates: Sequence[Cell]) -> tuple[Cell, list[Cell], Standing]:
    """Return the candidate to name, those that may be the fastest, and how all of them stand.

    Named is the one of this module's rule; where it finds none, the fastest so far.
    """
    stand = evidence.standing(candidates)
    slower = [
        cell
        for cell in candidates
        if any(evidence.verdict(cell, other) == "faster" for other in candidates)
    ]
    may_be = [cell for cell in candidates if cell not in (*stand.out, *slower)] or [stand.lead]
    enough = 1 - evidence.settings.level
    near = [cell for cell in candidates if stand.chance[cell] >= enough and cell not in slower]
    named = min(near, key=plainness) if near else stand.lead
    return named, sorted({*may_be, stand.lead}, key=plainness), stand


def recommend(evidence: Evidence) -> Recommendation:
    """Return the recommendation for a group of runs."""
    if not evidence.seconds:
        return Recommendation(evidence)
    verdict = evidence.verdict
    possible = [cell for cell in evidence.seconds if excluded(cell, evidence) is None]
    safe = sorted((cell for cell in possible if evidence.safe[cell] == "safe"), key=plainness)
    unknown = [cell for cell in possible if evidence.safe[cell] == OPEN]
    if not safe:
        return Recommendation(evidence, unscored=unknown)
    cell, may_be, stand = fastest(evidence, safe)
    slower = [
        *evidence.standing([*safe, *unknown], by=safe).out,
        *(other for other in unknown if any(verdict(one, other) == "slower" for one in safe)),
    ]
    unscored = [
        other
        for other in unknown
        if other not in slower
        and (verdict(cell, other) != "tie" or plainness(other) < plainness(cell))
    ]
    return Recommendation(
        evidence,
        cell,
        safe,
        stand.chance[cell] if len(safe) > 1 else None,
        sorted({*may_be, *unscored}, key=plainness),
        unscored,
        [
            one
            for one in (*safe, *unknown)
            if one not in (cell, *may_be, *unscored) and verdict(cell, one) != "tie"
        ],
    )


def timing_look(found: Sequence[Evidence], pairs: str) -> Look:
    """Return what is known after the timing rounds so far; cells as the study names them.

    found: evidence of the groups in which cells are timed, largest first. pairs: "best" asks for
    the best cell only, "all" for a verdict on every pair.
    """
    if not found:
        return Look(settled=False)
    left, sweep = [_left(evidence, pairs) for evidence in found], found[0].sweep
    cells = {
        name: run.cell
        for evidence, open_cells in zip(found, left, strict=True)
        for run in evidence.group.timing
        if run.cell in open_cells and (name := name_of(run, sweep))
    }
    candidates = _candidates(found[0])
    best = fastest(found[0], candidates)[0] if candidates else None
    runs = [run for run in found[0].group.timing if run.cell == best]
    named = next(filter(None, (name_of(run, sweep) for run in runs)), best and str(best))
    ordered = sorted(cells, key=lambda name: (plainness(cells[name]), name))
    return Look(not any(left), named, ordered)


def _left(evidence: Evidence, pairs: str) -> Collection[Cell]:
    """The cells of a group that are to be measured further; empty if it is settled."""
    if pairs == "all":
        return left_of_all(evidence.comparison.seconds, evidence.failed)
    candidates = _candidates(evidence)
    if not candidates:
        return []
    best, _, stand = fastest(evidence, candidates)
    copies = {c: of for c, of in evidence.no_op_of.items() if c not in evidence.failed}
    level = evidence.settings.level
    return left_of_best(candidates, best, stand.chance[best], stand.out, level, copies)


def _candidates(evidence: Evidence) -> list[Cell]:
    """The cells that may be the answer: timed, and not shown to have a worse score."""
    return [
        cell
        for cell in evidence.seconds
        if excluded(cell, evidence) is None and evidence.safe[cell] != "worse"
    ]
