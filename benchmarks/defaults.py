"""Measurements behind the defaults in conf/: each compared with its alternatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch

from benchmarks import ours
from benchmarks.apart import apart
from benchmarks.measure import OURS, Bench, Row, Turns, ratio

COMMON = ("batch_size=64", "checkpoint.every=null", "dataset=synthetic", "epochs=100000")
CONVNET = ("model=convnet", "dataset.shape=[3,32,32]")
RESNET = ("model=resnet18", "dataset.shape=[3,32,32]", "dataset.train_count=640")
ALEXNET = ("model=alexnet", "dataset.shape=[3,227,227]", "dataset.train_count=640")
FIRST, LAST = "model.memory_format=contiguous_format", "model.memory_format=channels_last"
BF16 = "amp=bf16"


def variants(
    steps: int, model: tuple[str, ...], others: Mapping[str, tuple[str, ...]]
) -> Callable[[bool], AbstractContextManager[Turns]]:
    """Seconds per step of `model` with its defaults, and with the overrides of `others`."""

    @contextmanager
    def contestants(handicap: bool) -> Iterator[Turns]:
        with ExitStack() as stack:
            runs = {
                name: stack.enter_context(ours.training(*COMMON, *model, *overrides))
                for name, overrides in {OURS: (), **others}.items()
            }
            threads = {name: torch.get_num_threads() for name in runs}
            threads |= {"one thread": 1} if "one thread" in runs else {}
            if handicap:
                ours.slow_down(runs[OURS], 0.05)

            def turn(name: str) -> float:
                torch.set_num_threads(threads[name])
                return ours.seconds_a_step(runs[name], steps)

            yield {name: lambda name=name: turn(name) for name in runs}

    return contestants


WAITING = {OURS: {}, "passive": {"OMP_WAIT_POLICY": "passive"}, "2000": {"GOMP_SPINCOUNT": "2000"}}


@contextmanager
def waiting(handicap: bool) -> Iterator[Turns]:
    """Seconds per step of the convnet with different ways for threads to wait for each other."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                apart(ours.turns, (*COMMON, *CONVNET), 30, environment=variables)
            )
            for name, variables in WAITING.items()
        }


def layouts(default: str, other: str, model: str) -> list[Row]:
    return [
        Row(f"{model}, fp32: {default}", other, ratio(OURS, "other")),
        Row(f"{model}, bf16: {default}", other, ratio("bf16", "other, bf16")),
        Row(f"{model}: fp32", "bf16", ratio(OURS, "bf16")),
    ]


def layout_variants(other: str) -> dict[str, tuple[str, ...]]:
    return {"other": (other,), "bf16": (BF16,), "other, bf16": (other, BF16)}


CONDITIONS = (
    "A turn is {} steps of train.py's defaults, batch 64, with {}, and of the named variants."
)

BENCHES = [
    Bench(
        name="defaults-convnet",
        conditions=CONDITIONS.format(30, "the convnet at 32 pixels"),
        contestants=variants(
            30,
            CONVNET,
            {
                **layout_variants(FIRST),
                "one thread": ("threads=1",),
                "foreach": ("optimizer.fused=false", "+optimizer.foreach=true"),
                "loop": ("optimizer.fused=false", "+optimizer.foreach=false"),
            },
        ),
        rows=[
            *layouts("channels_last", "contiguous", "convnet"),
            Row("convnet: two threads", "one", ratio(OURS, "one thread")),
            Row("convnet: fused AdamW", "foreach", ratio(OURS, "foreach")),
            Row("convnet: fused AdamW", "neither", ratio(OURS, "loop")),
        ],
    ),
    Bench(
        name="defaults-resnet18",
        conditions=CONDITIONS.format(3, "ResNet-18 at 32 pixels"),
        contestants=variants(3, RESNET, {**layout_variants(FIRST), "one thread": ("threads=1",)}),
        rows=[
            *layouts("channels_last", "contiguous", "ResNet-18"),
            Row("ResNet-18: two threads", "one", ratio(OURS, "one thread")),
        ],
        pairs=8,
    ),
    Bench(
        name="defaults-alexnet",
        conditions=CONDITIONS.format(1, "AlexNet at 227 pixels"),
        contestants=variants(
            1,
            ALEXNET,
            {
                **layout_variants(FIRST),
                "loop": ("optimizer.fused=false",),
            },
        ),
        rows=[
            *layouts("channels_last", "contiguous", "AlexNet"),
            Row("AlexNet: fused AdamW", "not fused", ratio(OURS, "loop")),
        ],
        pairs=6,
    ),
    Bench(
        name="defaults-waiting",
        conditions=CONDITIONS.format(30, "the convnet in a separate process"),
        contestants=waiting,
        rows=[
            Row("threads wait as OpenMP has it", "OMP_WAIT_POLICY=passive", ratio(OURS, "passive")),
            Row("threads wait as OpenMP has it", "GOMP_SPINCOUNT=2000", ratio(OURS, "2000")),
        ],
    ),
]
