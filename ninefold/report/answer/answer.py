"""Builds the report from what was recorded: the answer, its evidence, every run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

from ninefold.answer.decision import decide
from ninefold.errors import one_line
from ninefold.extensions import ANSWERS
from ninefold.report.answer import caveats, wording
from ninefold.report.answer.conditions import conditions, machine, title
from ninefold.report.answer.evidence import Evidence, gather_evidence
from ninefold.report.answer.groups import describe
from ninefold.report.answer.recommend import Recommendation
from ninefold.report.answer.settings import settings
from ninefold.report.answer.surer import of_time, surer
from ninefold.report.answer.tree import VERSION, Answer, Note, Report
from ninefold.report.data.cell import Cell, plainness
from ninefold.report.data.cells import groups, largest_first
from ninefold.report.data.recording import Recording
from ninefold.report.data.retrain_command import command, trained_with, words_of
from ninefold.report.data.rounds import is_unfinished, why_not
from ninefold.report.data.runs import Run
from ninefold.report.data.turns import turns_of
from ninefold.report.stats import numerics


def evidence_of(recording: Recording) -> list[Evidence]:
    """Return the evidence of each group, largest first: the answer is of the first."""
    unfinished = is_unfinished(recording.sweep, recording.runs)
    turns = turns_of(recording.runs, recording.sweep)
    return [
        gather_evidence(
            group,
            recording.points,
            recording.sweep,
            turns,
            numerics.summarize(recording.numerics, group.runs),
            unfinished,
        )
        for group in largest_first(groups(recording.runs))
    ]


def build(recording: Recording, found: Sequence[Evidence], typed: str | None = None) -> Report:
    """Return the report.

    found: evidence of all groups, as `evidence_of` returns it. typed: what is typed for `train`,
    quoted; None: what the study's command had.
    """
    sweep = recording.sweep
    question, command = sweep.question, sweep.command
    said = conditions(recording.runs, recording.environment)
    by_conditions = groups(recording.runs)
    compares = _other_answer(recording, found) is None
    described = [
        describe(decide(evidence), by_conditions.index(evidence.group), compares)
        for evidence in found
    ]
    return Report(
        version=VERSION,
        title=title(recording.environment),
        question=one_line(question) if question else None,
        command=None if command is None else one_line(command),
        conditions=[one_line(phrase) for phrase in said],
        machine=machine(recording.runs, recording.environment),
        answer=answer_of(recording, found, typed),
        groups=described,
        notes=_notes(recording.runs),
        runs=recording.runs,
        uncounted={run.folder: why for run in recording.runs if (why := why_not(run, sweep))},
        environment=recording.environment,
    )


def _other_answer(recording: Recording, found: Sequence[Evidence]) -> Answer | None:
    """The answer of an extension, to another question than which configuration is the fastest.

    Its function `answer` returns None where that was not asked.
    """
    for module in ANSWERS if found else ():
        answer: Answer | None = import_module(module).answer(recording, found)
        if answer is not None:
            return answer
    return None


def others_decided(recording: Recording, found: Sequence[Evidence]) -> bool | None:
    """Return whether more rounds cannot change the answer of an extension; None: it has none."""
    asked = (import_module(module).decided(recording, found) for module in ANSWERS)
    return next((known for known in asked if known is not None), None)


def answer_of(recording: Recording, found: Sequence[Evidence], typed: str | None = None) -> Answer:
    """Return the answer, with what limits it and the command that trains. typed: as of `build`."""
    if not found:
        return Answer("No answer yet: no run counts.", False)
    first = found[0]
    other = _other_answer(recording, found)
    by_value = other.by_value if other else None
    said = [*(other.caveats if other else ()), *caveats.caveats(first)]
    if len(found) > 1 and by_value is None:
        most = first.group.ok > found[1].group.ok
        said.insert(0, caveats.several_groups(first.group, len(found), most))
    answer = replace(other or _own_answer(first, decide(first), recording), caveats=said)
    if other and not other.decided and by_value is None:
        answer = replace(answer, surer=other.surer or of_time(first, recording))
    cell = answer.cell
    if not (answer.decided or by_value) or not isinstance(cell, Cell):
        return answer
    train = train_command(recording, cell, typed)
    trains = wording.trains(first) if train and recording.folder else []
    return replace(answer, train=train, trains=trains, settings=settings(first, cell))


def _own_answer(first: Evidence, decision: Recommendation, recording: Recording) -> Answer:
    """Return which configuration is the fastest; of whole runs, which keep the score."""
    more = surer(decision, recording)
    if not first.asks_time:
        lead, why = wording.lead_of_scores(first), wording.reasons_of_scores(first)
        marks = wording.chips_of_scores(first)
        return Answer(lead, first.scores_decided, chips=marks, reasons=why, surer=more)
    return Answer(
        wording.lead(decision),
        decision.decided,
        decision.named,
        decision.chance if decision.decided else None,
        wording.chips(decision),
        wording.reasons(decision),
        surer=more,
    )


def train_command(recording: Recording, cell: Cell, typed: str | None = None) -> str | None:
    """Return the command that trains a cell like its study; of one that is not there the words.

    None where these may not be repeated. typed: as of `build`.
    """
    sweep = recording.as_typed or recording.sweep
    words = words_of(recording.runs, cell, sweep, recording.own)
    if words is None:
        return None
    if recording.folder is None:
        threads = sweep.timing_threads  # those of the times
        return shlex.join([*words, *([] if threads is None else [f"threads={threads}"])])
    return command(
        words, recording.folder, typed or trained_with(sweep.command), recording.own and sweep.trust
    )


def _notes(runs: Sequence[Run]) -> list[Note]:
    """Every distinct note of the runs that count, in their order."""
    cells: dict[str, set[Cell]] = {}
    for run in runs:
        for note in run.notes if run.counts else ():
            cells.setdefault(note, set()).add(run.cell)
    return [Note(one_line(note), sorted(held, key=plainness)) for note, held in cells.items()]
