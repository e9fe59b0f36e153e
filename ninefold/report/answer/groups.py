"""Builds the part of the report that is about one group of comparable runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ninefold.errors import one_line
from ninefold.report.answer.evidence import Evidence
from ninefold.report.answer.recommend import COPY, Recommendation, excluded
from ninefold.report.answer.tree import (
    CellReport,
    Curve,
    Figures,
    Further,
    Group,
    MeasureInfo,
    PairVerdicts,
)
from ninefold.report.answer.wording import check
from ninefold.report.data import cells as data
from ninefold.report.data.cell import Cell
from ninefold.report.data.recording import Recording
from ninefold.report.data.rounds import others
from ninefold.report.data.runs import Run
from ninefold.report.stats.measures import (
    BYTES,
    SECONDS,
    Measure,
    of_figures,
    of_score,
    of_throughput,
)
from ninefold.stats.statistics import estimate

MeasureFigures = tuple[MeasureInfo, Mapping[Cell, Figures]]  # and its figures by cell


def describe(
    evidence: Evidence,
    found: Recommendation,
    recording: Recording,
    order: int,
    margin: float,
    compares: bool,
) -> Group:
    """Return a group with its cells, verdicts, curves and rounds.

    order: the group's place among all groups, as their conditions sort. margin: the report's;
        `own_margin` tells of another one. compares: whether the answer names one of these cells.
    """
    group = evidence.group
    measures = _measures(evidence)
    notes = _notes_of(group, number_notes(recording.runs))
    return Group(
        title=one_line(group.title),
        dataset=group.dataset,
        model=group.model,
        batch_size=group.batch_size,
        epochs=group.epochs,
        measures=[info for info, _ in measures],
        cells=[_cell(found, cell, measures, notes[cell], compares) for cell in evidence.cells],
        pairs=PairVerdicts(evidence.comparison.seconds, evidence.comparison.accuracy),
        safety=evidence.comparison.safety,
        control=evidence.comparison.control,
        steady=evidence.comparison.steady,
        floor=evidence.comparison.floor,
        check=check(evidence),
        numerics=evidence.numerics,
        curves=_curves(evidence),
        score=group.score,
        further=[_further(evidence, measure) for measure in of_figures(group.runs)],
        timing_rounds=len({run.round for run in group.timing}) or None,
        others=others(recording.sweep.timing) if group.timing else None,
        order=order,
        own_margin=None if evidence.settings.margin == margin else evidence.settings.margin,
        asks_time=evidence.asks_time,
    )


def _cell(
    found: Recommendation,
    cell: Cell,
    measures: list[MeasureFigures],
    notes: list[int],
    compares: bool,
) -> CellReport:
    """A cell. notes: numbers of those that hold. compares: whether the answer names such a cell."""
    evidence = found.evidence
    why = excluded(cell, evidence)
    trained = [run for run in evidence.group.of(cell) if not run.timed]
    return CellReport(
        cell=cell,
        status=evidence.failed.get(cell),
        seeds=len({run.seed for run in trained}),
        measures={info.key: figures.get(cell) for info, figures in measures},
        phases=evidence.phases(cell),
        data_bound=evidence.waits_for_data(cell),
        speedup=evidence.speedup(cell),
        host_bound=evidence.waits_for_host(cell),
        notes=notes,
        label=evidence.label(cell),
        repeats=evidence.no_op_of[cell] if why == COPY else None,
        speed=evidence.speed(cell),
        standing=_standing(found, cell) if compares else "",
        excluded=why,
    )


def _standing(found: Recommendation, cell: Cell) -> str:
    if not found.evidence.asks_time:
        return ""
    if cell == found.cell and found.decided:
        return "named"
    if cell in found.may_be and not found.decided:
        return "open"
    return "behind" if cell in found.out else "out"


def _measures(evidence: Evidence) -> list[MeasureFigures]:
    found: list[MeasureFigures] = []
    score = of_score(evidence.group.scoring)
    throughput = of_throughput(evidence.group.runs)
    for measure in (SECONDS, throughput, score, BYTES, evidence.to_target):
        if measure is None:
            continue
        figures = _figures(evidence, measure)
        info = MeasureInfo(
            key=measure.key,
            title=measure.title,
            unit=measure.unit,
            better=measure.better,
            available=bool(figures),
        )
        found.append((info, figures))
    return found


def _further(evidence: Evidence, measure: Measure) -> Further:
    return Further(
        name=measure.title,
        unit=measure.unit,
        better=measure.better or None,
        cells=_figures(evidence, measure),
    )


def _figures(evidence: Evidence, measure: Measure) -> dict[Cell, Figures]:
    """A measure of each cell that has values."""
    group = evidence.group
    relative, sources = measure.relative(group), measure.sources(group)
    return {
        cell: Figures(
            **asdict(estimate(known)),
            relative=relative[cell],
            values={str(key): value for key, value in sorted(known.items())},
            tried=len(sources[cell]),
        )
        for cell, known in measure.values(group).items()
    }


def number_notes(runs: Sequence[Run]) -> dict[str, int]:
    """Return every distinct note of the runs that count with its number, in their order."""
    notes = dict.fromkeys(note for run in runs if run.counts for note in run.notes)
    return {note: number for number, note in enumerate(notes, start=1)}


def _notes_of(group: data.Group, numbers: Mapping[str, int]) -> dict[Cell, list[int]]:
    """The numbers of the notes that hold for each cell of a group, in order."""
    found: dict[Cell, set[int]] = {}
    for run in group.runs:
        found.setdefault(run.cell, set()).update(
            numbers[note] for note in run.notes if note in numbers
        )
    return {cell: sorted(held) for cell, held in found.items()}


def _curves(evidence: Evidence) -> list[Curve]:
    by_folder: dict[str, list[list[float | None]]] = {}
    scale = evidence.group.scoring.scale
    for point in evidence.points:
        by_folder.setdefault(point.folder, []).append(
            [point.epoch, point.seconds, scale * point.accuracy]
        )
    return [
        Curve(run.cell, run.seed, by_folder[run.folder])
        for run in evidence.group.runs
        if run.folder in by_folder
    ]
