"""Reads what the runs' first steps computed (numerics.npz) and compares it with none-fp32's.

A row says how far loss, gradient and update of a step are off; numerics.csv has them.
"""

from __future__ import annotations

import math
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ninefold.answer.cell import PLAIN
from ninefold.answer.grouping import groups
from ninefold.answer.runs import Run, RunGroup
from ninefold.files import opener
from ninefold.result import NUMERICS

MAX_STEPS = 10_000  # of a file that is read
MAX_BYTES = 1 << 31  # bytes of a file once unpacked: 680 steps of the most elements recorded
COLUMNS = (
    "folder",
    "step",
    "loss",
    "loss_deviation",
    "cosine",
    "gradient_ratio",
    "flushed",
    "update_ratio",
    "skipped",
    "weights",
    "batch_norm",
)
Row = dict[str, Any]
Floats = npt.NDArray[np.float32]
Steps = Mapping[str, npt.NDArray[Any]]  # a numerics.npz: its arrays, as `measure.numerics` has them


def rows(folder: Path, runs: Sequence[Run]) -> list[Row]:
    """Return a row for each recorded step of each run below `folder`.

    Each run is compared with the none-fp32 run of its group and seed, of the same round if there
    are several. Files that are damaged or hold something else are skipped.
    """
    found: list[Row] = []
    for group in groups(runs):
        for run in group.runs:
            reference = _reference(folder, group, run)
            if reference is not None:
                found += _compared(folder, run, reference)
    return [row for row in found if well_formed(row)]


def well_formed(row: Row) -> bool:
    """Return whether a row, which anybody may have written, has numbers where it must."""
    numbers = [row[name] for name in COLUMNS[2:8]] + [row["weights"]]
    return type(row["step"]) is int and all(
        value is None or (type(value) in (int, float) and abs(value) <= sys.float_info.max)
        for value in numbers
    )


def _reference(folder: Path, group: RunGroup, run: Run) -> Run | None:
    """The run that `run` is compared with: of its seed, and of its round if there are several."""
    candidates = [
        other
        for other in group.of(PLAIN)
        if other.seed == run.seed and (folder / other.folder / NUMERICS).is_file()
    ]
    return min(candidates, key=lambda other: other.round != run.round, default=None)


def _compared(folder: Path, run: Run, reference: Run) -> list[Row]:
    try:
        mine, theirs = (read(folder / each.folder / NUMERICS) for each in (run, reference))
        return list(_differences(run.folder, mine, theirs))
    except Exception:  # of many types: the files may come from anybody
        return []


def _differences(folder: str, mine: Steps, theirs: Steps) -> Iterator[Row]:
    for step in range(min(len(mine["loss"]), len(theirs["loss"]))):
        loss, expected = float(mine["loss"][step]), float(theirs["loss"][step])
        sizes = _norm(mine["updates"][step]), _norm(theirs["updates"][step])
        off = abs(loss - expected) / abs(expected) if expected else math.nan
        moved = _norm(mine["weights"][step] - theirs["weights"][step])
        yield {
            "folder": folder,
            "step": step + 1,
            "loss": _finite(loss),
            "loss_deviation": _finite(off),
            **_gradients(mine["gradients"][step], theirs["gradients"][step]),
            "update_ratio": _finite(sizes[0] / sizes[1]) if sizes[1] else None,
            "skipped": bool(mine["skipped"][step]),
            "weights": _finite(moved / (_norm(theirs["weights"][step]) or math.nan)),
            "batch_norm": bool(mine["batch_norm"]),
        }


def _gradients(mine: Floats, theirs: Floats) -> dict[str, float | None]:
    """Return how two gradients differ, in the elements that are finite in both."""
    both = np.isfinite(mine) & np.isfinite(theirs)
    if 2 * both.sum() < both.size:
        return {"cosine": None, "gradient_ratio": None, "flushed": None}
    one, other = mine[both].astype(np.float64), theirs[both].astype(np.float64)
    sizes = _norm(one), _norm(other)
    return {
        "cosine": min(1.0, float(one @ other) / (sizes[0] * sizes[1])) if all(sizes) else None,
        "gradient_ratio": sizes[0] / sizes[1] if sizes[1] else None,
        "flushed": float(((one == 0) & (other != 0)).mean()),
    }


def _norm(values: npt.NDArray[Any]) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def read(path: Path) -> Steps:
    """Read a numerics.npz without unpickling anything. Raises if it is none, or too large."""
    with open(path, "rb", opener=opener) as content:
        with zipfile.ZipFile(content) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_BYTES:
                raise ValueError("it unpacks to too much")
        content.seek(0)
        with np.load(content, allow_pickle=False) as file:
            found = dict(file)
    if len(found["loss"]) > MAX_STEPS:
        raise ValueError("it has too many steps")
    return found
