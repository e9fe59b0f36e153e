"""Builds the report from what was recorded: the answer, its evidence, every run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ninefold.errors import one_line
from ninefold.report.answer import caveats, wording
from ninefold.report.answer.batches import score_per_second
from ninefold.report.answer.conditions import conditions, machine
from ninefold.report.answer.evidence import Evidence, gather_evidence
from ninefold.report.answer.groups import describe
from ninefold.report.answer.notes import number_notes
from ninefold.report.answer.recommend import Recommendation
from ninefold.report.answer.scaling import headline
from ninefold.report.answer.tree import (
    FORMAT,
    Answer,
    GoalAnswer,
    Group,
    Limits,
    Note,
    Outside,
    Report,
    RunLine,
    Scaling,
)
from ninefold.report.data.cells import groups, largest_first
from ninefold.report.data.environment import values
from ninefold.report.data.overlay import arguments, left_out
from ninefold.report.data.recording import Recording
from ninefold.report.data.rounds import is_unfinished, why_not
from ninefold.report.data.runs import Run, finite
from ninefold.report.data.words import command, has_gaps, recorded, trained_with
from ninefold.report.numbers import capitalized, listed
from ninefold.report.stats import numerics
from ninefold.report.stats.measures import SECONDS, of_score
from ninefold.study_record import StudyRecord


def evidence_of(recording: Recording) -> list[Evidence]:
    """Return the evidence of each group, largest first: the answer is of the first."""
    unfinished = is_unfinished(recording.sweep, recording.runs)
    return [
        gather_evidence(
            group,
            recording.points,
            recording.sweep,
            numerics.summarize(recording.numerics, group.runs),
            unfinished,
        )
        for group in largest_first(groups(recording.runs))
    ]


def build(
    recording: Recording, found: Sequence[Evidence], goals: Sequence[Recommendation]
) -> Report:
    """Return the report. found: evidence of all groups; goals: recommendations of the first."""
    studies = values(recording.environment.get("study"))
    question, command = recording.sweep.question, recording.sweep.command
    said = conditions(recording.runs, recording.environment)
    by_conditions = groups(recording.runs)
    described = [
        describe(
            evidence,
            recording,
            by_conditions.index(evidence.group),
            found[0].settings.margin,
        )
        for evidence in found
    ]
    return Report(
        format=FORMAT,
        title=one_line(listed(studies)) if studies else "Runs",
        study=studies[0] if len(studies) == 1 else None,
        question=one_line(question) if question else None,
        command=None if command is None else one_line(command),
        conditions=[one_line(phrase) for phrase in said],
        machine=machine(recording.environment),
        settings=_limits(recording, found),
        answer=_answer(recording, found, goals, described[0].scaling if described else None),
        groups=described,
        notes=_notes(recording.runs, described),
        runs=[_run(run, recording.sweep) for run in recording.runs],
        environment=recording.environment,
        outside=_outside(recording),
    )


def _outside(recording: Recording) -> Outside | None:
    """Where the study's time went; None where that is not known, as of concurrent runs."""
    sweep, runs = recording.sweep, recording.runs
    wall, count, search = sweep.wall_seconds, sweep.runs, sweep.search_seconds
    if not wall or not count or any(run.timed for run in runs):
        return None
    train = sum(finite(run.train_seconds) or 0.0 for run in runs)
    evaluate = sum(finite(run.evaluate_seconds) or 0.0 for run in runs)
    each = (wall - search - train - evaluate) / count
    return None if each < 0 else Outside(each, wall, count, train, evaluate, search)


def _limits(recording: Recording, found: Sequence[Evidence]) -> Limits:
    drift = recording.sweep.allowed_drift
    if not found:
        return Limits(None, None, None, None, None, drift, None)
    used = found[0].settings
    return Limits(
        used.margin,
        used.same,
        used.level,
        used.looks,
        used.confidence,
        drift,
        found[0].target,
        None if used.score_looks is None else used.score_confidence,
    )


