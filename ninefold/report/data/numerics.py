"""numerics.csv: how far the first steps of each run are off those of none-fp32."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ninefold.answer.numerics import COLUMNS, Row, well_formed
from ninefold.report.data.csv_files import read_rows, write_rows


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write numerics.csv; None is empty."""
    write_rows(path, COLUMNS, ([row[name] for name in COLUMNS] for row in rows))


def read_csv(path: Path) -> list[Row]:
    """Read numerics.csv, skipping lines that are not valid; empty if there is no such file."""
    found = []
    try:
        for row in read_rows(path):
            try:
                values = {
                    name: json.loads(row[name]) if row[name] else None for name in COLUMNS[1:]
                }
                found.append({"folder": row["folder"], **values})
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
    except ValueError:
        return []
    return [row for row in found if well_formed(row)]
