"""Whether the cells compute the same thing: their first steps against those of none-fp32."""

from __future__ import annotations

import csv
import json
import math
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ninefold.report.data.cells import BASELINE, PLAIN, Group, groups, plainness
from ninefold.report.data.runs import Run
from ninefold.result import NUMERICS

LONGEST, WIDEST = 10_000, 1 << 20  # steps, and elements of each, in a file that is read
COLUMNS = ("folder", "step", "loss", "loss_deviation", "cosine", "gradient_ratio", "flushed",
           "update_ratio", "skipped", "weights", "batch_norm")  # fmt: skip
ABOUT = (
    "Loss, gradient and update of the first {steps} steps against those of none-fp32 with the same "
    "seed, without dropout. The first step starts from the same weights, and decides; later ones "
    "show how fast rounding drives the cells apart."
)
SAME, WITHIN, OTHER = "the same", "the same within its precision", "not the same"
Row = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """What numerics.npz holds of a step; arrays float32 [n]."""

    loss: float
    skipped: bool
    gradients: npt.NDArray[np.float32]
    updates: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Tolerance:
    """How far the first step may be off: relative, but `cosine` below 1 and `flushed` a share."""

    loss: float
    cosine: float
    ratio: float
    flushed: float


# On a CPU, ConvNet in two processes and fp32 is off by at most 6e-8 in its first loss and by 4e-13
# in cosine; in bfloat16 by 9e-5 and 1e-3, ResNet-18 by 3e-3 and 0.055. Other examples give a cosine
# of about 0, batch norm over half of a batch one of 0.5.
ROUNDING = Tolerance(loss=1e-5, cosine=1e-6, ratio=1e-3, flushed=1e-4)
SHORT = Tolerance(loss=1e-2, cosine=0.2, ratio=5e-2, flushed=1e-2)  # 16 bits, or TF32


SAME_SIZE = 1.3  # times: two updates by other gradients that no learning rate tells apart


def rows(folder: Path, runs: Sequence[Run]) -> list[Row]:
    """The rows of numerics.csv: each step of each run below `folder` that has kept any.

    Each is held against the none-fp32 run of its group and seed, of the same round where there is
    one. Files that are damaged or hold something else are passed over.
    """
    found: list[Row] = []
    for group in groups(runs):
        for run in group.runs:
            reference = _reference(folder, group, run)
            if reference is not None:
                found += _compared(folder, run, reference)
    return found


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write numerics.csv; what is None is empty."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            values = [row[name] for name in COLUMNS]
            writer.writerow([
                "" if value is None else value if isinstance(value, str) else json.dumps(value)
                for value in values
            ])  # fmt: skip


def read_csv(path: Path) -> list[Row]:
    """Read numerics.csv, without the lines that are none of ours; none where there is no file."""
    found = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                try:
                    found.append({"folder": row["folder"], **{
                        name: json.loads(row[name]) if row[name] else None for name in COLUMNS[1:]
                    }})  # fmt: skip
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue
    except (OSError, ValueError, csv.Error):
        return []
    return [row for row in found if _well_formed(row)]


def _well_formed(row: Row) -> bool:
    numbers = [row[name] for name in COLUMNS[2:8]] + [row["weights"]]
    return type(row["step"]) is int and all(
        value is None or (type(value) in (int, float) and abs(value) <= sys.float_info.max)
        for value in numbers
    )


def summarize(rows: Sequence[Row], runs: Sequence[Run]) -> dict[str, Any] | None:
    """What `rows` come to for the cells of `runs`, a group's; None if there are none of them.

    Of several seeds the figures are the worst: what holds of a cell holds of each of its runs.
    """
    by_run: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["step"]):
        by_run.setdefault(row["folder"], []).append(row)
    cells: dict[str, list[tuple[Run, list[Row]]]] = {}
    for run in runs:
        if run.folder in by_run:
            cells.setdefault(run.cell, []).append((run, by_run[run.folder]))
    if not cells:
        return None
    steps = max(len(found) for members in cells.values() for _, found in members)
    return {
        "steps": steps,
        "about": ABOUT.format(steps=steps),
        "rows": [_cell(cell, cells[cell]) for cell in sorted(cells, key=plainness)],
    }


