"""Images per second from dataset.cache, and while it is being filled, with ImageFolder as rival."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Normalize, Resize, ToTensor

from benchmarks.inputs import (
    BATCH,
    CONTEXT,
    DATA,
    MEAN,
    RIVAL,
    STD,
    Slowed,
    examples,
    images_per_second,
)
from benchmarks.inputs import over_the_better as better
from benchmarks.measure import OURS, Bench, Row, Turns, at_least, at_most, ratio
from ninefold.dataset import Examples, train_and_val
from ninefold.dataset.cache import Files, keep, kept, make, reader
from ninefold.dataset.folder import Folder
from ninefold.dataset.loader import HostSource, gathered
from ninefold.dataset.preparation import ImagePreparation
from ninefold.engine.batches import Batches
from ninefold.train.kernels import keep_freed

COUNT, PACKED, SHAPE = 256, 768, (3, 180, 240)
LATER = 1.0  # of the seconds of each of our packings are added to it by the handicap
EPOCHS = 5  # of ours in a turn, and of memmap[rows]
SLOWED = 0.1  # seconds added to each of our batches, or to the start of a cell, by the handicap


@contextmanager
def photos(count: int) -> Iterator[Path]:
    """A folder of `count` training images, and as many test images as classes, 480x360, as PNG."""
    found = examples(count)
    rows = np.arange(count)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "photos")
        for pixels, label, number in zip(
            found.inputs[rows], found.targets[rows], rows, strict=True
        ):
            split = "train" if (root / "test" / str(label)).exists() else "test"
            for folder in {root / "train" / str(label), root / split / str(label)}:
                folder.mkdir(parents=True, exist_ok=True)
                image = Image.fromarray(pixels.transpose(1, 2, 0)).resize((480, 360))
                image.save(folder / f"{number}.png", compress_level=1)
        yield root


def folder(root: Path, cache: str | None) -> tuple[Folder, dict[str, Any]]:
    """The dataset and its configuration."""
    dataset = Folder(
        str(root), shape=SHAPE, mean=MEAN, std=STD, cache=cache, cache_dir=f"{root}-cache"
    )
    return dataset, {"_target_": "ninefold.dataset.folder.Folder", **asdict(dataset)}


def filled(root: Path, cache: str, threads: int = 2) -> Files:
    files = make(*folder(root, cache), threads)
    assert files is not None
    return files


@contextmanager
def contestants(handicap: bool) -> Iterator[Turns]:
    keep_freed()
    with photos(COUNT) as root:
        dataset, node = folder(root, "disk")
        files = filled(root, "disk")
        keep(node, files)  # as a first run of the command does
        found = reader(dataset, files)("train")
        if handicap:
            found = Examples(Slowed(found.inputs, SLOWED), found.targets)  # type: ignore[arg-type]
        prepare = ImagePreparation(3, None, MEAN, STD)
        batches = Batches(HostSource(found), BATCH, 0, prepare, CONTEXT)
        order = list(batches.rows(0))

        def epoch() -> float:
            epochs = (batches.epoch(n) for n in range(EPOCHS))
            return images_per_second(EPOCHS * COUNT, itertools.chain.from_iterable(epochs))

        def reading() -> float:
            read = gathered([found.inputs], EPOCHS * order, 0)
            return images_per_second(EPOCHS * COUNT, ((inputs, inputs) for (inputs,) in read))

        whole = np.load(files["train.inputs.npy"], mmap_mode="r")
        into = np.empty((BATCH, *SHAPE), np.uint8)

        def memmap() -> float:
            def copied() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
                for rows in EPOCHS * order:
                    np.take(whole, rows, axis=0, out=into, mode="clip")
                    yield torch.from_numpy(into), torch.from_numpy(into)

            return images_per_second(EPOCHS * COUNT, copied())

        def start() -> float:
            """Milliseconds until a second cell has its data."""
            began = time.perf_counter()
            dataset, node = folder(root, "disk")
            load = reader(dataset, kept(node))
            (train, _), test = train_and_val(dataset, 0, load), load("test")
            train.inputs[order[0][:1]], test.inputs[order[0][:1] * 0]
            time.sleep(SLOWED * handicap)
            return 1000 * (time.perf_counter() - began)

        pipeline = Compose([Resize(SHAPE[1:]), ToTensor(), Normalize(MEAN, STD)])
        pictures = ImageFolder(str(root / "train"), pipeline)
        loaders = {
            workers: DataLoader(
                pictures, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
            )
            for workers in (0, 2)
        }
        yield {
            OURS: epoch,
            "0 workers": lambda: images_per_second(COUNT, iter(loaders[0])),
            "2 workers": lambda: images_per_second(COUNT, iter(loaders[2])),
            "disk": reading,
            "memmap": memmap,
            "start": start,
        }


@contextmanager
def packers(handicap: bool) -> Iterator[Turns]:
    with photos(PACKED) as root:
        dataset, _ = folder(root, None)
        files = dataset.load("train").inputs

        def packing(threads: int) -> Callable[[], float]:
            def turn() -> float:
                shutil.rmtree(f"{root}-cache", ignore_errors=True)
                began = time.perf_counter()
                filled(root, "disk", 1 if handicap else threads)
                time.sleep(LATER * handicap * (time.perf_counter() - began))
                return (PACKED + 10) / (time.perf_counter() - began)

            return turn

        def decoding() -> float:
            began = time.perf_counter()
            for first in range(0, PACKED, BATCH):
                files[np.arange(first, first + BATCH)]
            return PACKED / (time.perf_counter() - began)

        yield {OURS: packing(1), "two": packing(2), "decoding": decoding}


IMAGE_FOLDER = RIVAL.replace("+ PIL", "ImageFolder +")
CONDITIONS = (
    f"images ({DATA}) as PNG files of 480x360, decoded and resized to {SHAPE[2]}x{SHAPE[1]}"
)
BENCHES = [
    Bench(
        "cache",
        f"A turn takes {COUNT} {CONDITIONS}, once, shuffled, in batches of {BATCH}, to normalized "
        "float32 (first row), or only to memory as uint8, all from the page cache. The last row is "
        "the time until a second cell of a sweep has its first example. The handicap: "
        f"{1000 * SLOWED:g} ms more for each batch and start.",
        contestants,
        [
            Row("epoch from cache=disk", IMAGE_FOLDER, better, at_least(20)),
            Row("reading cache=disk", "memmap[rows]", ratio("disk", "memmap"), at_least(0.8)),
            Row("second cell's data", "its start", lambda of: of["start"], at_most(50), "ms"),
        ],
        pairs=5,
    ),
    Bench(
        "packing",
        f"A turn packs {PACKED} {CONDITIONS}, with everything that a first run with cache=disk "
        "does, fsync included; or decodes them in this process and keeps nothing. The handicap: "
        "twice the time for each turn, and one thread in place of two.",
        packers,
        [
            Row("packing, one thread", "decoding alone", ratio(OURS, "decoding"), at_least(0.9)),
            Row("packing, two threads", "one", ratio("two", OURS), at_least(1.6)),
        ],
        pairs=5,
    ),
]  # fmt: skip
