"""Builds the part of the report that is about one group of comparable runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ninefold.errors import one_line
from ninefold.report.answer.evidence import COPY, Evidence
from ninefold.report.answer.recommend import Recommendation
from ninefold.report.answer.tree import (
    FEW,
    NOISY,
    CellReport,
    Curve,
    Figures,
    Group,
    MeasureInfo,
    Published,
)
from ninefold.report.answer.wording import check, control_text
from ninefold.report.data.cell import PLAIN, Cell, plainness
from ninefold.report.data.published import PublishedTable, published_table
from ninefold.report.data.rounds import others, untimed
from ninefold.report.data.turns import phases
from ninefold.report.stats.measures import (
    BYTES,
    SCORE_KEY,
    SECONDS,
    Measure,
    of_figures,
    of_score,
    of_throughput,
)
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import OPEN

CLOSE = 0.05  # a share that two configurations of which it is too close to call differ by at most
MeasureFigures = tuple[MeasureInfo, Mapping[Cell, Figures]]  # and its figures by cell


def describe(found: Recommendation, order: int, compares: bool) -> Group:
    """Return a group with its cells, verdicts, curves and rounds.

    order: the group's place among all groups, as their conditions sort. compares: whether the
        answer names one of these cells.
    """
    evidence, group = found.facts, found.facts.group
    measures = _measures(evidence)
    table = published_table(group.runs[0].study)
    return Group(
        title=one_line(group.title),
        measures=[info for info, _ in measures],
        cells=[_cell(found, cell, measures, compares) for cell in evidence.cells],
        comparison=evidence.comparison,
        settings=evidence.settings,
        target=evidence.target,
        check=check(evidence),
        control=control_text(evidence),
        numerics=evidence.numerics,
        curves=_curves(evidence),
        score=group.score,
        timing_rounds=len({run.round for run in group.timing}) or None,
        others=others(evidence.sweep.timing) if group.timing else None,
        turns_left_out=sum(evidence.turns.left_out.values()) if group.timing else 0,
        order=order,
        asks_time=evidence.asks_time,
        scaling=group.scaling,
        untimed=untimed(evidence.sweep),
        published=_published(table, group.scoring.scale),
        published_by=table.source,
    )


def _published(table: PublishedTable, scale: float) -> dict[Cell, Published]:
    """A published table as figures like ours: its times as speedups over the baseline."""
    plain = table.minutes.get(PLAIN)
    speeds = {cell: plain / minutes for cell, minutes in table.minutes.items() if plain}
    return {
        cell: Published(speeds.get(cell), None if score is None else scale * score)
        for cell in sorted({*speeds, *table.scores}, key=plainness)
        for score in [table.scores.get(cell)]
    }


def _cell(
    found: Recommendation, cell: Cell, measures: list[MeasureFigures], compares: bool
) -> CellReport:
    """A cell. compares: whether the answer names such a cell."""
    evidence = found.facts
    why = evidence.excluded(cell)
    trained = [run for run in evidence.group.of(cell) if not run.timed]
    return CellReport(
        cell=cell,
        status=evidence.failed.get(cell),
        seeds=len({run.seed for run in trained}),
        measures={info.key: figures[cell] for info, figures in measures if cell in figures},
        phases=phases(evidence.group.completed(cell)),
        label=evidence.label(cell),
        repeats=evidence.no_op_of[cell] if why == COPY else None,
        speedup=evidence.speedup(cell),
        role=_role(found, cell) if compares else "",
        against=_against(found, cell) if compares else "",
        excluded=why,
    )


def _role(found: Recommendation, cell: Cell) -> str:
    if not found.facts.asks_time:
        return ""
    if cell == found.named and found.decided:
        return "named"
    if cell in found.may_be and not found.decided:
        return "open"
    return "behind" if cell in found.out else "out"


def _against(found: Recommendation, cell: Cell) -> str:
    evidence, best = found.facts, found.named
    if not evidence.asks_time or best is None or cell not in evidence.seconds:
        return ""
    if cell == best:
        return "named" if found.decided else _open(found, cell, found.may_be)
    verdict = evidence.verdict(best, cell)
    if cell in found.out or (verdict == "slower" and cell not in found.may_be):
        return "slower"
    if found.decided and verdict in ("tie", "faster"):
        return verdict
    return _open(found, cell, [best])


def _open(found: Recommendation, cell: Cell, others: Sequence[Cell]) -> str:
    """Why it is open which is faster: too few rounds, too much noise, or hardly a difference."""
    if found.facts.few:
        return FEW
    for other in others:
        speed = found.facts.speedup(cell, other) if other != cell else None
        low, high = (speed.low, speed.high) if speed else (1.0, 1.0)
        if low is None or high is None or low < 1 - CLOSE or high > 1 + CLOSE:
            return NOISY
    return OPEN


def _measures(evidence: Evidence) -> list[MeasureFigures]:
    group = evidence.group
    usual = (SECONDS, of_throughput(group.runs), of_score(group.scoring), BYTES)
    return [
        (MeasureInfo(measure.key, measure.title, measure.unit, measure.better), figures)
        for measure in (*usual, *of_figures(group.runs), evidence.to_target)
        if measure and ((figures := _figures(evidence, measure)) or measure.key == SCORE_KEY)
    ]


def _figures(evidence: Evidence, measure: Measure) -> dict[Cell, Figures]:
    """A measure of each cell that has values."""
    group = evidence.group
    sources = measure.sources(group)
    return {
        cell: Figures(
            **asdict(estimate(known)),
            values={str(key): value for key, value in sorted(known.items())},
            tried=len(sources[cell]),
        )
        for cell, known in measure.values(group).items()
    }


def _curves(evidence: Evidence) -> list[Curve]:
    by_folder: dict[str, list[list[float | None]]] = {}
    scale = evidence.group.scoring.scale
    for point in evidence.points:
        by_folder.setdefault(point.folder, []).append(
            [point.epoch, point.seconds, scale * point.score]
        )
    return [
        Curve(run.cell, run.seed, by_folder[run.folder])
        for run in evidence.group.runs
        if run.folder in by_folder
    ]
