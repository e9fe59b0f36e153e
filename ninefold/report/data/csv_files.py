"""Reads and writes the tables of a recording: CSV with a header, as anybody may have written it."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ninefold.errors import ConfigError
from ninefold.files import opener, require_small
from ninefold.score import by_present_keys

RESTORE = "restore the file from version control"
# Bytes and rows of a file: 10,000 runs with 100 evaluations each take 80 MB.
MAX_BYTES, MAX_ROWS = 1 << 27, 1_000_000
PROBLEMS = (  # of what anybody may have written
    *(OSError, ValueError, LookupError, TypeError, RecursionError),
    *(csv.Error, msgspec.MsgspecError),
)
Read = TypeVar("Read")


def read_table(path: Path, convert: Callable[[Mapping[str, str]], Read]) -> list[Read]:
    """Return what `convert` makes of each row of a table; nothing if there is no such file.

    A row that is too short has None for values. Raises ConfigError, which names the row.
    """
    found = list[Read]()
    if path.is_symlink() or not path.is_file():
        return found
    try:
        with open(path, encoding="utf-8", newline="", opener=opener) as file:
            require_small(path, os.fstat(file.fileno()).st_size, MAX_BYTES)
            csv.field_size_limit(MAX_BYTES)  # a field has an entry for each epoch or turn of a run
            for row in csv.DictReader(file):
                if len(found) == MAX_ROWS:
                    raise ValueError(f"there are more than {MAX_ROWS:,} rows")
                found.append(convert(row))
    except PROBLEMS as problem:
        wrong = f"row {len(found) + 1}: {getattr(problem, 'strerror', None) or problem}"
        allowed = "the file as the report wrote it"
        raise ConfigError(path.name, path, wrong, allowed, RESTORE) from problem
    return found


def read_records(path: Path, kind: type[Read]) -> list[Read]:
    """Read a table whose rows are of a dataclass; as of `read_table`."""

    def read(texts: Mapping[str, str]) -> Read:
        given = by_present_keys(texts)
        return record(kind, {name: given[name] or None for name in names_of(kind)})

    return read_table(path, read)


def record(kind: type[Read], values: Mapping[str, Any]) -> Read:
    """A dataclass of what anybody may have written. Raises ValueError or ValidationError."""
    found = msgspec.convert(values, kind, strict=False)
    for value in vars(found).values():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("a number in it was not measured")
    return found


def names_of(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def write_records(path: Path, kind: type, records: Iterable[Any]) -> None:
    """Write a table whose rows are of a dataclass, in the order given."""
    write_rows(path, names_of(kind), (vars(each).values() for each in records))


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
