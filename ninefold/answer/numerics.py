"""Reads what the runs' first steps computed (numerics.npz) and compares it with none-fp32's.

A row says how far loss, gradient and update of a step are off; numerics.csv has them.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
Floats = npt.NDArray[np.float32]
Steps = Mapping[str, npt.NDArray[Any]]  # a numerics.npz: its arrays, as `measure.numerics` has them


@dataclass(frozen=True)
class Row:
    """How far a step of a run is off that of the one with parallel=none amp=fp32.

    None: not finite, or there is nothing to compare with.

    folder: of the run. loss_deviation, weights: relative. cosine: of both gradients.
    gradient_ratio, update_ratio: of norms. flushed: share of a gradient that is zero where the
    other is not. skipped: by a GradScaler. batch_norm: whether the network has batch normalization.
    """

    folder: str
    step: int
    loss: float | None
    loss_deviation: float | None
    cosine: float | None
    gradient_ratio: float | None
    flushed: float | None
    update_ratio: float | None
    skipped: bool
    weights: float | None
    batch_norm: bool


def rows(folder: Path, runs: Sequence[Run]) -> list[Row]:
    """Return a row for each recorded step of each run below `folder`.

    Each run is compared with the none-fp32 run of its group and seed, of the same round if there
    are several. Where scaling is weak, more processes take other batches: they have no row. Files
    that are damaged or hold something else are skipped.
    """
    found: list[Row] = []
    for group in groups(runs):
        for run in group.runs:
            reference = _reference(folder, group, run)
            if reference is not None:
                found += _compared(folder, run, reference)
    return found


def _reference(folder: Path, group: RunGroup, run: Run) -> Run | None:
    """The run that `run` is compared with: of its seed and batch size, and of its round if there
    are several.
    """
    candidates = [
        other
        for other in group.of(PLAIN)
        if (other.seed, other.batch_size) == (run.seed, run.batch_size)
        and (folder / other.folder / NUMERICS).is_file()
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
        off = _ratio(abs(loss - expected), abs(expected))
        moved = _norm(mine["weights"][step] - theirs["weights"][step])
        yield Row(
            folder,
            step + 1,
            _finite(loss),
            _finite(off),
            *_gradients(mine["gradients"][step], theirs["gradients"][step]),
            update_ratio=_finite(_ratio(*sizes)),
            skipped=bool(mine["skipped"][step]),
            weights=_finite(_ratio(moved, _norm(theirs["weights"][step]))),
            batch_norm=bool(mine["batch_norm"]),
        )


def _gradients(mine: Floats, theirs: Floats) -> tuple[float | None, float | None, float | None]:
    """How two gradients differ in the elements that are finite in both: their cosine, the ratio of
    their norms, and the share that is flushed.
    """
    both = np.isfinite(mine) & np.isfinite(theirs)
    if 2 * both.sum() < both.size:
        return None, None, None
    one, other = mine[both].astype(np.float64), theirs[both].astype(np.float64)
    sizes = _norm(one), _norm(other)
    cosine = float(np.minimum(1.0, _ratio(float(one @ other), sizes[0] * sizes[1])))
    flushed = float(((one == 0) & (other != 0)).mean())
    return _finite(cosine), _finite(_ratio(*sizes)), flushed


def _norm(values: npt.NDArray[Any]) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))


def _ratio(one: float, other: float) -> float:
    return one / other if other else math.nan


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
