"""Segmentation: a step, its input from files and from memory, and an evaluation."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as VF

from benchmarks import ours
from benchmarks.inputs import CONTEXT, Slowed
from benchmarks.measure import OURS, Bench, Row, Turns, at_least, at_most, ratio
from benchmarks.rivals import raw
from benchmarks.step import FOREVER, adamw
from ninefold.dataset import Examples
from ninefold.dataset.loader import HostSource
from ninefold.dataset.masks import Masks
from ninefold.engine.batches import Batches, epoch_order
from ninefold.engine.evaluation import evaluate
from ninefold.engine.parallel.none import Single
from ninefold.engine.task import Objective
from ninefold.task.segmentation import Segmentation
from ninefold.train.kernels import keep_freed

SLOWED = 0.1  # seconds added to each of our steps or batches by the handicap
CLASSES, VOID, COUNT, BATCH, STEPS = 11, 11, 128, 16, 2
SIDES = (90, 120)  # of what is trained on
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
Pair = tuple[str, str]


def write(root: Path) -> Masks:
    """A set of COUNT images of 480x360 as JPEG with masks as PNG, smooth as photographs are."""
    random = np.random.default_rng(0)
    for split, count in (("train", COUNT), ("test", COUNT)):
        for part in (split, f"{split}annot"):
            (root / part).mkdir()
        for row in range(count):
            coarse = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
            image = Image.fromarray(coarse).resize((480, 360), Image.Resampling.BICUBIC)
            image.save(root / split / f"{row:04}.jpg", quality=90)
            numbers = random.integers(0, CLASSES + 1, (12, 16), dtype=np.uint8)
            mask = Image.fromarray(numbers).resize((480, 360), Image.Resampling.NEAREST)
            mask.save(root / f"{split}annot" / f"{row:04}.png")
    shape = (3, *SIDES)
    return Masks(str(root), classes=CLASSES, shape=shape, ignore=VOID, mean=MEAN, std=STD)


@contextmanager
def step(handicap: bool) -> Iterator[Turns]:
    """Seconds per step of a UNet, of masks in memory in both."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        options = (
            *FOREVER[:2], f"batch_size={BATCH}", "task=segmentation", "dataset=masks",
            f"dataset.root={folder}", f"dataset.classes={CLASSES}", f"dataset.ignore={VOID}",
            f"dataset.shape=[3,{SIDES[0]},{SIDES[1]}]", "dataset.flip=false", "dataset.mean=null",
            "dataset.std=null", "model=unet", "model.net.width=16",
        )  # fmt: skip
        with ours.training(*options, test=BATCH) as run:
            examples = in_memory(ours.examples_of(run.batches.source))
            run.batches.source = HostSource(examples)
            if handicap:
                ours.slow_down(run, SLOWED)
            model = type(run.state.model)(3, CLASSES, width=16)  # type: ignore[call-arg]
            layout = run.prepare.memory_format  # type: ignore[attr-defined]
            model = model.to(memory_format=layout)
            optimizer, loss = adamw(model), partial(raw.masked_loss, void=VOID)
            batches = epoch_order(0, 0, COUNT).reshape(-1, BATCH)[:STEPS]

            def plain() -> float:
                began = time.perf_counter()
                raw.train(model, optimizer, examples, batches, layout, loss)
                return (time.perf_counter() - began) / STEPS

            yield {OURS: lambda: ours.seconds_a_step(run, STEPS), "raw": plain}


def in_memory(examples: Examples) -> Examples:
    rows = np.arange(len(examples))
    return Examples(examples.inputs[rows], examples.targets[rows], examples.names)


class References(Dataset[tuple[Tensor, Tensor]]):
    """As torchvision's references for segmentation: PIL images, resized and flipped, to tensors."""

    def __init__(self, pairs: list[Pair]) -> None:
        self._pairs = pairs
        self._finish = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        image, mask = (Image.open(path) for path in self._pairs[row])
        image, mask = image.convert("RGB"), mask.copy()
        image = VF.resize(image, list(SIDES), antialias=True)
        mask = VF.resize(mask, list(SIDES), interpolation=v2.InterpolationMode.NEAREST)
        if torch.rand(1) < 0.5:
            image, mask = VF.horizontal_flip(image), VF.horizontal_flip(mask)
        finished: Tensor = self._finish(VF.pil_to_tensor(image))
        return finished, VF.pil_to_tensor(mask)[0].to(torch.int64)


