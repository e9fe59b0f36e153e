"""Makes table.md, a pure function of the runs, their environment and the published table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninefold.report.answer.conditions import conditions, join
from ninefold.report.data.cells import Group, groups, largest_first, parts, shown
from ninefold.report.data.environment import values
from ninefold.report.data.published import Published
from ninefold.report.data.rounds import why_not
from ninefold.report.data.runs import Run, finite
from ninefold.report.numbers import MISSING, decimals_for, spread
from ninefold.report.render.markdown import code, grid, plain
from ninefold.report.render.notes import mark_cells, note_section, number_notes
from ninefold.report.render.published import compare
from ninefold.report.stats.measures import ACCURACY, MEASURES, SECONDS, Measure
from ninefold.report.stats.summaries import Summary, phase_shares, summarize
from ninefold.result import PHASES


def table(
    runs: Sequence[Run], environment: Mapping[str, Any], published: Sequence[Published]
) -> str:
    """Return the text of table.md; the same arguments give the same bytes."""
    every = groups(runs)
    found = shown(every)
    notes = number_notes(runs)
    sections = [_head(runs, environment, found)]
    for group in found:
        sections.append(f"## {plain(group.title)}")
        marks = mark_cells(group, notes)
        sections += [measure_section(group, measure, marks) for measure in MEASURES]
        sections.append(_phase_section(group))
        if published:
            sections.append(compare(group, published))
    sections += [
        _rest_section(every, found), _clock_section(runs, environment),
        note_section(found, notes), _bad_section(runs), _not_counted_section(runs, environment),
    ]  # fmt: skip
    return "\n\n".join(section for section in sections if section) + "\n"


def _head(runs: Sequence[Run], environment: Mapping[str, Any], found: Sequence[Group]) -> str:
    studies = values(environment.get("study"))
    sweep = environment.get("sweep") or {}
    lines = [f"# {plain(join(studies)) if studies else 'Runs'}", ""]
    lines += [plain("; ".join(conditions(runs, environment))) + "."]
    if command := sweep.get("command"):
        lines += ["", f"Command: {code(str(command))}."]
    if found:
        lines += ["", _reading(found)]
    return "\n".join(lines)


def _reading(found: Sequence[Group]) -> str:
    seeds = [
        [run.seed for run in group.cell(parallel, amp) if run.ok]
        for group in found for parallel in group.parallels for amp in group.amps
    ]  # fmt: skip
    sizes = [len(set(cell)) for cell in seeds]
    lines = []
    if any(size > 1 for size in sizes):
        lines.append("A cell is the mean ± standard deviation (n − 1) over its seeds.")
    if 1 in sizes:
        lines.append("A cell with a single seed is that run's value and has no deviation.")
    if any(len(cell) > len(set(cell)) for cell in seeds):
        lines.append("Runs of the same cell and seed are averaged before anything else.")
    lines.append(
        "In brackets stands the ratio to none-fp32, taken seed by seed: their geometric mean (for "
        "the accuracy: the mean of the differences)."
    )
    lines.append(
        "Mean and deviation over a few seeds describe these runs; they are no test of a difference."
    )
    return " ".join(lines)


def measure_section(group: Group, measure: Measure, marks: Mapping[str, str]) -> str:
    """Return a measure's heading, what it is, and its table."""
    about = measure.about
    if measure.brackets:
        about = f"{about.removesuffix('.')}; in brackets {measure.brackets}."
    return f"### {measure.title}\n\n{about}\n\n{measure_table(group, measure, marks)}"


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


def _cell(cell: Summary, measure: Measure, decimals: int) -> str:
    if cell.mean is None:
        return cell.status or MISSING
    text = spread(cell.mean, cell.sd, decimals)
    if cell.relative is not None:
        text += f" ({measure.pair_text(cell.relative)})"
    if len(cell.by_seed) < cell.seeds:
        text += f", {len(cell.by_seed)} of {cell.seeds} seeds"
    return text


def _phase_section(group: Group) -> str:
    rows = []
    for parallel in group.parallels:
        for amp in group.amps:
            shares = phase_shares(group, parallel, amp)
            shown = [f"{shares[name]:.1f}" if shares else MISSING for name in PHASES]
            rows.append([f"{parallel}-{amp}", *shown])
    about = "Percent of the sampled training steps' seconds, mean over seeds."
    return f"### Where the time goes\n\n{about}\n\n{grid(['', *PHASES], rows)}"


def _rest_section(every: Sequence[Group], found: Sequence[Group]) -> str:
    """Every group in a line for each of its cells, where some have no tables."""
    if len(every) == len(found):
        return ""
    rows = []
    for group in largest_first(every):
        for cell in dict.fromkeys(run.cell for run in group.runs):
            time, accuracy = (
                summarize(group, *parts(cell), measure) for measure in (SECONDS, ACCURACY)
            )
            decimals = decimals_for(time.mean or 1.0)
            rows.append([
                plain(group.title), cell, str(time.seeds), _cell(time, SECONDS, decimals),
                _cell(accuracy, ACCURACY, 2),
            ])  # fmt: skip
    about = (
        f"{len(every)} conditions were run. The tables above are of {len(found)} of them: those "
        "with the most runs, and of these the most accurate."
    )
    header = ["conditions", "cell", "seeds", SECONDS.title.lower(), ACCURACY.title.lower()]
    return f"## All conditions\n\n{about}\n\n{grid(header, rows)}"


def _clock_section(runs: Sequence[Run], environment: Mapping[str, Any]) -> str:
    sweep = environment.get("sweep") or {}
    wall, count = sweep.get("wall_seconds"), sweep.get("runs")
    if not wall or not count:
        return ""
    train = sum(finite(run.train_seconds) or 0.0 for run in runs)
    evaluate = sum(finite(run.evaluate_seconds) or 0.0 for run in runs)
    search = finite(sweep.get("search_seconds")) or 0.0
    outside = (wall - search - train - evaluate) / count
    if outside < 0:  # the runs ran side by side, or were not all of this sweep
        return ""
    return (
        "## Outside the clock\n\n"
        f"Outside training and evaluation: {outside:.2f} s a run (wall {wall:.1f} s for {count} "
        f"runs, of which {train:.1f} s training, {evaluate:.1f} s evaluation"
        + (f", {search:.1f} s the search for the largest batches" if search else "") + ")."
    )  # fmt: skip


def _bad_section(runs: Sequence[Run]) -> str:
    lines = []
    for run in runs:
        if not run.ok:
            seed = "" if run.seed is None else f", seed {run.seed}"
            error = f": {code(run.error)}" if run.error else ""
            lines.append(f"- {run.cell}{seed} ({code(run.folder)}) {run.status}{error}")
    return "## Runs that are not ok\n\n" + "\n".join(lines) if lines else ""


def _not_counted_section(runs: Sequence[Run], environment: Mapping[str, Any]) -> str:
    lines = [
        f"- {run.cell}, seed {run.seed} ({code(run.folder)}): "
        f"{why_not(run, environment.get('sweep') or {})}"
        for run in runs
        if not run.counts
    ]
    about = "They are listed and enter no figure."
    return f"## Runs that do not count\n\n{about}\n\n" + "\n".join(lines) if lines else ""
