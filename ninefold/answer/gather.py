"""Gathers the facts of a study from its runs: values by cell and seed, and how cells compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from ninefold.answer.cell import PLAIN, Cell
from ninefold.answer.first_steps import summarize
from ninefold.answer.grouping import groups, largest_first
from ninefold.answer.measures import SECONDS, of_score
from ninefold.answer.numerics import Row
from ninefold.answer.rounds import (
    STOPPED,
    StudyTurns,
    folder_name,
    is_unfinished,
    turns_of,
    untimed,
)
from ninefold.answer.runs import Run, RunGroup, finite
from ninefold.answer.study_facts import WRAPPER, Numerics, StudyFacts
from ninefold.score import SHARE, Score
from ninefold.stats.statistics import compare
from ninefold.stats.verdicts import OPEN, Comparison, Settings, Timings, Values
from ninefold.study_record import StudyRecord


def facts_of_study(
    runs: Sequence[Run], sweep: StudyRecord, rows: Sequence[Row] = ()
) -> list[StudyFacts]:
    """Return the facts of each group, largest first: the answer is of the first.

    rows: of the first steps.
    """
    unfinished, turns = is_unfinished(sweep, runs), turns_of(runs, sweep)
    return [
        gather(group, sweep, turns, summarize(rows, group.runs), unfinished)
        for group in largest_first(groups(runs))
    ]


def gather(
    group: RunGroup,
    sweep: StudyRecord,
    turns: StudyTurns,
    numerics: Numerics | None = None,
    unfinished: bool = False,
) -> StudyFacts:
    """Return the facts of a group; the margins are in its study's record."""
    cells, (settings, target) = group.cells, _settings(sweep, group.scoring)
    no_op_of = _no_op_of(group)
    same_work = [(base, cell) for cell, base in no_op_of.items() if group.completed(base)]
    uncontrolled = [pair for pair in same_work if _wrapper_shows(group, *pair, settings.same)]
    controls = [pair for pair in same_work if pair not in uncontrolled]
    now, looks = turns
    timings, scores = _timings(group, looks), of_score(group.scoring).values(group)
    comparison = compare(timings, scores, settings, controls, same_work)
    bad = [run for run in reversed(group.runs) if not run.ok]
    failed = {run.cell: run.status for run in bad if run.status not in STOPPED}
    redundant = _redundant_scaler_of(group)
    scored = bool(group.training) or not group.timing or "score" in sweep.asked
    plain = list(scores.get(PLAIN, {}).values())
    if target is None and plain:
        target = fmean(plain) - group.scoring.sign * settings.margin
    return StudyFacts(
        group=group,
        cells=cells,
        sweep=sweep,
        settings=settings,
        unfinished=unfinished,
        scored=scored,
        numerics=numerics,
        failed=failed,
        stopped={run.cell: run.status for run in bad if run.status in STOPPED},
        no_op_of=no_op_of,
        redundant_scaler_of=redundant,
        copies={**untimed(sweep), **redundant, **no_op_of},
        measured_with={cell: of for cell, of in no_op_of.items() if cell not in failed},
        uncontrolled=uncontrolled,
        timings=timings,
        turns=now,
        scores=scores,
        comparison=comparison,
        safe=_safe(group, comparison) if scored else dict.fromkeys(cells, "safe"),
        target=target,
    )


def _no_op_of(group: RunGroup) -> dict[Cell, Cell]:
    return {
        cell: Cell(PLAIN.parallel, cell.amp)
        for cell in group.cells
        if cell.parallel != PLAIN.parallel
        and {run.no_op for run in group.completed(cell)} == {True}
    }


def _redundant_scaler_of(group: RunGroup) -> dict[Cell, Cell]:
    does = {
        cell: {(cell.strategy, run.dtype, run.grad_scaler) for run in group.completed(cell)}
        for cell in group.cells
    }
    return {
        cell: other
        for cell, own in does.items()
        for strategy, dtype, scaled in own
        if len(own) == 1 and scaled and dtype not in (None, "float16")
        for other, its in does.items()
        if its == {(strategy, dtype, False)}
    }


def _wrapper_shows(group: RunGroup, base: Cell, cell: Cell, same: float) -> bool:
    """Whether dp's wrapper can be as much of a step as counts as equal: it is no noise then.

    On a GPU it walks through all parameters and scatters the batch in each step.
    """
    wrapped = cell.parallel == "dp"
    on_gpu = any(set(run.devices) - {"cpu"} for run in group.completed(cell))
    step = group.step_seconds(base)
    return wrapped and on_gpu and step is not None and same * step < WRAPPER


def _timings(group: RunGroup, looks: Sequence[Timings]) -> list[Timings]:
    """The seconds per epoch of a group's cells at each look; of whole runs there is one look."""
    if not group.timing:
        return [Timings(SECONDS.values(group) if len(group.cells) < 2 else {})]
    names = {run.cell: folder_name(run) for run in group.timing if run.ok and run.counts}
    cells = [cell for cell in group.cells if names.get(cell) in looks[-1].seconds]

    def of_cells(values: Values) -> Values:
        return {cell: values[names[cell]] for cell in cells if values.get(names[cell])}

    return [
        replace(
            look,
            seconds=of_cells(look.seconds),
            stretches=of_cells(look.stretches),
            waits=[cell for cell in cells if names[cell] in look.waits],
        )
        for look in looks
    ]


def _safe(group: RunGroup, comparison: Comparison) -> dict[Cell, str]:
    found = dict.fromkeys(group.cells, OPEN)
    found |= {safety.cell: str(safety.verdict) for safety in comparison.safety}
    return {**found, PLAIN: "safe"} if group.completed(PLAIN) else found


def _settings(sweep: StudyRecord, score: Score) -> tuple[Settings, float | None]:
    """The settings of a sweep, with defaults for those that cannot be read, and its target.

    Without a margin of the study, it is that of the task's score.
    """
    said, share = sweep.settings.get("report", {}), score.unit == SHARE

    def between(name: str, low: float, high: float) -> float | None:
        value = finite(said.get(name))
        return value if value is not None and low < value < high else None

    ours = Settings()
    of_task = score.margin or (ours.margin if share else 0.0)
    settings = Settings(
        margin=between("margin", 0, 100 if share else math.inf) or of_task,
        same=between("same", 0, 1) or ours.same,
        looks=sweep.looks if 0 < sweep.looks < 10**6 else ours.looks,
        baseline=PLAIN,
        better=score.better,
    )
    target = between("target", *((0, 1) if share else (-math.inf, math.inf)))
    return settings, None if target is None else score.scale * target