@contextmanager
def inputs(handicap: bool) -> Iterator[Turns]:
    """Images per second, with masks, of batches ready for the network."""
    keep_freed()
    with tempfile.TemporaryDirectory() as folder:
        dataset = write(Path(folder))
        examples = dataset.load("train")
        prepare = dataset.preparation(channels=3, mean=MEAN, std=STD, flip=True)
        numbers = itertools.count()

        def turn(found: Examples, workers: int, epochs: int) -> Callable[[], float]:
            if handicap:
                epochs = 1
                found = Examples(Slowed(found.inputs, SLOWED), found.targets)  # type: ignore[arg-type]
            batches = Batches(HostSource(found, workers), BATCH, 0, prepare, CONTEXT)

            def rate() -> float:
                began = time.perf_counter()
                seen = 0
                for _ in range(epochs):
                    epoch = batches.epoch(next(numbers))
                    seen += sum(len(batch) for batch, _ in epoch)
                return seen / (time.perf_counter() - began)

            return rate

        pairs = list(zip(examples.inputs.paths, examples.targets.paths, strict=True))  # type: ignore[attr-defined]
        loader: DataLoader[Any] = DataLoader(
            References(pairs), BATCH, shuffle=True, num_workers=2, persistent_workers=True
        )

        def theirs() -> float:
            began = time.perf_counter()
            seen = sum(len(batch) for batch, _ in loader)
            return seen / (time.perf_counter() - began)

        yield {
            OURS: turn(examples, 2, 2),
            "memory": turn(in_memory(examples), 0, 8),
            "torchvision": theirs,
        }


@contextmanager
def evaluation(handicap: bool) -> Iterator[Turns]:
    """Seconds for the confusion of COUNT images, from logits that are there."""
    torch.manual_seed(0)
    logits = torch.randn(BATCH, CLASSES, 180, 240)
    random = np.random.default_rng(0)
    masks = random.integers(0, CLASSES + 1, (COUNT, 180, 240), dtype=np.uint8)
    examples = Examples(np.zeros((COUNT, 1, 1, 1), np.uint8), masks)
    task = Segmentation(CLASSES, VOID)
    if handicap:
        task = ours.Slowed(task, SLOWED / 2)  # type: ignore[assignment]

    class Given(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return logits

    class Passing:
        def __call__(self, inputs: Tensor, targets: Tensor, draw: Any) -> tuple[Tensor, Tensor]:
            return inputs, targets

    objective = Objective(Given(), task)

    def own() -> float:
        began = time.perf_counter()
        evaluate(
            objective, HostSource(examples), task=task, batch_size=BATCH,
            prepare=Passing(), parallel=Single(), context=CONTEXT,  # type: ignore[arg-type]
        )  # fmt: skip
        return time.perf_counter() - began

    @torch.no_grad()
    def plain() -> float:
        began = time.perf_counter()
        counts = torch.zeros(CLASSES * CLASSES, dtype=torch.int64)
        loss = 0.0
        for first in range(0, COUNT, BATCH):
            target = torch.from_numpy(masks[first : first + BATCH])
            loss += raw.masked_loss(logits, target, VOID).item()
            predicted, truth = logits.argmax(1).flatten(), target.flatten().long()
            valid = truth != VOID
            counts += torch.bincount(
                truth[valid] * CLASSES + predicted[valid], minlength=CLASSES * CLASSES
            )
        return time.perf_counter() - began

    yield {OURS: own, "plain": plain}


FILES = f"{COUNT} JPEG images of 480x360 with masks as PNG, made up, "
BENCHES = [
    Bench(
        "masks-step",
        f"A turn is {STEPS} steps of a UNet of width 16 at {SIDES[0]}x{SIDES[1]}, batch {BATCH}, "
        "fp32, fused AdamW, images and masks as bytes in memory in both. Ours with its default "
        f"logging and timing. The handicap: {SLOWED * 1000:g} ms more for each step.",
        step,
        [Row("step of a UNet with masks", "raw loop", ratio(OURS, "raw"), at_most(1.01))],
    ),
    Bench(
        "masks-input",
        f"A turn takes {FILES}to normalized float32 of {SIDES[0]}x{SIDES[1]}, flipped at random, "
        f"in batches of {BATCH}: ours from the files with two loader threads, twice, and from "
        "memory, as a cache has them, eight times; torchvision's reference pipeline (PIL resize, "
        "PILToTensor, float, int64 masks) in two persistent workers, once. Figures are images a "
        f"second. The handicap: {SLOWED * 1000:g} ms more for each batch, in one epoch a turn.",
        inputs,
        [
            Row("batches with masks, from files", "torchvision's pipeline, 2 workers",
                ratio(OURS, "torchvision"), at_least(3)),
            Row("batches with masks, from memory", "torchvision's pipeline, 2 workers",
                ratio("memory", "torchvision"), at_least(20)),
        ],
    ),
    Bench(
        "masks-evaluation",
        f"A turn evaluates {COUNT} masks of 180x240 with logits that are there, batch {BATCH}: "
        "loss and confusion. The plain loop is the same cross entropy, argmax, the valid pixels "
        f"and bincount. The handicap: {SLOWED * 500:g} ms more for each batch.",
        evaluation,
        [Row("evaluation of masks", "argmax and bincount", ratio(OURS, "plain"), at_most(1.1))],
    ),
]  # fmt: skip
