"""Training on CIFAR-10 end to end: the published blog post's pipeline and loop against ours."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import count, islice
from typing import Any

import torch
from torch import nn
from torchvision.models import alexnet

from benchmarks import ours
from benchmarks.apart import apart
from benchmarks.measure import OURS, Array, Bench, Figures, Row, Turns, at_least, ratio
from benchmarks.rivals import post
from ninefold.dataset.cifar10 import CIFAR10
from ninefold.engine.loop import train
from ninefold.model.convnet import ConvNet

CPU = torch.device("cpu")
COMMON = (  # pixels in 0..1 and nothing else, as published
    "dataset=cifar10",
    "dataset.flip=false",
    "dataset.crop=0",
    "dataset.mean=null",
    "dataset.std=null",
    "batch_size=64",
    "checkpoint.every=null",
)
PUBLISHED = ("model=alexnet", "model.net.num_classes=1000", "optimizer.lr=0.0001")
# Small, so that several seeds are affordable; pixels are resized, as for AlexNet.
LEARNING = ("model.input_size=48", "dataset.limit=4000", "epochs=2", "amp=autocast")
TESTED = 1000  # examples


def slices(
    steps: int, network: Callable[[], nn.Module], size: int | None, *overrides: str
) -> Callable[[bool], AbstractContextManager[Turns]]:
    """Contestants whose turn is the next `steps` steps: seconds per step. Ours is autocast."""
    common = (*COMMON, *overrides, "epochs=1000")

    @contextmanager
    def contestants(handicap: bool) -> Iterator[Turns]:
        slow = 2 / steps if handicap else 0.0
        with (
            apart(ours.turns, (*common, "amp=autocast"), steps, slow) as autocast,
            apart(ours.turns, (*common, "amp=fp32"), steps, slow) as fp32,
            apart(posts_turns, network, size, steps) as theirs,
        ):
            yield {OURS: autocast, "fp32": fp32, "post": theirs}

    return contestants


@contextmanager
def posts_turns(
    network: Callable[[], nn.Module], size: int | None, steps: int
) -> Iterator[Callable[[], float]]:
    """The published post's training, `steps` steps per turn: seconds per step."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    examples = CIFAR10(root="~/.cache/cifar10").load("train")
    batches = endless(post.loader(examples, 64, size))

    def turn() -> float:
        began = time.perf_counter()
        post.train(model, islice(batches, steps), optimizer, CPU)
        return (time.perf_counter() - began) / steps

    yield turn


def convnet() -> nn.Module:
    return ConvNet(channels=3, classes=10)


def endless(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


@contextmanager
def learning(handicap: bool) -> Iterator[Turns]:
    """Test accuracy in percent of a short training, with another seed in each round."""
    rate = 1e-6 if handicap else 1e-3

    @cache  # ours is bitwise repeatable: the control does not train again
    def measured(seed: int) -> tuple[float, float]:
        if seed < 0:
            return 0.0, 0.0  # the first round does not count
        with ours.training(*COMMON, *LEARNING, f"seed={seed}", test=TESTED) as run:
            model: nn.Module = copy.deepcopy(run.state.model)
            model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            run.state.optimizer.param_groups[0]["lr"] = rate
            accuracy = 100 * train(run).test.accuracy
            training, test = (
                post.loader(ours.examples_of(source), 64, run.prepare.size)
                for source in (run.batches.source, run.test)
            )
            for _ in range(2):
                post.train(model, training, optimizer, CPU)
            return accuracy, 100 * post.test(model, test, CPU)

    turns, rivals = count(-1), count(-1)  # ours has two turns in each round but the first
    yield {OURS: lambda: measured(next(turns) // 2)[0], "post": lambda: measured(next(rivals))[1]}


def points(figures: Figures) -> Array:
    """Ours minus theirs, seed by seed."""
    return figures[OURS] - figures["post"]


BENCHES = [
    Bench(
        name="epoch-alexnet",
        conditions=(
            "A turn is 3 steps of an epoch of the published protocol: AlexNet with 1,000 "
            "outputs, CIFAR-10 resized to 227 pixels, batch 64, AdamW at 1e-4. The post resizes "
            "with PIL and trains in fp32; ours has the defaults of train.py and says its "
            "precision."
        ),
        contestants=slices(3, alexnet, 227, *PUBLISHED),
        rows=[
            Row(
                "epoch of CIFAR-10 at 227, AlexNet, autocast",
                "the post's loop",
                ratio("post", OURS),
                at_least(2.6),
            ),
            Row("the same in fp32", "the post's loop", ratio("post", "fp32")),
        ],
    ),
    Bench(
        name="epoch-convnet",
        conditions=(
            "A turn is 60 steps of an epoch of CIFAR-10 at 32 pixels with the convnet, batch "
            "64. The post's pipeline and loop train in fp32; ours has the defaults and says its "
            "precision."
        ),
        contestants=slices(60, convnet, None),
        rows=[
            Row("epoch of CIFAR-10 at 32, convnet, fp32", "the post's loop", ratio("post", "fp32")),
            Row("the same, autocast", "the post's loop", ratio("post", OURS)),
        ],
    ),
    Bench(
        name="epoch-accuracy",
        conditions=(
            "A round is a seed: from the same weights ours (autocast) and the post's loop "
            "(fp32) train the convnet for 2 epochs on 4,000 images of CIFAR-10 resized to 48 "
            f"pixels, and are tested on {TESTED:,}. Ours is bitwise repeatable, so that the "
            "control says nothing here."
        ),
        contestants=learning,
        rows=[
            Row(
                "test accuracy, less the rival's", "the post's loop", points, at_least(-1), "points"
            ),
            Row("the rival's", "the post's loop", lambda figures: figures["post"], unit="%"),
        ],
    ),
]
