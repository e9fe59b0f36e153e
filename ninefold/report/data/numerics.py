"""numerics.csv: how far the first steps of each run are off those of none-fp32."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ninefold.answer.numerics import COLUMNS, Row, well_formed
from ninefold.report.data.csv_files import read_table, write_rows


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write numerics.csv; None is empty."""
    write_rows(path, COLUMNS, ([row[name] for name in COLUMNS] for row in rows))


def read_csv(path: Path) -> list[Row]:
    """Read numerics.csv, empty if there is no such file; ConfigError if it cannot be read."""
    return read_table(path, _of_texts)


def _of_texts(texts: Mapping[str, str]) -> Row:
    values = {name: json.loads(texts[name]) if texts[name] else None for name in COLUMNS[1:]}
    row = {"folder": texts["folder"], **values}
    if not well_formed(row):
        raise ValueError("a number in it was not measured")
    return row
