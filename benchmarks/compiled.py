"""Speed of a training step with torch.compile, after compilation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.measure import OURS, Bench, Row, Turns, ratio
from ninefold.model.convnet import ConvNet
from ninefold.train.kernels import Compiled

STEPS = 5


@contextmanager
def contestants(handicap: bool) -> Iterator[Turns]:
    torch.manual_seed(0)
    inputs = torch.randn(64, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    targets = torch.randint(0, 10, (64,))

    def turn(wrap: Callable[[nn.Module], nn.Module], slower: int = 1) -> Callable[[], float]:
        model = ConvNet(3, 10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        forward = wrap(model)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def steps() -> float:
            began = time.perf_counter()
            for _ in range(STEPS * slower):
                cross_entropy(forward(inputs), targets).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
            return (time.perf_counter() - began) / STEPS

        return steps

    yield {
        OURS: turn(lambda model: Compiled(model, "default"), slower=2 if handicap else 1),
        "not compiled": turn(lambda model: model),
    }


BENCHES = [
    Bench(
        name="compiled-convnet",
        conditions=(
            f"A turn is {STEPS} training steps of the convnet at 32 pixels, batch 64, fp32, "
            "channels_last, AdamW; compile=true before the first counted turn, on all threads."
        ),
        contestants=contestants,
        rows=[Row("step, convnet: compiled over not", "not compiled", ratio(OURS, "not compiled"))],
    )
]
