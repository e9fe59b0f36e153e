"""Training on CIFAR-10 end to end: the published post's pipeline and loop against ours."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from itertools import count, islice
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks import ours
from benchmarks.measure import OURS, Array, Bench, Figures, Row, Turns, at_least, ratio
from benchmarks.rivals import post
from ninefold.dataset import Examples
from ninefold.training import Training, train

CPU = torch.device("cpu")
COMMON = ("dataset=cifar10", "dataset.flip=false", "dataset.crop=0", "batch_size=64",
          "checkpoint.every=null")  # fmt: skip
PUBLISHED = (
    "model=alexnet", "model.net.num_classes=1000", "dataset.mean=null", "dataset.std=null",
    "optimizer.lr=0.0001",
)  # fmt: skip
# Small, so that several seeds can be had; pixels are resized, as they are for AlexNet.
LEARNING = ("model.input_size=48", "dataset.limit=8000", "epochs=2", "amp=autocast")
TESTED = 2000  # examples


class Post:
    """The published post's training of the network of `run`, from the weights that it has now."""

    def __init__(self, run: Training) -> None:
        self.model: nn.Module = copy.deepcopy(run.state.model)
        self.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        lr = run.state.optimizer.param_groups[0]["lr"]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self._run = run

    def batches(self, examples: Examples) -> DataLoader[Any]:
        prepare = self._run.prepare
        return post.loader(examples, self._run.batch_size, prepare.size, prepare.mean, prepare.std)

    def train(self, batches: Any) -> None:
        post.train(self.model, batches, self.optimizer, CPU)


def slices(steps: int, *overrides: str) -> Callable[[bool], AbstractContextManager[Turns]]:
    """Contestants whose turn is the next `steps` steps: seconds a step. Ours is autocast."""

    @contextmanager
    def contestants(handicap: bool) -> Iterator[Turns]:
        with ExitStack() as stack:
            run, fp32 = (
                stack.enter_context(ours.training(*COMMON, *overrides, f"amp={amp}", "epochs=1000"))
                for amp in ("autocast", "fp32")
            )
            theirs = Post(fp32)
            batches = endless(theirs.batches(fp32.batches._examples))
            if handicap:
                run.task = ours.Slowed(run.task, 1.0)

            def turn() -> float:
                began = time.perf_counter()
                theirs.train(islice(batches, steps))
                return (time.perf_counter() - began) / steps

            yield {
                OURS: lambda: ours.seconds_a_step(run, steps),
                "fp32": lambda: ours.seconds_a_step(fp32, steps),
                "post": turn,
            }

    return contestants


def endless(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


@contextmanager
def learning(handicap: bool) -> Iterator[Turns]:
    """Test accuracy of a short training with a seed of its own in each round, in percent."""
    rate = 1e-6 if handicap else 1e-3

    @cache  # ours is bitwise the same each time: the control need not take its time
    def measured(seed: int) -> tuple[float, float]:
        if seed < 0:
            return 0.0, 0.0  # the first round does not count
        with ours.training(*COMMON, *LEARNING, f"seed={seed}", test=TESTED) as run:
            theirs = Post(run)
            run.state.optimizer.param_groups[0]["lr"] = rate
            accuracy = 100 * train(run).accuracy
            batches = theirs.batches(run.batches._examples)
            for _ in range(2):
                theirs.train(batches)
            return accuracy, 100 * post.test(theirs.model, theirs.batches(run.test), CPU)

    turns, rivals = count(-1), count(-1)  # ours has two turns in each round but the first
    yield {OURS: lambda: measured((next(turns) + 1) // 2 - 1)[0],
           "post": lambda: measured(next(rivals))[1]}  # fmt: skip


def points(figures: Figures) -> Array:
    """Ours less theirs, seed by seed."""
    return figures[OURS] - figures["post"]


def speedups(model: str) -> list[Row]:
    return [
        Row(f"epoch of CIFAR-10, {model}, autocast", "the post's loop", ratio("post", OURS)),
        Row(f"epoch of CIFAR-10, {model}, fp32", "the post's loop", ratio("post", "fp32")),
    ]


BENCHES = [
    Bench(
        name="epoch-alexnet",
        conditions=(
            "A turn is 3 steps of an epoch of the published protocol: AlexNet with 1,000 "
            "outputs, CIFAR-10 resized to 227 pixels, batch 64, AdamW at 1e-4. The post resizes "
            "with PIL and trains in fp32; ours has the defaults of train.py and says its "
            "precision."
        ),
        contestants=slices(3, *PUBLISHED),
        rows=[
            Row("epoch of CIFAR-10 at 227, AlexNet, autocast", "the post's loop",
                ratio("post", OURS), at_least(2.6)),
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
        contestants=slices(60),
        rows=[
            Row("epoch of CIFAR-10 at 32, convnet, fp32", "the post's loop", ratio("post", "fp32")),
            Row("the same, autocast", "the post's loop", ratio("post", OURS)),
        ],
    ),
    Bench(
        name="epoch-accuracy",
        conditions=(
            "A round is a seed: from the same weights ours (autocast) and the post's loop "
            "(fp32) train the convnet for 2 epochs on 8,000 images of CIFAR-10 resized to 48 "
            f"pixels, and are tested on {TESTED:,}. Ours is bitwise repeatable, so that the "
            "control says nothing here."
        ),
        contestants=learning,
        rows=[
            Row("test accuracy, less the rival's", "the post's loop", points, at_least(-1),
                "points"),
            Row("the rival's", "the post's loop", lambda figures: figures["post"], unit="%"),
        ],
    ),
]  # fmt: skip
