"""Writes what the console shows of a report."""

from __future__ import annotations

from pathlib import Path

from ninefold.errors import one_line
from ninefold.report.answer.tree import Report
from ninefold.report.numbers import counted
from ninefold.report.render.matrix import matrix, matrix_lines
from ninefold.report.render.results import results, table_of_answer
from ninefold.report.render.tables import lines

CONSOLE_LINES, CONSOLE_ROWS, CONSOLE_COLUMNS = 30, 9, 5
CONSOLE_WIDTH = 80  # of the matrix: a terminal may be no wider
LEAST_ROWS = 3  # of the table, below a large matrix
_CAVEATS = 3  # on the console


def console_text(report: Report, page: Path) -> str:
    """Return what the console shows: the answer, its tables, one command; few lines.

    page: where the report is.
    """
    answer, bad = report.answer, [run for run in report.runs if run.status != "ok"]
    said, below = [f"answer: {one_line(answer.lead)}"], list[str]()
    if (others := len(report.groups) - 1) and not answer.by_value:
        below.append(f"{counted(others, 'further table')} in the report")
    if report.groups and (control := report.groups[0].control):
        below.append(f"control: {one_line(control)}")
    if bad:
        below.append(f"{len(bad)} of {counted(report.runs, 'run')} are not ok")
    caveats = [f"caveat: {one_line(caveat)}" for caveat in answer.caveats[:_CAVEATS]]
    if more := len(answer.caveats) - len(caveats):
        caveats.append(f"{counted(more, 'more caveat')} in the report")
    below += caveats
    if answer.train:
        below.append(f"train with it: {one_line(answer.train)}")
    elif answer.surer:
        takes = answer.surer.takes and f" ({answer.surer.takes})"
        below.append(f"to be surer{takes}: {one_line(answer.surer.command)}")
    below += [f"report {page}", _closing(report)]
    if answer.by_value:
        table = table_of_answer(answer.by_value)
        said += ["", *lines(table, CONSOLE_ROWS, len(table.columns)), ""]
    elif report.groups:
        if found := matrix(report.groups[0]):
            said += ["", *matrix_lines(found, CONSOLE_WIDTH)]
        room = CONSOLE_LINES - len([*said, *below]) - 3  # a heading and empty lines
        rows = max(LEAST_ROWS, min(CONSOLE_ROWS, room))
        said += ["", *lines(results(report.groups[0]), rows, CONSOLE_COLUMNS), ""]
    return "\n".join([*said, *below])


def _closing(report: Report) -> str:
    """Return the last line: whether it is decided, after how many rounds, and what is next."""
    answer = report.answer
    rounds = next((group.timing_rounds for group in report.groups), None)
    after = f" after {counted(rounds, 'round')}" if rounds else ""
    state = f"{'decided' if answer.decided else 'not decided'}{after}: "
    following = " Next: train with it." if answer.train else ""
    if answer.surer and not answer.train:
        following = " Next: the command that makes it surer."
    return f"{state}{one_line(answer.lead)}{following}"
