"""The answer of a study, and whether it needs more rounds or runs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from ninefold.answer import leads, reasons
from ninefold.answer.answer import Answer
from ninefold.answer.cell import Cell
from ninefold.answer.decision import Decision, decide, left_of_best, left_of_pairs
from ninefold.answer.gather import facts_of_study
from ninefold.answer.next_steps import NextSteps
from ninefold.answer.runs import Run, name_of
from ninefold.answer.study_facts import StudyFacts
from ninefold.extensions import ANSWERS
from ninefold.stats.verdicts import OPEN, UNDECIDED
from ninefold.study_record import StudyRecord
from ninefold.tournament.contestant import Look


def answer(facts: StudyFacts, steps: NextSteps) -> Answer:
    """Return which configuration is the fastest; of whole runs, which keep the score."""
    found = decide(facts)
    more = steps.surer(found)
    if not facts.asks_time:
        why = reasons.exclusions(facts)
        return Answer(leads.lead_of_scores(facts), facts.scores_decided, reasons=why, surer=more)
    chance, why = found.chance if found.decided else None, reasons.reasons(found)
    return Answer(leads.lead(found), found.decided, found.named, chance, why, surer=more)


def look_at(runs: Sequence[Run], sweep: StudyRecord, pairs: str) -> Look:
    """Return what the timing rounds of a study have shown, and which cells to measure further.

    runs: so far, as `rounds.runs_of` returns them. pairs: "best" asks for the best cell only, "all"
    for a verdict on every pair, as where no cell may be named.
    """
    found = [facts for facts in facts_of_study(runs, sweep) if facts.timed]
    if not found:
        return Look(decided=False)
    bests = [left_of_best(facts) for facts in found]
    left = [
        left_of_pairs(facts.comparison.seconds, facts.failed)
        if pairs == "all" or named is None
        else {*own}
        for facts, (named, own) in zip(found, bests, strict=True)
    ]
    cells = {
        name: run.cell
        for facts, open_cells in zip(found, left, strict=True)
        for run in facts.group.timing
        if run.cell in open_cells and (name := name_of(run, sweep))
    }
    first, best = found[0], bests[0][0]
    names = (name_of(run, sweep) for run in first.group.timing if run.cell == best)
    named = next(filter(None, names), best and str(best))
    rank = first.simplicity
    # Of values that differ an extension knows whether more rounds cannot change its answer.
    known = import_module(ANSWERS).decided(sweep, found) if len(found) > 1 else None
    if known is not None:
        return Look(known and not any(left), named)
    return Look(not any(left), named, sorted(cells, key=lambda name: (rank(cells[name]), name)))


def against(found: Decision[StudyFacts], cell: Cell) -> str:
    """Return how its time compares with the named one's: see `CellReport.against`."""
    facts, best = found.facts, found.named
    if not facts.asks_time or best is None or cell not in facts.seconds:
        return ""
    if not found.decided and cell in {*found.may_be, *found.candidates}:
        return OPEN if cell in found.may_be else "slower"
    verdict = facts.verdict(best, cell)
    return "named" if cell == best else OPEN if verdict in UNDECIDED else verdict