def _answer(
    recording: Recording,
    found: Sequence[Evidence],
    goals: Sequence[Recommendation],
    scales: Scaling | None,
) -> Answer:
    """The answer. scales: how the cells of the first group scale, where that was asked."""
    if not found:
        return Answer("Not enough runs: none of them names a cell and counts.", [], [], None)
    first, best = found[0], winner(goals)
    said = caveats.caveats(first, recording.sweep)
    if best and (words := recorded(recording.environment, str(best.cell), recording.own)):
        said += [caveats.FOLDERS] if has_gaps(words) else []
    elif keys := left_out(overlay_of(recording, best) if best else None):
        said.append(caveats.values_to_give(keys))
    if len(found) > 1:
        most = first.group.ok > found[1].group.ok
        said.insert(0, caveats.several_groups(first.group, len(found), most))
    answers = [
        GoalAnswer(
            goal.goal.name,
            goal.cell,
            wording.sentence(goal),
            wording.reasons(goal),
            goal.tied,
            goal.chance,
        )
        for goal in goals
    ]
    sentence = wording.answer(goals)
    if first.asked == ("accuracy",):
        sentence = wording.of_scores(goals[0]) or sentence
    if scales is not None:
        confidence = first.settings.confidence
        told = [headline(series, scales.kind, confidence) for series in scales.series]
        sentence = " ".join(told)
        best = goals[0] if goals[0].cell else None  # no other goal's command stands below it
    if of_batches := score_per_second(found):
        answers.append(of_batches)
        if of_batches.cell:
            sentence += f" {capitalized(of_batches.goal)}: {of_batches.cell}."
    return Answer(
        sentence=sentence,
        goals=answers,
        caveats=said,
        train=train_command(recording, best),
    )


def winner(goals: Sequence[Recommendation]) -> Recommendation | None:
    """Return the recommendation that recommended.yaml holds: the first goal's that has a cell."""
    return next((goal for goal in goals if goal.cell is not None), None)


def train_command(recording: Recording, best: Recommendation | None) -> str | None:
    """Return the command that trains the recommended cell, None where there is none.

    It has the words of the study's command, where they were recorded. Otherwise it takes
    recommended.yaml: keys that the overlay leaves out stand in it as KEY=VALUE for the user to fill
    in; keys that the cell's runs did not have are removed with ~KEY.
    """
    if best is None:
        return None
    folder = recording.environment.get("report_folder")
    # The command is there to be pasted: nothing in it may have a meaning for a shell.
    plain = isinstance(folder, str) and re.fullmatch(r"[\w./+=@][\w./+=@-]*", folder)
    place = str(folder) if plain else "FOLDER/report"
    typed = trained_with(recording.sweep.command)
    if words := recorded(recording.environment, str(best.cell), recording.own):
        return command(words, place, typed)
    if (overlay := overlay_of(recording, best)) is None:
        return None
    return " ".join(
        [
            f"{typed} --config-dir {place}",
            "experiments=recommended",
            *arguments(overlay),
        ]
    )


def overlay_of(recording: Recording, best: Recommendation) -> dict[str, Any] | None:
    """Return the recorded configuration of the recommended cell."""
    overlays = recording.environment.get("overlays")
    overlay = overlays.get(str(best.cell)) if isinstance(overlays, dict) else None
    return overlay if isinstance(overlay, dict) else None


def _notes(runs: Sequence[Run], described: Sequence[Group]) -> list[Note]:
    cells = [cell for group in described for cell in group.cells]
    return [
        Note(
            number,
            one_line(note),
            list(dict.fromkeys(cell.cell for cell in cells if number in cell.notes)),
        )
        for note, number in number_notes(runs).items()
    ]


def _run(run: Run, sweep: StudyRecord) -> RunLine:
    return RunLine(
        folder=run.folder,
        cell=run.cell,
        seed=run.seed,
        round=run.round,
        attempt=run.attempt,
        status=run.status,
        counted=run.counts,
        drifted=bool(run.drifted),
        seconds=SECONDS.value(run),
        accuracy=of_score(run.scoring).value(run),
        error=None if run.error is None else one_line(run.error),
        why=why_not(run, sweep),
        on_hosts=run.on_hosts,
    )
