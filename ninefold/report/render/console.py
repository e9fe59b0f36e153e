"""Writes what the console shows of a report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ninefold.answer.screen import NOTES, left_out, screen
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
    answer, notes, (table, left) = report.answer, [*_notes(report)], _table(report)
    rounds = next((group.timing_rounds for group in report.groups), None)
    after = f"{counted(rounds, 'round')}. " if rounds else ""
    where = f"{after}Report: {page}{left_out(notes, most, left)}"
    return screen(f"answer: {answer.lead}", table, notes, where, answer.next_command, most=most)


def _table(report: Report) -> tuple[list[str], int]:
    """The matrix of a study of strategies and precisions, else a table; how many rows it lacks."""
    if (by_value := report.answer.by_value) is not None:
        table, columns = table_of_answer(by_value), len(by_value.columns)
    elif not report.groups:
        return [], 0
    elif (found := matrix(report.groups[0])) is not None:
        return matrix_lines(found, CONSOLE_WIDTH), 0
    else:
        table, columns = results(report.groups[0]), CONSOLE_COLUMNS
    return lines(table, CONSOLE_ROWS, columns), len(table.rows) - CONSOLE_ROWS


def _notes(report: Report) -> Iterator[str]:
    """What a reader should know, the most important first."""
    runs = [run for run in report.runs if run.folder not in report.uncounted]
    if bad := sum(run.status != "ok" for run in runs):
        yield f"{bad} of {counted(runs, 'run')} {plural(bad, 'is', 'are')} not ok."
    yield from report.groups[0].control if report.groups else []
    yield from report.answer.caveats
    if (others := min(len(report.groups), MAX_SHOWN) - 1) > 0 and not report.answer.by_value:
        yield f"{counted(others, 'further table')} in the report."
