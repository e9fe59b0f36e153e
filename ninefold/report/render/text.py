"""Renders the text of table.md, report.md and the console from a Report; writes no files."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninefold.report.answer.gate import Gate, GroupChanges
from ninefold.report.answer.tree import CellReport, Figures, Further, Group, Note, Report
from ninefold.report.data.cell import PLAIN
from ninefold.report.data.cells import MOST, score_of, unit_of
from ninefold.report.numbers import (
    MISSING,
    between,
    decimals_of,
    decimals_of_score,
    number,
    signed,
    spread,
    three_digits,
    times,
    unit_of_difference,
    within_margin,
)
from ninefold.report.render import matrix, scales
from ninefold.report.render.markdown import grid, plain
from ninefold.report.render.templates import render
from ninefold.report.stats.measures import OF_TIME, SCORE_KEY, SECONDS, in_unit
from ninefold.result import PHASES
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import OTHER_HOSTS

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Measured:
    """A measure as Markdown: strategies down, precisions across."""

    title: str
    about: str
    table: str


def table_text(report: Report) -> str:
    """Return the text of table.md; the same report gives the same bytes."""
    return _text("table.md.j2", report)


def report_text(report: Report) -> str:
    """Return the text of report.md: the answer, its evidence, then table.md."""
    detailed = [
        {
            **vars(group),
            "verdicts": matrix.pairs(group),
            "safety": matrix.safety(group, margin_of(group, report)),
            **of_safety(group, report),
            "controls": matrix.controls(group),
            "steady": matrix.steady(group),
            "scales": scales.tables(group.scaling),
        }
        for group in report.groups[:MOST]
    ]
    return _text("report.md.j2", report, detailed=detailed, **intervals(report))


def margin_of(group: Group, report: Report) -> float:
    """Return what a cell may lose of the score and still be safe."""
    return (report.settings.margin if group.own_margin is None else group.own_margin) or 0.0


def of_safety(group: Group, report: Report) -> dict[str, str]:
    """Return how a table of safety is worded."""
    return {
        "safe_if": within_margin(margin_of(group, report), group.unit, group.better, PLAIN),
        "points": unit_of_difference(group.unit),
        "difference": in_unit("difference", unit_of_difference(group.unit)),
        "bound_of_safety": "lower" if group.better == "more" else "upper",
    }


def console_text(report: Report) -> str:
    """Return what the console shows: the answer, then the tables of time and score."""
    scaling = report.groups[0].scaling if report.groups else None
    return _text("console.txt.j2", report, scaling=scaling.series if scaling else []).rstrip("\n")


def intervals(report: Report) -> dict[str, str]:
    """Return what the intervals of times and of scores are called."""
    settings = report.settings
    scores = settings.score_confidence or settings.confidence
    return {
        "interval": f"{settings.confidence or 95:.3g} % interval",
        "score_interval": f"{scores or 95:.3g} % interval",
    }


def _text(template: str, report: Report, **values: Any) -> str:
    groups = shown(report)
    text = render(
        template,
        report=report,
        groups=groups,
        score=score_of(report.groups),
        how_to_read=_how_to_read(groups),
        conditions=_all_conditions(report.groups),
        marks={mark for group in groups for cell in group.cells for mark in cell.marks},
        measure=_measured,
        further=_further,
        phases=_phases,
        holders=lambda note: _holders(note, groups),
        superscript=_superscript,
        **values,
    )
    return f"{text.strip()}\n"


def shown(report: Report) -> list[Group]:
    """Return the groups to print tables for: all, or the first ones if there are many."""
    if len(report.groups) > MOST:
        return report.groups[:MOST]
    return sorted(report.groups, key=lambda group: group.order)


def _superscript(mark: int) -> str:
    """The number of a note as it follows a cell."""
    return str(mark).translate(_SUPERSCRIPTS)


def _how_to_read(groups: Sequence[Group]) -> str:
    cells = [cell for group in groups for cell in group.cells]
    score = plain(score_of(groups))
    repeated = any(cell.ok > cell.ok_seeds for cell in cells)
    by_round = any(
        time.n > cell.ok_seeds
        for group in groups
        for cell in group.cells
        if not group.timing_rounds and (time := cell.measures.get(SECONDS.key))
    )
    said = {
        "A cell is the mean ± standard deviation (n − 1) over its seeds.": any(
            cell.ok_seeds > 1 for cell in cells
        ),
        "A cell with a single seed is the value of that run and has no deviation.": any(
            cell.ok_seeds == 1 for cell in cells
        ),
        "Runs of the same cell and seed are averaged first.": repeated and not by_round,
        "Rounds repeat seeds: times and memory are over the rounds, scores of the same cell and "
        "seed are averaged first.": by_round,
        "Times are of timing rounds, in which the cells took turns: mean and deviation over the "
        "rounds, ratios round by round.": any(group.timing_rounds for group in groups),
        "In brackets is the ratio to none-fp32, computed seed by seed: the geometric mean (for the "
        f"{score}: the mean of the differences).": True,
        "Mean and deviation over a few seeds describe these runs; they are no test of a "
        "difference.": True,
    }
    return " ".join(sentence for sentence, holds in said.items() if holds)


def _measured(group: Group, key: str) -> Measured:
    """A measure of a group; memory in MiB."""
    [info] = [info for info in group.measures if info.key == key]
    unit, factor = ("MiB", 2.0**-20) if info.unit == "bytes" else (info.unit, 1.0)
    found = [cell.measures.get(key) for cell in group.cells]
    means = [each.mean * factor for each in found if each and each.mean]
    decimals = decimals_of(unit, means)
    if key == SCORE_KEY:
        decimals = decimals_of_score(unit, means, [each.sd for each in found if each])
    cells = {(cell.parallel, cell.amp): cell for cell in group.cells}
    rows = [
        [parallel]
        + [_cell(group, cells.get((parallel, amp)), key, decimals, factor) for amp in group.amps]
        for parallel in group.parallels
    ]
    title = f"{info.title}, MiB" if info.unit == "bytes" else info.title
    return Measured(title, info.about, grid(["", *group.amps], rows))


def _cell(group: Group, cell: CellReport | None, key: str, decimals: int, factor: float) -> str:
    if cell is None:
        return MISSING
    rounds = group.timing_rounds and (key in OF_TIME or not any(each.seeds for each in group.cells))
    text = _figures(
        cell,
        cell.measures.get(key),
        decimals,
        factor,
        difference=key == SCORE_KEY,
        apart=key in OF_TIME and frozenset((PLAIN, cell.cell)) in group.apart,
        of="rounds" if rounds else "seeds",
    )
    return text + "".join(f" {_superscript(mark)}" for mark in cell.marks)


def _figures(
    cell: CellReport,
    found: Figures | None,
    decimals: int,
    factor: float = 1.0,
    difference: bool = True,
    apart: bool = False,
    of: str = "seeds",
) -> str:
    """A figure of a cell with its deviation, and in brackets how it compares with none-fp32's.

    difference: whether that is a difference, and no ratio. apart: whether there is nothing to
    compare, as the times are of different hosts. of: what its values are of.
    """
    if found is None or found.mean is None:
        return cell.status or MISSING
    sd = None if found.sd is None else found.sd * factor
    text = spread(found.mean * factor, sd, decimals)
    if found.relative is not None:
        relative = signed(found.relative, decimals) if difference else times(found.relative)
        text += f" ({relative})"
    elif apart:
        text += f" ({OTHER_HOSTS})"
    return text if found.n >= found.tried else f"{text}, {found.n} of {found.tried} {of}"


def _further(group: Group) -> str:
    columns = [_further_column(figure, group.cells) for figure in group.further]
    names = ["cell", *(str(cell.cell) for cell in group.cells)]
    header, *rows = zip(names, *columns, strict=True)
    return grid(header, rows)


def _further_column(figure: Further, cells: Sequence[CellReport]) -> list[str]:
    """The heading of a further figure, then its text for each cell."""
    better = f" ({figure.better} is better)" if figure.better else ""
    decimals = decimals_of(figure.unit, [found.mean for found in figure.cells.values()])
    texts = (_figures(cell, figure.cells.get(cell.cell), decimals) for cell in cells)
    return [plain(figure.heading) + better, *texts]


def _phases(group: Group) -> str:
    cells = {(cell.parallel, cell.amp): cell.phases or {} for cell in group.cells}
    rows = [
        ["-".join(place), *(number(cells.get(place, {}).get(phase), 1) for phase in PHASES)]
        for place in itertools.product(group.parallels, group.amps)
    ]
    return grid(["", *PHASES], rows)


def _all_conditions(groups: Sequence[Group]) -> str:
    """A line for each cell of every group."""
    score = plain(in_unit(f"test {score_of(groups)}", unit_of(groups)))
    header = ["conditions", "cell", "seeds", "seconds per epoch", score]
    rows = []
    for group in groups:
        for cell in group.cells:
            time = cell.measures.get(SECONDS.key)
            decimals = decimals_of("s", [time.mean if time else None])
            found = cell.measures.get(SCORE_KEY)
            of_score = decimals_of_score(
                group.unit, [found.mean if found else None], [found.sd if found else None]
            )
            rows.append(
                [
                    plain(group.title),
                    str(cell.cell),
                    str(time.tried if time else cell.seeds),
                    _figures(cell, time, decimals, difference=False),
                    _figures(cell, found, of_score),
                ]
            )
    return grid(header, rows)


def _holders(note: Note, groups: Sequence[Group]) -> str:
    """The names of the cells that a note is about; by group where the groups differ."""
    named = {}
    for group in groups:
        held = [str(cell.cell) for cell in group.cells if note.number in cell.notes]
        named[group.title] = "every cell" if len(held) == len(group.cells) else ", ".join(held)
    if len(set(named.values())) == 1:
        return next(iter(named.values()))
    return "; ".join(f"{names} ({plain(title)})" for title, names in named.items() if names)


def gate_text(gate: Gate) -> str:
    """Render what --against shows: per group, a table of seconds per epoch before and now."""
    return "\n".join(line for group in gate.groups for line in _changes(group))


def _changes(group: GroupChanges) -> list[str]:
    rows = [
        [
            str(change.cell),
            _mean(group.before[change.cell]),
            _mean(group.now[change.cell]),
            times(change.ratio, 3),
            between(change.low, change.high, _ratio, "too few runs"),
            "slower" if change.slower else "",
        ]
        for change in group.changes
    ]
    table = grid(["cell", "s per epoch before", "now", "ratio", "interval", ""], rows)
    new = [f"{cell} has no time before" for cell in group.now if cell not in group.before]
    return ["", group.title, table, *new]


def _mean(known: Mapping[int, float]) -> str:
    return f"{three_digits(estimate(known).mean or 0.0)} ({len(known)})"


def _ratio(value: float) -> str:
    return times(value, 3)