def _cell(cell: str, members: Sequence[tuple[Run, list[Row]]]) -> dict[str, Any]:
    firsts = [found[0] for _, found in members]
    judged = [_judge(run, found[0]) for run, found in members]
    verdict, sentence = max(judged, key=lambda pair: (SAME, WITHIN, OTHER).index(pair[0]))
    return {
        "cell": cell,
        "seeds": len({run.seed for run, _ in members}),
        "first_loss_deviation": _worst(row["loss_deviation"] for row in firsts),
        "loss_deviation": _worst(row["loss_deviation"] for _, found in members for row in found),
        "cosine": min((row["cosine"] for row in firsts if row["cosine"] is not None), default=None),
        "flushed": _worst(row["flushed"] for row in firsts),
        "update_ratio": max(
            (row["update_ratio"] for row in firsts if row["update_ratio"] is not None),
            key=_off,
            default=None,
        ),
        "verdict": verdict,
        "sentence": sentence,
        "by_design": verdict == OTHER and all(_by_design(run, found[0]) for run, found in members),
    }


def _by_design(run: Run, first: Row) -> bool:
    """Whether batch norm over parts of a batch explains what a run does otherwise.

    That is how its strategy is meant to work, and accuracy has to tell what it costs.
    """
    update = first["update_ratio"]
    fine = update is not None and _off(update) <= math.log(SAME_SIZE)
    return bool(first["batch_norm"]) and (run.replicas or 1) > 1 and fine


def _judge(run: Run, first: Row) -> tuple[str, str]:
    """The verdict on a run by its first step, and why."""
    if run.cell == PLAIN:
        return SAME, "It is what the others are held against."
    if not _wrong(run, first, ROUNDING):
        return SAME, "Loss, gradient and update of the first step differ by no more than rounding."
    short = run.dtype in ("float16", "bfloat16") or run.amp == "tf32"
    wrong = _wrong(run, first, SHORT if short else ROUNDING)
    if wrong:
        return OTHER, wrong
    precision = "TF32" if run.amp == "tf32" else run.dtype
    return WITHIN, (
        f"The gradient of the first step has a cosine of {_text(first['cosine'])} with "
        f"none-fp32's: what {precision} rounds away."
    )


def _wrong(run: Run, first: Row, allowed: Tolerance) -> str | None:
    """What is wrong with a run, in one sentence, by its first step; None if nothing is."""
    if (first["weights"] or 0.0) > allowed.loss:
        return "It starts from other weights, so that nothing else of it can be compared."
    loss, cosine, flushed = first["loss_deviation"], first["cosine"], first["flushed"]
    if loss is None:
        return "Its loss at the first step is not finite."
    if cosine is None:
        return "Its gradient at the first step is zero or not finite."
    elsewhere = 1 - cosine > allowed.cosine
    if flushed is not None and flushed > allowed.flushed and loss <= allowed.loss:
        return (
            f"{flushed:.1%} of its gradient is zero where none-fp32's is not: it underflows in "
            f"{run.dtype}."
        )
    if elsewhere and loss > allowed.loss:
        return (
            f"From the same weights its first loss is {loss:.1%} off and its gradient points "
            f"elsewhere (cosine {_text(cosine)}): {_other_function(run, first)}."
        )
    if elsewhere:
        return (
            f"Its first loss is the same and its gradient is not (cosine {_text(cosine)}): it "
            "is computed or put together in another way."
        )
    if loss > allowed.loss:
        return (
            f"Its first loss is {loss:.1%} off and its gradient is the same: the loss is averaged "
            "in another way."
        )
    gradient = first["gradient_ratio"]
    if gradient is not None and _off(gradient) > allowed.ratio:
        return (
            f"Its gradient has the same direction and is {_text(gradient)} times as large: a sum "
            "for a mean, or not unscaled."
        )
    update = first["update_ratio"]
    if update is not None and _off(update) > allowed.ratio:
        return (
            f"Its gradient is the same and its update {_text(update)} times as large: another "
            "learning rate or optimizer."
        )
    return None


def _other_function(run: Run, first: Row) -> str:
    if first["batch_norm"] and (run.replicas or 1) > 1:
        return (
            f"batch norm takes the mean and variance of each replica's own part of a batch, of "
            f"which there are {run.replicas}"
        )
    return "it sees other examples, or computes another function of them"


def _off(ratio: float) -> float:
    return abs(math.log(ratio)) if ratio > 0 else math.inf


