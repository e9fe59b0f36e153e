"""A published table that a stored study repeats: experiments/STUDY/published.csv."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field

from ninefold.answer.cell import Cell
from ninefold.files import read_text
from ninefold.places import EXPERIMENTS


@dataclass(frozen=True)
class PublishedTable:
    """What was published, by cell: minutes, and scores as shares. source: by whom, and how."""

    source: str = ""
    minutes: dict[Cell, float] = field(default_factory=dict)
    scores: dict[Cell, float] = field(default_factory=dict)


def published_table(study: str | None) -> PublishedTable:
    """Return the table that a study repeats; an empty one where it repeats none."""
    path = EXPERIMENTS / (study or "") / "published.csv"
    if study is None or not path.is_file():
        return PublishedTable()
    source, *lines = read_text(path).splitlines()
    rows = {Cell(row["parallel"], row["amp"]): row for row in csv.DictReader(lines)}

    def values(column: str) -> dict[Cell, float]:
        return {cell: float(text) for cell, row in rows.items() if (text := row[column])}

    return PublishedTable(source.removeprefix("# "), values("minutes"), values("accuracy"))
