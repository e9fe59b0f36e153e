"""Heatmaps of landmarks: in Python loops, with NumPy and on the device; their part of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.measure import OURS, Array, Bench, Figures, Row, Turns, at_least, at_most, ratio
from benchmarks.step import adamw
from ninefold.engine.task import Objective
from ninefold.extensions.volumes.landmarks import Landmarks, heatmaps
from ninefold.model.unet import UNet
from ninefold.train.kernels import keep_freed

EXAMPLES, POINTS, SIDE, SIGMA = 4, 5, 96, 2.0
STEP_SIDE, STEP_EXAMPLES, DRAWN = 48, 2, 50
Floats = npt.NDArray[np.float32]


def looped(points: Floats) -> Floats:
    """The heatmaps of points [n, k, 3], row by row: examples, landmarks, z and y are loops."""
    maps = np.zeros((*points.shape[:2], SIDE, SIDE, SIDE), np.float32)
    x = np.arange(SIDE, dtype=np.float32)
    for example in range(points.shape[0]):
        for landmark in range(points.shape[1]):
            at_z, at_y, at_x = points[example, landmark]
            for z in range(SIDE):
                for y in range(SIDE):
                    squares = (z - at_z) ** 2 + (y - at_y) ** 2 + (x - at_x) ** 2
                    maps[example, landmark, z, y] = np.exp(-squares / (2 * SIGMA**2))
    return maps


def vectorized(points: Floats) -> Floats:
    """The same as the outer product of three vectors."""
    voxels = np.arange(SIDE, dtype=np.float32)
    z, y, x = np.exp(
        -0.5 * ((voxels - points.transpose(2, 0, 1)[..., None]) / np.float32(SIGMA)) ** 2
    )
    plane = z[..., :, None] * y[..., None, :]
    return np.asarray(plane[..., None] * x[..., None, None, :])


def timed(action: Callable[[], object], times: int = 1) -> Callable[[], float]:
    def seconds() -> float:
        began = time.perf_counter()
        for _ in range(times):
            action()
        return (time.perf_counter() - began) / times

    return seconds


@contextmanager
def drawing(handicap: bool) -> Iterator[Turns]:
    """Seconds for the heatmaps of a batch, on one thread, in new memory each time."""
    keep_freed()
    torch.set_num_threads(1)
    points = np.random.default_rng(0).uniform(5, SIDE - 5, (EXAMPLES, POINTS, 3)).astype(np.float32)
    tensor = torch.from_numpy(points)
    shape = (EXAMPLES, POINTS, SIDE, SIDE, SIDE)
    found = heatmaps(tensor, shape[2:], SIGMA).numpy()
    for other in (looped(points), vectorized(points)):
        assert np.abs(found - other).max() < 1e-5

    def own() -> Tensor:
        if handicap:
            time.sleep(0.15)
        return heatmaps(tensor, shape[2:], SIGMA)

    yield {
        OURS: timed(own, 3),
        "loops": timed(lambda: looped(points)),
        "numpy": timed(lambda: vectorized(points), 3),
        "fill": timed(lambda: torch.empty(shape).fill_(1.0), 3),
    }


@contextmanager
def step(handicap: bool) -> Iterator[Turns]:
    """Seconds of a step of a 3-D UNet with landmarks, and of drawing its heatmaps alone."""
    keep_freed()
    torch.manual_seed(0)
    shape = (STEP_SIDE,) * 3
    model = UNet(1, POINTS, width=16, depth=3, dims=3)
    objective, optimizer = Objective(model, Landmarks((2.0, 2.0, 2.0))), adamw(model)
    inputs = torch.rand(STEP_EXAMPLES, 1, *shape)
    targets = torch.rand(STEP_EXAMPLES, POINTS, 3) * STEP_SIDE

    def train() -> None:
        objective(inputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    def own() -> Tensor:
        if handicap:
            time.sleep(2)  # more than the goal also of a step of ten seconds
        return heatmaps(targets, shape, SIGMA)

    yield {OURS: timed(own, 1 if handicap else DRAWN), "step": timed(train)}


def percent(figures: Figures) -> Array:
    return 100 * ratio(OURS, "step")(figures)


BENCHES = [
    Bench(
        "heatmaps",
        f"A turn draws {EXAMPLES} x {POINTS} Gaussian heatmaps of {SIDE}^3 voxels as float32 on "
        "one thread, in new memory. The loops are over examples, landmarks, z and y, with a vector "
        "for x; NumPy's is the outer product of three vectors; the fill writes one number to as "
        "much memory. Loops once, the others three times. The handicap: 150 ms.",
        drawing,
        [
            Row("heatmaps", "four Python loops", ratio("loops", OURS), at_least(20)),
            Row("heatmaps", "NumPy, float32", ratio("numpy", OURS), at_least(1.5)),
            Row("time of heatmaps", "filling the tensor", ratio(OURS, "fill"), at_most(2)),
        ],
    ),
    Bench(
        "heatmaps-step",
        f"A turn is a step of a 3-D UNet of width 16 at {STEP_SIDE}^3, batch {STEP_EXAMPLES}, "
        f"fp32, fused AdamW, {POINTS} landmarks; and the drawing of its heatmaps {DRAWN} times. "
        "The handicap: 2 s.",
        step,
        [Row("heatmaps, share of a step", "a training step", percent, at_most(5), "%")],
    ),
]