def _worst(values: Iterator[float | None] | Any) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _text(value: float) -> str:
    return f"{value:.4f}".rstrip("0").ljust(3, "0") if value < 10 else f"{value:,.0f}"


def _reference(folder: Path, group: Group, run: Run) -> Run | None:
    """The run that `run` is held against: of its seed, and of its round if there are several."""
    candidates = [
        other for other in group.cell(*BASELINE)
        if other.seed == run.seed and _path(folder, other).is_file()
    ]  # fmt: skip
    candidates.sort(key=lambda other: (other.round != run.round, other.attempt != run.attempt))
    return candidates[0] if candidates else None


def _path(folder: Path, run: Run) -> Path:
    return folder / run.folder / NUMERICS


def _compared(folder: Path, run: Run, reference: Run) -> list[Row]:
    found: list[Row] = []
    try:
        here, there = _path(folder, run), _path(folder, reference)
        normalizes = has_batch_norm(here)
        for number, (mine, theirs) in enumerate(zip(steps(here), steps(there), strict=False), 1):
            sizes = _norm(mine.updates), _norm(theirs.updates)
            found.append({
                "folder": run.folder,
                "step": number,
                "loss": _finite(mine.loss),
                "loss_deviation": _finite(abs(mine.loss - theirs.loss) / abs(theirs.loss)
                                          if theirs.loss else math.nan),
                **_gradients(mine.gradients, theirs.gradients),
                "update_ratio": _finite(sizes[0] / sizes[1]) if sizes[1] else None,
                "skipped": mine.skipped,
                "weights": _finite(_norm(mine.weights - theirs.weights)
                                   / (_norm(theirs.weights) or math.nan)),
                "batch_norm": normalizes,
            })  # fmt: skip
    except Exception:  # of many types: anybody may have made the files
        return []
    return found


def _gradients(
    mine: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]
) -> dict[str, float | None]:
    """How two gradients differ, in the elements that are finite in both."""
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


def steps(path: Path) -> Iterator[Step]:
    """The steps in a numerics.npz, one after the other. Raises if it is not a whole one of ours.

    Nothing in it is unpickled, and no more is read at once than a step.
    """
    with zipfile.ZipFile(path) as archive:
        losses, skipped = (
            Column(archive, name, dtype) for name, dtype in (("loss", "<f8"), ("skipped", "|b1"))
        )
        wide = [Column(archive, name, "<f4") for name in ("gradients", "updates", "weights")]
        columns = [losses, skipped, *wide]
        count = losses.shape[0]
        if any(len(c.shape) != 1 + (c in wide) or c.shape[0] != count for c in columns):
            raise ValueError("not an array for each step")
        if len({column.shape for column in wide}) != 1:
            raise ValueError("arrays of different lengths")
        for _ in range(count):
            gradients, updates, weights = (column.read() for column in wide)
            loss, skip = losses.read(), skipped.read()
            yield Step(float(loss[0]), bool(skip[0]), gradients, updates, weights)


def has_batch_norm(path: Path) -> bool:
    """Whether the network of a numerics.npz takes the statistics of its batches."""
    with zipfile.ZipFile(path) as archive:
        return bool(Column(archive, "batch_norm", "|b1").read()[0])


class Column:
    """An array in a file of numpy.savez, read row by row. Raises ValueError if it is another."""

    def __init__(self, archive: zipfile.ZipFile, name: str, dtype: str) -> None:
        self._file = archive.open(f"{name}.npy")
        if np.lib.format.read_magic(self._file) != (1, 0):
            raise ValueError("another version of the format")
        shape, by_column, self._dtype = np.lib.format.read_array_header_1_0(self._file)
        limits = (LONGEST, WIDEST)[: len(shape)]
        fits = all(0 < size <= most for size, most in zip(shape, limits, strict=True))
        if by_column or self._dtype != np.dtype(dtype) or not fits:
            raise ValueError("another array")
        self.shape: tuple[int, ...] = shape
        self._row = math.prod(shape[1:])

    def read(self) -> npt.NDArray[Any]:
        """The next row: [n], or [1] of an array of numbers."""
        size = self._row * self._dtype.itemsize
        data = self._file.read(size)
        if len(data) != size:
            raise ValueError("cut short")
        return np.frombuffer(data, self._dtype)
