"""The table that was published for a study, published.csv: minutes and accuracy of its cells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from ninefold.config.rules import NAME
from ninefold.errors import ConfigError
from ninefold.report.data.csv_files import read_rows, write_rows
from ninefold.report.data.runs import finite

FILE = "published.csv"
MOST = 10_000  # cells
EXPERIMENTS = Path(__file__).parents[3] / "experiments"  # has it in the folder of a study's name


@dataclass(frozen=True)
class Published:
    """One published cell.

    minutes: of all epochs, None if not given
    accuracy: a fraction, None if not given
    """

    parallel: str
    amp: str
    minutes: float | None
    accuracy: float | None


def read_published(folder: Path) -> list[Published]:
    """Return the table in a folder, empty if there is none; ConfigError if it cannot be read."""
    path = folder / FILE
    if not path.is_file():
        return []
    try:
        return [_cell(row) for row in read_rows(path, MOST)]
    except (KeyError, TypeError, ValueError) as problem:
        raise ConfigError(
            FILE,
            folder.name,
            f"cannot be read ({problem}); columns parallel, amp, minutes, accuracy; restore it "
            "from version control",
        ) from None


def _cell(row: dict[str, str]) -> Published:
    if not (NAME.fullmatch(row["parallel"]) and NAME.fullmatch(row["amp"])):
        raise ValueError("a cell has no name")
    minutes, accuracy = (
        finite(float(row[name])) if row[name] else None for name in ("minutes", "accuracy")
    )
    return Published(row["parallel"], row["amp"], minutes, accuracy)


def write_published(folder: Path, cells: Iterable[Published]) -> None:
    """Write the table into a folder."""
    columns = (field.name for field in fields(Published))
    write_rows(folder / FILE, columns, (astuple(cell) for cell in cells))
