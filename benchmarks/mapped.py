"""A user's own Dataset class, read by ninefold and by torch's DataLoader with as many workers."""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import (
    Compose,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ToTensor,
)

from benchmarks.inputs import BATCH, CONTEXT, MEAN, STD, images_per_second
from benchmarks.measure import OURS, Bench, Row, Turns, at_least, ratio
from ninefold.dataset.loader import HostSource
from ninefold.dataset.mapped import Mapped
from ninefold.dataset.preparation import ImagePreparation
from ninefold.engine.batches import Batches
from ninefold.train.kernels import keep_freed

SLOWED = 2.0  # times as long as an item takes otherwise: how long it takes with the handicap
WORKERS = (0, 1, 2)
KINDS = {
    "small": (32, [RandomCrop(32, padding=4)]),  # as kuangliu/pytorch-cifar prepares CIFAR-10
    "large": (224, [RandomResizedCrop(224)]),  # as ImageNet is prepared
}


class Pictures(Dataset[Any]):
    """Images as torchvision's classes have them: arrays of 32 pixels, or files of 256.

    slowed: times as long as an item takes.
    """

    def __init__(self, kind: str, count: int, slowed: float = 1.0) -> None:
        self.count, self.slowed = count, slowed
        _, first = KINDS[kind]
        self.transform = Compose([*first, RandomHorizontalFlip(), ToTensor(), Normalize(MEAN, STD)])
        draw = np.random.default_rng(0)
        if kind == "small":
            self.arrays = draw.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
            return
        self.files = []
        for coarse in draw.integers(0, 256, (64, 32, 32, 3), dtype=np.uint8):
            file = io.BytesIO()
            Image.fromarray(coarse).resize((256, 256)).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Any, int]:
        began = time.perf_counter()
        if hasattr(self, "arrays"):
            image = Image.fromarray(self.arrays[number])
        else:
            image = Image.open(io.BytesIO(self.files[number % len(self.files)])).convert("RGB")
        item = self.transform(image), number % 10
        until = began + self.slowed * (time.perf_counter() - began)
        while self.slowed > 1 and time.perf_counter() < until:
            pass
        return item


def contestants(kind: str, count: int) -> Callable[[bool], AbstractContextManager[Turns]]:
    """Contestants whose turn is an epoch of `count` images, a multiple of the batch size."""

    @contextmanager
    def turns(handicap: bool) -> Iterator[Turns]:
        keep_freed()
        side, _ = KINDS[kind]
        found: Turns = {}
        for workers in WORKERS:
            node = {"_target_": "benchmarks.mapped.Pictures", "kind": kind, "count": count}
            node["slowed"] = SLOWED if handicap else 1.0
            dataset = Mapped(train=node, test=node, shape=(3, side, side))
            if workers:
                dataset.start_workers(workers, ("train",), 600)
            source = HostSource(dataset.load("train"), workers)
            batches = Batches(source, BATCH, 0, ImagePreparation(channels=3), CONTEXT)
            found[ours(workers)] = epochs(count, batches)
        for workers in WORKERS:
            loader = DataLoader(
                Pictures(kind, count),
                BATCH,
                shuffle=True,
                num_workers=workers,
                persistent_workers=workers > 0,
            )
            found[theirs(workers)] = lambda loader=loader: images_per_second(count, iter(loader))
        yield found

    return turns


def epochs(count: int, batches: Batches) -> Callable[[], float]:
    numbers = itertools.count()

    def turn() -> float:
        epoch = batches.epoch(next(numbers))
        return images_per_second(count, epoch)

    return turn


def ours(workers: int) -> str:
    return OURS if workers == WORKERS[-1] else f"{OURS}, {workers} workers"


def theirs(workers: int) -> str:
    return f"DataLoader, {workers} workers"


def bench(kind: str, count: int, items: str) -> Bench:
    return Bench(
        f"mapped-{kind}",
        f"A turn takes {count:,} items of a Dataset class once, shuffled, in batches of {BATCH}, "
        f"and does nothing with them: {items}, RandomHorizontalFlip, ToTensor, Normalize. Ours is "
        "dataset=mapped, whose items have draws of their own; the DataLoader's workers persist. "
        f"Figures are images a second. The handicap: an item of ours takes {SLOWED:g} times as "
        "long.",
        contestants(kind, count),
        [
            Row(
                f"items of a {kind} Dataset, {workers} workers",
                theirs(workers),
                ratio(ours(workers), theirs(workers)),
                at_least(1),
            )
            for workers in WORKERS
        ],
    )


BENCHES = [
    bench("small", 3_200, "PIL images of 32 pixels from arrays, RandomCrop"),
    bench("large", 640, "JPEG files of 256 pixels in memory, RandomResizedCrop to 224"),
]
