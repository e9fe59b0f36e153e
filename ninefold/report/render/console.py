"""Writes what the console shows of a report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ninefold.answer.screen import NOTES, more_notes, screen
from ninefold.errors import one_line
from ninefold.numbers import counted, plural
from ninefold.report.render.matrix import matrix, matrix_lines
from ninefold.report.render.results import results, table_of_answer
from ninefold.report.render.tables import lines
from ninefold.report.tree import MAX_SHOWN, Report

CONSOLE_ROWS, CONSOLE_COLUMNS = 9, 5
CONSOLE_WIDTH = 80  # of the matrix: a terminal may be no wider


def console_text(report: Report, page: Path, most: int | None = NOTES) -> str:
    """Return what the console shows: the answer, one table, at most `most` notes, one command.

    page: where the report is. most: None for all notes.
    """
    answer, notes = report.answer, [*_notes(report)]
    rounds = next((group.timing_rounds for group in report.groups), None)
    after = f"{counted(rounds, 'round')}. " if rounds else ""
    return screen(
        f"answer: {answer.lead}",
        _table(report),
        notes,
        f"{after}Report: {page}{more_notes(notes, most)}",
        _next(report),
        most=most,
    )


def _table(report: Report) -> list[str]:
    """The matrix of a study of strategies and precisions, else a table."""
    if (by_value := report.answer.by_value) is not None:
        table = table_of_answer(by_value)
        return lines(table, CONSOLE_ROWS, len(table.columns))
    if not report.groups:
        return []
    found = matrix(report.groups[0])
    if found is not None:
        return matrix_lines(found, CONSOLE_WIDTH)
    return lines(results(report.groups[0]), CONSOLE_ROWS, CONSOLE_COLUMNS)


def _notes(report: Report) -> Iterator[str]:
    """What a reader should know, the most important first."""
    bad = sum(run.status != "ok" and run.folder not in report.uncounted for run in report.runs)
    if bad:
        yield f"{bad} of {counted(report.runs, 'run')} {plural(bad, 'is', 'are')} not ok."
    if report.groups and (control := report.groups[0].control):
        yield control
    yield from report.answer.caveats
    if (others := min(len(report.groups), MAX_SHOWN) - 1) > 0 and not report.answer.by_value:
        yield f"{counted(others, 'further table')} in the report."


def _next(report: Report) -> str:
    """The command that trains with the answer, or else the one that makes it surer."""
    if (following := report.answer.next_command) is None:
        return ""
    name, takes, command = following
    return f"{name}{takes and f' ({takes})'}: {one_line(command)}"
