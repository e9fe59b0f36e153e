"""Writes what the console shows of a report."""

from __future__ import annotations

from ninefold.errors import one_line
from ninefold.report.answer.tree import Report
from ninefold.report.numbers import counted
from ninefold.report.render.results import results
from ninefold.report.render.tables import lines

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
    if report.groups and (control := report.groups[0].control):
        said.append(f"control: {one_line(control)}")
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
