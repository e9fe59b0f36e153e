"""Builds the part of the report that is about one group of comparable runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ninefold.answer import study
from ninefold.answer.cell import Cell
from ninefold.answer.decision import Decision
from ninefold.answer.measures import (
    BYTES,
    SCORE_KEY,
    SECONDS,
    Measure,
    of_figures,
    of_score,
    of_throughput,
    to_target,
)
from ninefold.answer.reasons import check
from ninefold.answer.rounds import untimed
from ninefold.answer.runs import Point, RunGroup, phases
from ninefold.answer.study_facts import COPY, StudyFacts
from ninefold.errors import one_line
from ninefold.report.tree import CellReport, Figures, Group

MeasureFigures = tuple[Measure, Mapping[Cell, Figures]]  # and its figures by cell


def describe(
    found: Decision[StudyFacts], order: int, compares: bool, points: Sequence[Point]
) -> Group:
    """Return a group with its cells, verdicts and rounds.

    order: the group's place among all groups, as their conditions sort. compares: whether the
        answer names one of these cells. points: evaluations of all runs.
    """
    facts, group = found.facts, found.facts.group
    measures = _measures(facts, points)
    return Group(
        title=one_line(group.title),
        measures=[info for info, _ in measures],
        cells=[_cell(found, cell, measures, compares) for cell in facts.cells],
        comparison=facts.comparison,
        settings=facts.settings,
        check=check(facts),
        numerics=facts.numerics,
        score=group.score,
        timing_rounds=len({run.round for run in group.timing}) or None,
        turns_left_out=facts.turns.left_out if group.timing else 0,
        order=order,
        asks_time=facts.asks_time,
        scaling=group.scaling,
        untimed=untimed(facts.sweep),
    )


def _cell(
    found: Decision[StudyFacts], cell: Cell, measures: list[MeasureFigures], compares: bool
) -> CellReport:
    """A cell. compares: whether the answer names such a cell."""
    facts = found.facts
    why = facts.excluded(cell)
    trained = [run for run in facts.group.of(cell) if not run.timed]
    return CellReport(
        cell=cell,
        status=facts.not_ok.get(cell),
        seeds=len({run.seed for run in trained}),
        measures={info.key: figures[cell] for info, figures in measures if cell in figures},
        phases=phases(facts.group.completed(cell)),
        label=facts.label(cell),
        repeats=facts.no_op_of[cell] if why == COPY else None,
        speedup=facts.speedup(cell),
        against=study.against(found, cell) if compares else "",
        excluded=why,
    )


def _measures(facts: StudyFacts, points: Sequence[Point]) -> list[MeasureFigures]:
    group, target = facts.group, facts.target
    way = [] if target is None else [to_target(target, points, group.scoring)]
    usual = (SECONDS, of_throughput(group.runs), of_score(group.scoring), BYTES)
    return [
        (measure, figures)
        for measure in (*usual, *of_figures(group.runs), *way)
        if (figures := _figures(group, measure)) or measure.key == SCORE_KEY
    ]


def _figures(group: RunGroup, measure: Measure) -> dict[Cell, Figures]:
    """A measure of each cell that has values."""
    sources = measure.sources(group)
    return {
        cell: Figures(
            **asdict(measure.estimated(known)),
            values={str(key): value for key, value in sorted(known.items())},
            tried=len(sources[cell]),
        )
        for cell, known in measure.values(group).items()
    }
