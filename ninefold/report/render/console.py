"""Writes what the console shows of a report, and of the gate."""

from __future__ import annotations

from collections.abc import Mapping

from ninefold.errors import one_line
from ninefold.report.answer.gate import Gate, GroupChanges
from ninefold.report.answer.tree import Report
from ninefold.report.numbers import between, counted, three_digits, times
from ninefold.report.render.results import results
from ninefold.report.render.tables import grid, lines
from ninefold.stats.statistics import estimate

CONSOLE_LINES, CONSOLE_ROWS, CONSOLE_COLUMNS = 25, 9, 4
_CAVEATS = 3  # on the console


def console_text(report: Report) -> str:
    """Return what the console shows: the answer, one table, one command; few lines."""
    answer, bad = report.answer, [run for run in report.runs if run.status != "ok"]
    said = [f"answer: {one_line(answer.lead)}"]
    if report.groups:
        said += ["", *lines(results(report.groups[0]), CONSOLE_ROWS, CONSOLE_COLUMNS), ""]
    if others := len(report.groups) - 1:
        said.append(f"{counted(others, 'further table')} in the report")
    if bad:
        said.append(f"{len(bad)} of {counted(report.runs, 'run')} are not ok")
    caveats = [f"caveat: {one_line(caveat)}" for caveat in answer.caveats[:_CAVEATS]]
    if more := len(answer.caveats) - len(caveats):
        caveats.append(f"{counted(more, 'more caveat')} in the report")
    said += caveats
    if answer.train:
        said.append(f"train with it: {answer.train}")
    elif answer.surer:
        takes = answer.surer.takes and f" ({answer.surer.takes})"
        said.append(f"to be surer{takes}: {answer.surer.command}")
    return "\n".join(said)


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
