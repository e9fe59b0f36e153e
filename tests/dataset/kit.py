"""What tests of datasets share: batches of an epoch, rows that are read, folders of images."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ninefold.dataset import Examples
from ninefold.engine.batches import Batches, Preparation, Source
from ninefold.engine.parallel import RankContext

CPU = torch.device("cpu")
ALONE = RankContext(0, 1, CPU)


def labeled(count: int = 43, *shape: int, classes: int | None = 10) -> Examples:
    """`count` random images, of 3x8x10 bytes unless `shape` says otherwise, with a class each.

    classes: None: each is labeled with its own number.
    """
    images = np.random.default_rng(0).integers(0, 256, (count, *(shape or (3, 8, 10))), np.uint8)
    return Examples(images, np.arange(count) % (classes or count))


def nothing(*phase: object) -> None:
    """In place of what is called between the phases of a step."""


def epoch(
    source: Source,
    prepare: Preparation,
    context: RankContext = ALONE,
    number: int = 0,
    start: int = 0,
    size: int = 8,
) -> list[tuple[Any, Any]]:
    """The batches of an epoch of seed 5, from number `start` on; size: of the global batch."""
    return list(Batches(source, size, 5, prepare, context).epoch(number, start, nothing, nothing))


def ranks(count: int) -> list[RankContext]:
    """The places of so many processes."""
    return [RankContext(rank, count, CPU) for rank in range(count)]


def photos(
    root: Path,
    counts: Mapping[str, int] = {"train": 13, "test": 4},
    size: tuple[int, int] = (12, 10),
) -> Path:
    """Write so many images of random bytes of each of two classes, cat and dog; returns `root`."""
    random = np.random.default_rng(0)
    for split, count in counts.items():
        for name in ("cat", "dog"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (*size[::-1], 3), np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number:02}.png")
    return root


def children() -> set[int]:
    """The processes that this one has forked or started."""
    found = set[int]()
    for numbers in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended
            found.update(map(int, numbers.read_text().split()))
    return found


def files() -> set[tuple[str, str]]:
    """The open files of this process. Memory that is shared is such a file, not in /dev/shm."""
    found = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    opened = set()
    for fd in found:
        with suppress(FileNotFoundError):  # another thread has closed it meanwhile
            opened.add((fd.name, os.readlink(fd)))
    return opened
