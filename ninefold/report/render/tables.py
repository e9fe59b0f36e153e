"""Writes table.md: what was measured in each cell, and how each run ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ninefold.report.answer.conditions import conditions
from ninefold.report.answer.notes import cells_of, holders, marked, number_notes
from ninefold.report.data.cells import (
    Group,
    groups,
    largest_first,
    parts,
    score_of,
    shown,
)
from ninefold.report.data.environment import values
from ninefold.report.data.rounds import why_not
from ninefold.report.data.runs import Run, finite
from ninefold.report.numbers import MISSING, decimals_for, listed, signed, spread, with_article
from ninefold.report.render.markdown import code, grid, items, plain, section
from ninefold.report.stats.measures import (
    MEMORY,
    SECONDS,
    THROUGHPUT,
    Measure,
    of_figures,
    of_score,
)
from ninefold.report.stats.summaries import Summary, phase_shares, summarize
from ninefold.report.stats.verdicts import OTHER_HOSTS
from ninefold.result import PHASES

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def table(runs: Sequence[Run], environment: Mapping[str, Any]) -> str:
    """Return the text of table.md; the same arguments give the same bytes."""
    every = groups(runs)
    found = shown(every)
    notes = number_notes(runs)
    sections = [_head(runs, environment, found)]
    for group in found:
        sections.append(f"## {plain(group.title)}")
        marks = mark_cells(group, notes)
        scores = [of_score(group.score)] if group.training or not group.timing else []
        measures = (SECONDS, THROUGHPUT, *scores, MEMORY)
        sections += [_measure_section(group, measure, marks) for measure in measures]
        sections.append(_further_section(group))
        sections.append(_phase_section(group))
    sections += [
        _all_conditions(every, found),
        _outside_the_clock(runs, environment),
        _note_section(found, notes),
        _bad_runs(runs),
        _not_counted(runs, environment),
    ]
    return "\n\n".join(text for text in sections if text) + "\n"


def mark_cells(group: Group, notes: Mapping[str, int]) -> dict[str, str]:
    """Return what follows the name of a cell: the superscript numbers of its notes."""
    return {
        cell: "".join(f" {superscript(number)}" for number in numbers)
        for cell, numbers in marked(group, notes).items()
    }


def superscript(number: int) -> str:
    """Return the number of a note as it follows a cell."""
    return str(number).translate(_SUPERSCRIPTS)


def measure_table(group: Group, measure: Measure, marks: Mapping[str, str]) -> str:
    """Return a measure's table: strategies down, precisions across."""
    cells = {
        (parallel, amp): summarize(group, parallel, amp, measure)
        for parallel in group.parallels
        for amp in group.amps
    }
    means = [abs(cell.mean) for cell in cells.values() if cell.mean]
    decimals = measure.decimals
    if decimals is None:
        decimals = decimals_for(min(means, default=1.0))
    rows = [
        [parallel]
        + [
            _cell(cells[parallel, amp], measure, decimals) + marks.get(f"{parallel}-{amp}", "")
            for amp in group.amps
        ]
        for parallel in group.parallels
    ]
    return grid(["", *group.amps], rows)


def _head(runs: Sequence[Run], environment: Mapping[str, Any], found: Sequence[Group]) -> str:
    studies = values(environment.get("study"))
    sweep = environment.get("sweep") or {}
    lines = [f"# {plain(listed(studies)) if studies else 'Runs'}", ""]
    lines += [plain("; ".join(conditions(runs, environment))) + "."]
    if command := sweep.get("command"):
        lines += ["", f"Command: {code(str(command))}."]
    if found:
        lines += ["", _how_to_read(found)]
    return "\n".join(lines)


def _how_to_read(found: Sequence[Group]) -> str:
    seeds = [
        [run.seed for run in group.cell(parallel, amp) if run.ok and not run.timed]
        for group in found
        for parallel in group.parallels
        for amp in group.amps
    ]
    sizes = [len(set(cell)) for cell in seeds]
    lines = []
    if any(size > 1 for size in sizes):
        lines.append("A cell is the mean ± standard deviation (n − 1) over its seeds.")
    if 1 in sizes:
        lines.append("A cell with a single seed is the value of that run and has no deviation.")
    if any(len(cell) > len(set(cell)) for cell in seeds):
        lines.append("Runs of the same cell and seed are averaged first.")
    if any(group.timing for group in found):
        lines.append(
            "Times are of timing rounds, in which the cells took turns: mean and deviation over "
            "the rounds, ratios round by round."
        )
    lines.append(
        "In brackets is the ratio to none-fp32, computed seed by seed: the geometric mean (for "
        f"the {plain(score_of(found))}: the mean of the differences)."
    )
    lines.append(
        "Mean and deviation over a few seeds describe these runs; they are no test of a difference."
    )
    return " ".join(lines)


def _measure_section(group: Group, measure: Measure, marks: Mapping[str, str]) -> str:
    about = measure.about
    if measure.brackets:
        about = f"{about.removesuffix('.')}; in brackets {measure.brackets}."
    return f"### {plain(measure.title)}\n\n{about}\n\n{measure_table(group, measure, marks)}"


