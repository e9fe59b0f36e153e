"""The picture of a confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def draw(path: Path, counts: npt.NDArray[np.int64], names: Sequence[str]) -> None:
    """Write `counts` [classes, classes + 1] as a PNG: row = true class, shares of the row."""
    if not counts[:, -1].any():
        counts = counts[:, :-1]
    columns = [*names, "none of these"][: counts.shape[1]]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(2.5 + 0.55 * len(names), 24)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    right = np.trace(counts[:, : len(names)]) / max(counts.sum(), 1)
    axes.set_title(f"{counts.sum():,} examples, {right:.2%} right")
    if len(names) <= 40:
        axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", parse_math=False)
        axes.set_yticks(range(len(names)), names, parse_math=False)
    if len(names) <= 20:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                color = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=color)
    figure.colorbar(picture, label="share of the true class", shrink=0.8)
    figure.savefig(path, dpi=110)
