"""Images per second from bytes in memory to the model's input, and a step's wait for them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.models import alexnet
from torchvision.transforms import Compose, Normalize, Resize, ToTensor

from benchmarks.measure import OURS, Array, Bench, Figures, Row, Turns, at_least, at_most
from benchmarks.rivals.pictures import Pictures
from ninefold.dataset import Examples
from ninefold.dataset.cifar10 import CIFAR10
from ninefold.dataset.loader import HostSource
from ninefold.dataset.preparation import ImagePreparation
from ninefold.dataset.synthetic import Synthetic
from ninefold.engine.batches import Batches
from ninefold.engine.clock import Clock
from ninefold.engine.parallel import RankContext
from ninefold.errors import DataError
from ninefold.model.convnet import ConvNet
from ninefold.model.resnet18 import resnet18
from ninefold.train.kernels import keep_freed

BATCH = 64
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CONTEXT = RankContext(0, 1, torch.device("cpu"))
SLOWED = 0.01  # seconds added to each of our batches by the handicap

cifar = CIFAR10("~/.cache/cifar10")
try:
    cifar.prepare()
    DATA = "CIFAR-10"
except DataError:
    DATA = "random bytes in the shape of CIFAR-10, which is not in ~/.cache/cifar10"


def examples(count: int) -> Examples:
    dataset = cifar if DATA == "CIFAR-10" else Synthetic(train_count=count)
    return dataset.load("train").first(count)


@dataclass
class Slowed:
    """An array that takes `seconds` longer to read."""

    array: Any
    seconds: float = SLOWED

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        time.sleep(self.seconds)
        values: npt.NDArray[np.uint8] = self.array[rows]
        return values


def ours(count: int, handicap: bool, prepare: ImagePreparation) -> Batches:
    found = examples(count)
    if handicap:
        found = Examples(Slowed(found.inputs), found.targets)  # type: ignore[arg-type]
    return Batches(HostSource(found), BATCH, 0, prepare, CONTEXT)


def images_per_second(count: int, batches: Iterator[tuple[Tensor, Tensor]]) -> float:
    """Images per second over `count` images."""
    began = time.perf_counter()
    seen = sum(len(inputs) for inputs, _ in batches)
    took = time.perf_counter() - began
    assert seen == count, f"{seen} of {count} images came"
    return seen / took


def pipelines(
    side: int, count: int, layout: torch.memory_format
) -> Callable[[bool], AbstractContextManager[Turns]]:
    """Contestants whose turn is an epoch of `count` images, a multiple of the batch size."""

    @contextmanager
    def contestants(handicap: bool) -> Iterator[Turns]:
        keep_freed()
        prepare = ImagePreparation(3, side, MEAN, STD, memory_format=layout)
        batches = ours(count, handicap, prepare)
        numbers = itertools.count()

        def own() -> float:
            epoch = batches.epoch(next(numbers))
            return images_per_second(count, epoch)

        resize = [] if side == 32 else [Resize((side, side))]
        pictures = Pictures(examples(count), Compose([*resize, ToTensor(), Normalize(MEAN, STD)]))
        loaders = {
            workers: DataLoader(
                pictures, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
            )
            for workers in (0, 2)
        }
        yield {
            OURS: own,
            "0 workers": lambda: images_per_second(count, iter(loaders[0])),
            "2 workers": lambda: images_per_second(count, iter(loaders[2])),
        }

    return contestants


def over_the_better(figures: Figures) -> Array:
    return figures[OURS] / np.maximum(figures["0 workers"], figures["2 workers"])


def waiting(
    net: nn.Module, size: int | None, layout: torch.memory_format, steps: int, handicap: bool
) -> Callable[[], float]:
    """The share of the time of `steps` training steps that is spent on getting their batches."""
    net = net.to(memory_format=layout)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    prepare = ImagePreparation(3, size, MEAN, STD, flip=True, crop=4, memory_format=layout)
    batches = ours(BATCH * steps, handicap, prepare)
    numbers = itertools.count()

    def turn() -> float:
        clock = Clock(CONTEXT.device, sample=1)
        epoch = batches.epoch(next(numbers), 0, clock.begin_step, clock.mark)
        for inputs, targets in epoch:
            with torch.autocast("cpu", torch.bfloat16):
                output = net(inputs)
            loss = F.cross_entropy(output.float(), targets)
            clock.mark("forward")
            loss.backward()
            clock.mark("backward")
            optimizer.step()
            optimizer.zero_grad()
            clock.mark("optimizer")
            clock.end_step()
        phases = clock.phase_seconds(steps)
        return (phases["data"] + phases["transfer"]) / sum(phases.values())

    return turn


@contextmanager
def steps(handicap: bool) -> Iterator[Turns]:
    keep_freed()
    last = torch.channels_last
    yield {
        OURS: waiting(alexnet(num_classes=10), 227, last, 3, handicap),
        "resnet18": waiting(resnet18(10, "small"), None, last, 8, handicap),
        "convnet": waiting(ConvNet(3, 10), None, last, 40, handicap),
    }


def share(name: str) -> Callable[[Figures], Array]:
    return lambda figures: figures[name]


RIVAL = "torchvision + PIL DataLoader, better of 0 and 2 workers"
PIPELINE = (
    f"A turn takes {{count:,}} images ({DATA}, in memory) once, shuffled, in batches of {BATCH} to "
    "normalized float32{size}, on all CPU threads. The DataLoader makes a PIL image of each, then "
    "{resize}ToTensor and Normalize; its workers persist. Figures are images a second. The "
    f"handicap: {SLOWED * 1000:g} ms more for each batch."
)
BENCHES = [
    Bench(
        "inputs-32",
        PIPELINE.format(count=25_600, size=" of 32x32", resize=""),
        pipelines(32, 25_600, torch.contiguous_format),
        [Row("input path, 32x32", RIVAL, over_the_better, at_least(12))],
    ),
    Bench(
        "inputs-227",
        PIPELINE.format(count=1_280, size=" of 227x227, ours channels_last", resize="Resize, "),
        pipelines(227, 1_280, torch.channels_last),
        [Row("input path, 32x32 to 227x227", RIVAL, over_the_better, at_least(4))],
    ),
    Bench(
        "inputs-wait",
        f"A turn takes training steps of {BATCH} images ({DATA}, in memory; flipped, cropped and "
        "normalized), forward in bfloat16 autocast, fused AdamW, on all CPU threads: 3 of AlexNet "
        "at 227x227, 8 of ResNet-18 and 40 of the small ConvNet at 32x32. Its figure is the share "
        "of their time until the batch is there, by ninefold's own clock of phases. The handicap: "
        f"{SLOWED * 1000:g} ms more for each batch.",
        steps,
        [
            Row("waiting for input, AlexNet 227x227", "the step", share(OURS), at_most(0.01)),
            Row("waiting for input, ResNet-18 32x32", "the step", share("resnet18"), at_most(0.01)),
            Row("waiting for input, ConvNet 32x32", "the step", share("convnet"), at_most(0.01)),
        ],
    ),
]
