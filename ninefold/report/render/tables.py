"""Tables of a report as typed rows of text, which every rendering shows; Markdown of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ninefold.answer.fields import Field
from ninefold.errors import one_line
from ninefold.numbers import MISSING
from ninefold.progress import aligned
from ninefold.tables import grid, plain

NONE = Field(MISSING)
Texts = Sequence[Field | str | int | None]  # of a row; None where a number is not known


class Column(NamedTuple):
    """One column. number: whether its fields are, which are aligned at the right."""

    title: str
    number: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of fields below their columns, of which the first names the row.

    name: what it is a table of.
    styles: of each row: `named` by the answer, `out` of the running, or empty.
    """

    name: str
    columns: list[Column]
    rows: list[list[Field]]
    styles: list[str] = field(default_factory=list)

    def parts(self, place: int) -> tuple[bool, bool, bool]:
        """Whether fields of a column have text, have something beside it, and have a word."""
        fields = [row[place] for row in self.rows]
        return any(f.text for f in fields), any(f.more for f in fields), any(f.word for f in fields)

    def style(self, row: int) -> str:
        return self.styles[row] if self.styles else ""


def table_of(
    name: str, texts: Sequence[str], numbers: Sequence[str], rows: Iterable[Texts]
) -> Table:
    """Return a table of rows of fields, or of their texts. texts, numbers: titles of columns."""
    columns = [*(Column(title, number=False) for title in texts), *map(Column, numbers)]
    return Table(name, columns, [list(map(_field, row)) for row in rows])


def _field(found: Field | str | int | None) -> Field:
    return found if isinstance(found, Field) else NONE if found is None else Field(str(found))


def filled(table: Table) -> Table:
    """Return a table without the columns that have nothing in any row."""
    kept = [
        place
        for place in range(len(table.columns))
        if any(row[place] not in (NONE, Field("")) for row in table.rows)
    ]
    rows = [[row[place] for place in kept] for row in table.rows]
    return Table(table.name, [table.columns[place] for place in kept], rows, table.styles)


def markdown(table: Table) -> str:
    """Return a table as Markdown; a row that the answer names is bold."""
    rows = []
    for number, row in enumerate(table.rows):
        name, *rest = [plain(str(each)) for each in row]
        rows.append([f"**{name}**" if table.style(number) == "named" else name, *rest])
    return grid([plain(column.title) for column in table.columns], rows)


def lines(table: Table, most: int, columns: int) -> list[str]:
    """Return the first rows and columns of a table as lines of text, its numbers aligned.

    A row that the answer names is one of them.
    """
    heads = [column.title for column in table.columns[:columns]]
    by_name = sorted(range(len(table.rows)), key=lambda number: table.style(number) != "named")
    kept = [table.rows[number] for number in sorted(by_name[:most])]
    cut = [[one_line(str(each)) for each in row[:columns]] for row in kept]
    return aligned([heads, *cut])