def _further_section(group: Group) -> str:
    measures = of_figures(group.runs)
    found = [
        [summarize(group, *parts(cell), measure) for measure in measures]
        for cell in cells_of(group)
    ]
    columns = [
        _further_column(measure, cells)
        for measure, cells in zip(measures, zip(*found, strict=True), strict=True)
    ]
    if not columns:
        return ""
    about = (
        f"In addition to {plain(with_article(group.score))}, after the last epoch; in brackets the "
        "mean difference to none-fp32, in points for a percentage."
    )
    header, *rows = zip(["cell", *cells_of(group)], *columns, strict=True)
    return section("### Further figures", header, rows, about)


def _further_column(measure: Measure, cells: Sequence[Summary]) -> list[str]:
    """Return the heading of a further figure, then its text for each cell."""
    better = f" ({measure.better} is better)" if measure.better else ""
    heading = ", ".join(filter(None, (measure.title, measure.unit)))
    decimals = measure.decimals
    if decimals is None:
        known = [abs(cell.mean) for cell in cells if cell.mean]
        decimals = decimals_for(min(known, default=1.0))
    signs = replace(measure, pair_text=lambda pair: signed(pair, decimals))
    return [plain(heading) + better, *(_cell(cell, signs, decimals) for cell in cells)]


def _cell(cell: Summary, measure: Measure, decimals: int) -> str:
    if cell.mean is None:
        return cell.status or MISSING
    text = spread(cell.mean, cell.sd, decimals)
    if cell.relative is not None:
        text += f" ({measure.pair_text(cell.relative)})"
    elif cell.apart:
        text += f" ({OTHER_HOSTS})"
    if len(cell.by_seed) < cell.seeds:
        text += f", {len(cell.by_seed)} of {cell.seeds} {cell.of}"
    return text


def _phase_section(group: Group) -> str:
    rows = []
    for parallel in group.parallels:
        for amp in group.amps:
            shares = phase_shares(group, parallel, amp)
            percent = [f"{shares[name]:.1f}" if shares else MISSING for name in PHASES]
            rows.append([f"{parallel}-{amp}", *percent])
    about = "Percent of the seconds of the sampled training steps, mean over seeds."
    return section("### Where the time goes", ["", *PHASES], rows, about)


def _all_conditions(every: Sequence[Group], found: Sequence[Group]) -> str:
    """Return a line for each cell of every group, where some groups have no tables."""
    if len(every) == len(found):
        return ""
    rows, score_name = [], plain(score_of(every))
    for group in largest_first(every):
        for cell in cells_of(group):
            time, score = (
                summarize(group, *parts(cell), measure) for measure in (SECONDS, of_score())
            )
            rows.append(
                [
                    plain(group.title),
                    cell,
                    str(time.seeds),
                    _cell(time, SECONDS, decimals_for(time.mean or 1.0)),
                    _cell(score, of_score(), 2),
                ]
            )
    about = (
        f"{len(every)} conditions were run. The tables above are of {len(found)} of them: those "
        f"with the most runs, and of these the best by {score_name}."
    )
    header = ["conditions", "cell", "seeds", "seconds per epoch", f"test {score_name}, percent"]
    return section("## All conditions", header, rows, about)


def _outside_the_clock(runs: Sequence[Run], environment: Mapping[str, Any]) -> str:
    sweep = environment.get("sweep") or {}
    wall, count = sweep.get("wall_seconds"), sweep.get("runs")
    if not wall or not count or any(run.timed for run in runs):
        return ""
    train = sum(finite(run.train_seconds) or 0.0 for run in runs)
    evaluate = sum(finite(run.evaluate_seconds) or 0.0 for run in runs)
    search = finite(sweep.get("search_seconds")) or 0.0
    outside = (wall - search - train - evaluate) / count
    if outside < 0:  # the runs were concurrent, or were not all of this sweep
        return ""
    searched = f", {search:.1f} s the search for the largest batches" if search else ""
    return (
        "## Outside the clock\n\n"
        f"Outside training and evaluation: {outside:.2f} s a run (wall {wall:.1f} s for {count} "
        f"runs, of which {train:.1f} s training, {evaluate:.1f} s evaluation{searched})."
    )


def _note_section(found: Sequence[Group], notes: Mapping[str, int]) -> str:
    """Return the list of notes, each with the cells it holds for."""
    lines = []
    for note, number in notes.items():
        named = {}
        for group in found:
            held = holders(group, note)
            named[group.title] = "every cell" if held == cells_of(group) else ", ".join(held)
        cells = [f"{names} ({plain(title)})" for title, names in named.items() if names]
        if len(set(named.values())) == 1:  # it holds for the same cells in each group
            cells = list(named.values())[:1]
        lines.append(f"{number}. {plain(note)} — {'; '.join(cells)}")
    return items("## Notes", lines)


def _bad_runs(runs: Sequence[Run]) -> str:
    lines = []
    for run in runs:
        if not run.ok:
            seed = "" if run.seed is None else f", seed {run.seed}"
            error = f": {code(run.error)}" if run.error else ""
            lines.append(f"- {run.cell}{seed} ({code(run.folder)}) {run.status}{error}")
    return items("## Runs that are not ok", lines)


def _not_counted(runs: Sequence[Run], environment: Mapping[str, Any]) -> str:
    sweep = environment.get("sweep") or {}
    lines = [
        f"- {run.cell}, seed {run.seed} ({code(run.folder)}): {why_not(run, sweep)}"
        for run in runs
        if not run.counts
    ]
    return items("## Runs that do not count", lines, "They are listed and enter no figure.")
