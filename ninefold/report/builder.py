"""Builds the report from what was recorded: the answer, what it rests on, every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

from ninefold.answer import notes, study
from ninefold.answer.answer import Answer
from ninefold.answer.cell import Cell, plainness
from ninefold.answer.decision import decide
from ninefold.answer.grouping import groups
from ninefold.answer.reasons import trains
from ninefold.answer.rounds import why_not
from ninefold.answer.runs import Run
from ninefold.answer.study_facts import StudyFacts
from ninefold.errors import one_line
from ninefold.extensions import ANSWERS
from ninefold.report.data.conditions import conditions, machine, title
from ninefold.report.data.recording import Recording
from ninefold.report.data.retrain_command import train_command
from ninefold.report.groups import describe
from ninefold.report.loop_settings import settings
from ninefold.report.tree import VERSION, Note, Report


def build(recording: Recording, found: Sequence[StudyFacts], typed: str | None = None) -> Report:
    """Return the report.

    found: facts of all groups, the largest first. typed: what is typed for `train`,
    quoted; None: what the study's command had.
    """
    runs, sweep, environment = recording.runs, recording.sweep, recording.environment
    by_conditions = groups(runs)
    answer, compares = answer_of(recording, found, typed)
    return Report(
        version=VERSION,
        title=title(environment),
        question=one_line(sweep.question) if sweep.question else None,
        command=None if sweep.command is None else one_line(sweep.command),
        conditions=[one_line(phrase) for phrase in conditions(runs, environment)],
        machine=machine(runs, environment),
        answer=answer,
        groups=[
            describe(decide(facts), by_conditions.index(facts.group), compares, recording.points)
            for facts in found
        ],
        notes=_notes(runs),
        runs=runs,
        uncounted={run.folder: why for run in runs if (why := why_not(run))},
        environment=environment,
    )


def answer_of(
    recording: Recording, found: Sequence[StudyFacts], typed: str | None = None
) -> tuple[Answer, bool]:
    """Return the answer, with what limits it and the command that trains; and whether it says which
    configuration is the fastest. typed: as of `build`.
    """
    if not found:
        return Answer("No answer yet: no run counts.", False), True
    first, steps = found[0], recording.next_steps
    other: Answer | None = import_module(ANSWERS).answer(recording, found)
    answer, by_value = other or study.answer(first, steps), other and other.by_value
    limits = [*answer.caveats, *notes.notes(first)]
    if len(found) > 1 and not by_value:  # what the answer is of comes before that
        limits.insert(0, notes.several_groups([facts.group for facts in found]))
    answer = replace(answer, caveats=limits)
    if other and not other.decided and not by_value:
        answer = replace(answer, surer=other.surer or steps.of_time(first))
    cell = answer.cell
    if (answer.decided or by_value) and isinstance(cell, Cell):
        train = train_command(recording, cell, typed)
        said = trains(first) if train and recording.folder else []
        answer = replace(answer, train=train, trains=said, settings=settings(first, cell))
    return answer, other is None


def _notes(runs: Sequence[Run]) -> list[Note]:
    """Every distinct note of the runs that count, in their order."""
    cells: dict[str, set[Cell]] = {}
    for run in runs:
        for note in run.notes if run.counts else ():
            cells.setdefault(note, set()).add(run.cell)
    return [Note(one_line(note), sorted(held, key=plainness)) for note, held in cells.items()]
