"""What the first steps of a run leave, to see whether cells compute the same thing."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.ops import StochasticDepth

from benchmarks import ours
from ninefold.answer.first_steps import summarize
from ninefold.answer.numerics import rows as compared
from ninefold.answer.study_facts import SAME
from ninefold.engine.loop import train
from ninefold.measure.numerics import MAX_ELEMENTS, Sample, without_dropout
from ninefold.report.data.runs import run_of
from ninefold.result import NUMERICS
from ninefold.train.training_run import TrainingRun
from tests.conftest import result

SMALL = (
    "dataset=synthetic", "dataset.shape=[3,8,8]", "dataset.train_count=320", "batch_size=16",
    "model.net.width=8", "threads=1", "checkpoint.every=null", "logger=quiet", "max_steps=2",
)  # fmt: skip
STEPS = 3


def kept(run: TrainingRun) -> dict[str, Any]:
    """What the run wrote when it warmed up."""
    with np.load(run.writer.checkpoints.folder.parent / NUMERICS, allow_pickle=False) as file:
        return dict(file)


# What a run keeps


@pytest.mark.parametrize("how", [(), ("accumulate=2",), ("amp=scaler", "ema=0.9")])
def test_what_is_kept_is_what_a_plain_loop_computes(how):
    with ours.training(*SMALL, f"numerics={STEPS}", *how) as run:
        model = copy.deepcopy(run.state.model)
        last: Any = run.state.model.get_submodule("classifier")
        run.state.model.classifier = nn.Sequential(nn.Dropout(), last)  # is not to be seen
        train(run)
        found = kept(run)
        batches = list(run.batches.epoch(0))[:STEPS]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, weight_decay=0.01, fused=True)
    model.train()
    precision = torch.autocast("cpu", torch.bfloat16, enabled="amp=scaler" in how)
    for number, (inputs, targets) in enumerate(batches):
        with precision:
            output = model(inputs)
        loss = F.cross_entropy(output.float(), targets)
        optimizer.zero_grad()
        loss.backward()
        before = flat(p.detach() for p in model.parameters())
        gradients = flat(p.grad for p in model.parameters())
        optimizer.step()
        updates = flat(p.detach() for p in model.parameters()) - before
        near: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6}
        np.testing.assert_allclose(found["loss"][number], loss.item(), **near)
        np.testing.assert_allclose(found["weights"][number], before, **near)
        np.testing.assert_allclose(found["gradients"][number], gradients, **near)
        # Adam's update has a size, and the sign of a gradient that is all but zero has none
        same = np.abs(found["updates"][number] - updates) < 1e-4
        assert same.mean() > 0.999
    assert found["loss"].dtype == np.float64
    assert {found[name].dtype.name for name in ("gradients", "updates", "weights")} == {"float32"}
    assert found["skipped"].tolist() == [False] * STEPS


def flat(tensors: Any) -> Any:
    return torch.cat([tensor.flatten() for tensor in tensors]).numpy()


def test_a_run_is_bitwise_the_same_whatever_it_measures_first():
    found = []
    for more in ((), (f"numerics={STEPS}", "clock.warmup=0")):
        with ours.training(*SMALL, *more) as run:
            train(run)
            found.append(list(run.state.model.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_that_the_scaler_skips_is_taken_again_at_a_lower_scale(fused):
    found = []
    for scale in (1e9, 1.0):
        how = ("amp=scaler", "amp.dtype=float16", f"optimizer.fused={fused}", "scheduler.warmup=9")
        with ours.training(*SMALL, "numerics=2", *how, f"amp.init_scale={scale}") as run:
            train(run)
            found.append(kept(run))
    skipping, other = found
    assert skipping["skipped"].tolist() == [True, False]
    assert other["skipped"].tolist() == [False, False]
    np.testing.assert_allclose(skipping["gradients"][0], other["gradients"][0], atol=1e-3)
    assert skipping["updates"].any(axis=1).all()
    lengths = [np.linalg.norm(each["updates"], axis=1) for each in found]
    np.testing.assert_allclose(*lengths, rtol=0.1)  # the repeated step has the rate of the first


def test_a_large_model_is_sampled_at_even_distances():
    model = nn.Sequential(nn.Linear(1000, 500), nn.Linear(500, 10))
    sample = Sample(model)
    total = 1000 * 500 + 500 + 500 * 10 + 10
    numbers = torch.arange(total).split([p.numel() for p in model.parameters()])
    tensors = [n.float().view(p.shape) for n, p in zip(numbers, model.parameters(), strict=True)]
    found = sample.of(tensors)
    assert found.shape == (MAX_ELEMENTS,)
    assert set(np.diff(found)) == {1.0, 2.0}
    assert found[-1] > total - 3


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout1d(0.5), StochasticDepth(0.5, "row"), nn.LSTM(8, 8, num_layers=2, dropout=0.5),
        nn.TransformerEncoderLayer(8, 2, 8, dropout=0.5),
    ],
)  # fmt: skip
def test_no_layer_of_a_model_is_left_to_chance(layer):
    inputs = torch.randn(4, 5, 8)

    def outputs() -> list[Any]:
        found = [layer(inputs) for _ in range(8)]
        return [each[0] if isinstance(each, tuple) else each for each in found]

    with without_dropout(layer):
        assert all(each.equal(outputs()[0]) for each in outputs())
    assert not all(each.equal(outputs()[0]) for each in outputs())


# On real processes


def test_two_processes_compute_what_one_does_and_say_so(shell):
    shell.train(
        *SMALL, "parallel=ddp", "parallel.processes=2", "numerics=2", "hydra.run.dir=sweep/ddp",
        code=0,
    )  # fmt: skip
    folder = shell.folder / "sweep"
    found = result(folder / "ddp")
    row = {key: str(found[key]) for key in ("status", "parallel", "amp", "dataset", "model",
                                            "dtype", "seed", "replicas", "batch_size")}  # fmt: skip
    ddp = run_of(row | {"folder": "ddp", "no_op": "false"})
    none = run_of(row | {"folder": "none", "parallel": "none", "replicas": "1", "no_op": "false"})
    with ours.training(*SMALL, "numerics=2") as run:
        train(run)
        (folder / "none").mkdir()
        np.savez(folder / "none" / NUMERICS, **kept(run))
    runs = [none, ddp]
    rows = compared(folder, runs)
    assert [row.folder for row in rows] == ["none", "none", "ddp", "ddp"]
    assert all(row.cosine == pytest.approx(1, abs=1e-5) for row in rows)
    summary = summarize(rows, runs)
    assert {row.verdict for row in summary.rows} == {SAME}
