"""Reads and writes the tables of a recording: CSV with a header, as anybody may have written it."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from ninefold.files import opener, require_small

RESTORE = "restore the file from version control"
# Of a file and of a line, in bytes, and rows: 10,000 runs with 100 evaluations each take 80 MB.
MAX_BYTES, MAX_LINE_BYTES, MAX_ROWS = 1 << 27, 1 << 20, 1_000_000


def read_rows(path: Path, most: int = MAX_ROWS) -> Iterator[dict[str, str]]:
    """The rows of a table, one after another. Raises ValueError, which says why it cannot be read.

    A row that is too long has the surplus under None, one that is too short has None for values.
    """
    try:
        with open(path, encoding="utf-8", newline="", opener=opener) as file:
            require_small(path, os.fstat(file.fileno()).st_size, MAX_BYTES)
            for number, row in enumerate(csv.DictReader(_lines(file))):
                if number == most:
                    raise ValueError(f"it has more than {most:,} rows")
                yield row
    except OSError as problem:
        raise ValueError(problem.strerror or str(problem)) from problem
    except csv.Error as problem:
        raise ValueError(str(problem)) from problem


def _lines(file: IO[str]) -> Iterator[str]:
    while line := file.readline(MAX_LINE_BYTES):
        if len(line) == MAX_LINE_BYTES:
            raise ValueError(f"a line has more than {MAX_LINE_BYTES:,} characters")
        yield line


def write_rows(path: Path, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table: texts as they are, what is not known or empty as nothing, the rest as JSON."""
    with open(path, "w", encoding="utf-8", newline="", opener=opener) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(map(text_of, row) for row in rows)


def text_of(value: Any) -> str:
    """Return what stands in a table for a value."""
    if value is None or value in ([], (), {}):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
