"""Clipping: bitwise what torch's functions do in the plainest loop, in every precision."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from benchmarks import ours
from ninefold.engine.loop import train
from tests.conftest import metrics
from tests.train.test_schedule import SMALL

PRECISION = {
    "fp32": ["amp=fp32"],
    "autocast": ["amp=autocast"],
    "fp16": ["amp=scaler", "amp.dtype=float16", "amp.init_scale=1024"],
}
LIMIT = 0.05


def norm(parameters: Any) -> float:
    return float(clip_grad_norm_(parameters, LIMIT))


def value(parameters: Any) -> float:
    largest = max(float(each.grad.abs().max()) for each in parameters)
    clip_grad_value_(parameters, LIMIT)
    return largest


def raw(run: Any, clip: Callable[[Any], float], parts: int) -> tuple[nn.Module, list[float]]:
    """The weights after training as PyTorch's documentation does, and the norms before clipping."""
    model = copy.deepcopy(run.forward)
    model.train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=0.001, weight_decay=0.01, fused=True)
    scaler = torch.amp.GradScaler(
        "cpu", enabled=run.state.scaler.is_enabled(), init_scale=run.state.scaler.get_scale()
    )
    norms = []
    for epoch in range(2):
        for inputs, targets in run.batches.epoch(epoch):
            for some, their in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
                loss = model(some, their)
                scaler.scale(loss if parts == 1 else loss * (1 / parts)).backward()
            scaler.unscale_(optimizer)
            norms.append(clip(parameters))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return model, norms


def trained(*overrides: str, clip: Callable[[Any], float] = norm, parts: int = 1) -> bool:
    """Whether our weights and norms are bitwise those of the raw loop."""
    with ours.training(*SMALL, "epochs=2", *overrides) as run:
        expected, norms = raw(run, clip, parts)
        train(run)
        logged = metrics(run.writer.checkpoints.folder.parent, "grad_norm")
        pairs = zip(run.forward.parameters(), expected.parameters(), strict=True)
        same = all(torch.equal(one, other) for one, other in pairs)
    if clip is norm:
        same = same and logged == norms
    assert max(norms) > LIMIT  # else nothing was clipped
    return same


@pytest.mark.parametrize("precision", PRECISION)
@pytest.mark.parametrize("parts", [1, 4])
def test_clipping_by_norm_is_bitwise_the_raw_loops(precision, parts):
    how = [*PRECISION[precision], f"accumulate={parts}", f"clip_grad_norm={LIMIT}"]
    assert trained(*how, parts=parts)


def test_clipping_by_value_is_bitwise_the_raw_loops():
    assert trained(*PRECISION["fp16"], f"clip_grad_value={LIMIT}", clip=value)
