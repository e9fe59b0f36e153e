"""Whether cells compute the same thing: what their first steps leave, and how it is judged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.ops import StochasticDepth

from benchmarks import ours
from ninefold.measure.numerics import MOST, Sample, without_dropout
from ninefold.report.data.runs import Run, run_of
from ninefold.report.stats import numerics
from ninefold.report.stats.numerics import OTHER, SAME, WITHIN
from ninefold.result import NUMERICS
from ninefold.train.loop import train
from ninefold.train.training import Training
from tests.conftest import Shell, result

SMALL = (
    "dataset=synthetic", "dataset.shape=[3,8,8]", "dataset.train_count=320", "batch_size=16",
    "model.net.width=8", "threads=1", "checkpoint.every=null", "logger=quiet", "max_steps=2",
)  # fmt: skip
STEPS = 3


def kept(run: Training) -> dict[str, Any]:
    """What the run wrote when it warmed up."""
    with np.load(run.writer.checkpoints.folder.parent / NUMERICS, allow_pickle=False) as file:
        return dict(file)


# What a run keeps


@pytest.mark.parametrize("how", [(), ("accumulate=2",), ("amp=scaler", "ema=0.9")])
def test_what_is_kept_is_what_a_plain_loop_computes(how: tuple[str, ...]) -> None:
    with ours.training(*SMALL, f"numerics={STEPS}", *how) as run:
        model = copy.deepcopy(run.state.model)
        last: Any = run.state.model.get_submodule("classifier")
        run.state.model.classifier = nn.Sequential(nn.Dropout(), last)  # is not to be seen
        train(run)
        found = kept(run)
        batches = list(run.batches.epoch(0, 0, lambda: None, lambda phase: None))[:STEPS]
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


def test_a_run_is_bitwise_the_same_whatever_it_measures_first() -> None:
    found = []
    for more in ((), (f"numerics={STEPS}", "clock.ceiling=2", "clock.warmup=0")):
        with ours.training(*SMALL, *more) as run:
            train(run)
            found.append(list(run.state.model.parameters()))
            assert (run.ceiling_images_per_second is not None) == bool(more)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_that_the_scaler_skips_is_taken_again_at_a_lower_scale(fused: bool) -> None:
    found = []
    for scale in (1e9, 1.0):
        how = ("amp=scaler", "amp.dtype=float16", f"optimizer.fused={fused}")
        with ours.training(*SMALL, "numerics=2", *how, f"amp.init_scale={scale}") as run:
            train(run)
            found.append(kept(run))
    skipping, other = found
    assert skipping["skipped"].tolist() == [True, False]
    assert other["skipped"].tolist() == [False, False]
    np.testing.assert_allclose(skipping["gradients"][0], other["gradients"][0], atol=1e-3)
    assert skipping["updates"].any(axis=1).all()


def test_a_large_model_is_sampled_at_even_distances() -> None:
    model = nn.Sequential(nn.Linear(1000, 500), nn.Linear(500, 10))
    sample = Sample(model)
    total = 1000 * 500 + 500 + 500 * 10 + 10
    places = [torch.arange(total).split([p.numel() for p in model.parameters()])]
    (numbers,) = places
    tensors = [n.float().view(p.shape) for n, p in zip(numbers, model.parameters(), strict=True)]
    found = sample.of(tensors)
    assert found.shape == (MOST,)
    assert set(np.diff(found)) == {1.0, 2.0}
    assert found[-1] > total - 3


def test_only_dropout_is_left_out_and_put_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(), nn.Dropout2d().eval())
    with without_dropout(model):
        assert [layer.training for layer in model] == [True, True, False, False]
    assert [layer.training for layer in model] == [True, True, True, False]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout1d(0.5), StochasticDepth(0.5, "row"), nn.LSTM(8, 8, num_layers=2, dropout=0.5),
        nn.TransformerEncoderLayer(8, 2, 8, dropout=0.5),
    ],
)  # fmt: skip
def test_no_layer_of_a_model_is_left_to_chance(layer: nn.Module) -> None:
    inputs = torch.randn(4, 5, 8)

    def outputs() -> list[Any]:
        found = [layer(inputs) for _ in range(8)]
        return [each[0] if isinstance(each, tuple) else each for each in found]

    with without_dropout(layer):
        assert all(each.equal(outputs()[0]) for each in outputs())
    assert not all(each.equal(outputs()[0]) for each in outputs())


# How it is judged

RUN = Run("none", "ok", parallel="none", amp="fp32", seed=0, dtype="float32", replicas=1)
DDP = replace(RUN, folder="ddp", parallel="ddp", replicas=2)
CAST = replace(RUN, folder="cast", amp="autocast", dtype="float16")
Arrays = dict[str, Any]


def arrays(n: int = 1000) -> Arrays:
    draw = np.random.default_rng(0)
    return {
        "loss": np.array([2.4, 2.3]),
        "gradients": draw.normal(size=(2, n)).astype(np.float32),
        "updates": draw.normal(size=(2, n)).astype(np.float32) / 1000,
        "weights": draw.normal(size=(2, n)).astype(np.float32),
        "skipped": np.array([False, False]),
        "batch_norm": np.array(False),
    }


def write(folder: Path, run: Run, content: Arrays) -> None:
    (folder / run.folder).mkdir()
    np.savez(folder / run.folder / NUMERICS, **content)


def judged(folder: Path, run: Run, content: Arrays) -> dict[str, Any]:
    """The entry of `run`, which has kept `content`, beside a none-fp32 that kept `arrays`."""
    write(folder, RUN, arrays())
    write(folder, run, content)
    rows = numerics.rows(folder, [RUN, run])
    numerics.write_csv(folder / "numerics.csv", rows)
    assert numerics.read_csv(folder / "numerics.csv") == rows
    found = numerics.summarize(rows, [RUN, run])
    assert found is not None
    assert found["steps"] == 2
    reference, entry = found["rows"]
    assert (reference["cell"], reference["verdict"]) == ("none-fp32", SAME)
    assert entry["cell"] == run.cell
    assert isinstance(entry, dict)
    return entry


def other_examples(content: Arrays) -> None:
    content["loss"] *= 1.01
    content["gradients"] = content["gradients"][:, ::-1]


def batch_norm(content: Arrays) -> None:
    other_examples(content)
    content["batch_norm"] = np.array(True)


def other_rate(content: Arrays) -> None:
    content["updates"] *= 2


def summed(content: Arrays) -> None:
    content["gradients"] *= 2


def other_weights(content: Arrays) -> None:
    content["weights"] = content["weights"][:, ::-1]


def underflown(content: Arrays) -> None:
    small = np.abs(content["gradients"]) < 0.1
    content["gradients"][small] = 0


def rounded(content: Arrays) -> None:
    content["gradients"] = content["gradients"].astype(np.float16).astype(np.float32)
    content["loss"] *= 1.001


def rounded_less(content: Arrays) -> None:
    content["gradients"] *= 1 + 1e-6
    content["loss"] += 1e-6


def nothing(content: Arrays) -> None:
    pass


def half_infinite(content: Arrays) -> None:
    content["gradients"][0, :600] = np.inf


@pytest.mark.parametrize(
    ("run", "change", "verdict", "sentence"),
    [
        (DDP, nothing, SAME, "no more than rounding"),
        (DDP, rounded_less, SAME, "no more than rounding"),
        (DDP, other_examples, OTHER, "sees other examples, or computes another function"),
        (DDP, batch_norm, OTHER, "each replica's own part of a batch, of which there are 2"),
        (replace(DDP, replicas=1), batch_norm, OTHER, "sees other examples"),
        (DDP, other_rate, OTHER, "its update 2.0 times as large: another learning rate"),
        (DDP, summed, OTHER, "is 2.0 times as large: a sum for a mean"),
        (DDP, other_weights, OTHER, "other weights"),
        (DDP, rounded, OTHER, "the loss is averaged in another way"),
        (DDP, half_infinite, OTHER, "zero or not finite"),
        (CAST, rounded, WITHIN, "what float16 rounds away"),
        (CAST, rounded_less, SAME, "no more than rounding"),
        (CAST, underflown, OTHER, r"% of its gradient is zero where none-fp32's is not"),
        (CAST, other_rate, OTHER, "its update 2.0 times as large"),
    ],
)
def test_each_difference_is_told_from_the_others(
    run: Run, change: Callable[[Arrays], None], verdict: str, sentence: str, tmp_path: Path
) -> None:
    content = arrays()
    change(content)
    entry = judged(tmp_path, run, content)
    assert entry["verdict"] == verdict
    assert sentence in entry["sentence"]


@pytest.mark.parametrize(
    ("replicas", "size", "by_design"), [(2, 1, True), (1, 1, False), (2, 2, False)]
)
def test_batch_norm_of_parts_is_by_design_unless_something_else_is_wrong(
    replicas: int, size: float, by_design: bool, tmp_path: Path
) -> None:
    content = arrays()
    batch_norm(content)
    content["updates"] *= size
    assert judged(tmp_path, replace(DDP, replicas=replicas), content)["by_design"] is by_design


def test_a_cell_is_as_wrong_as_the_worst_of_its_runs(tmp_path: Path) -> None:
    runs = [replace(run, folder=f"{run.folder}{seed}", seed=seed)
            for seed in (0, 1) for run in (RUN, DDP)]  # fmt: skip
    for run in runs:
        content = arrays()
        if run.folder == "ddp1":
            other_rate(content)
        write(tmp_path, run, content)
    found = numerics.summarize(numerics.rows(tmp_path, runs), runs)
    assert found is not None
    entry = found["rows"][1]
    assert (entry["cell"], entry["seeds"], entry["verdict"]) == ("ddp-fp32", 2, OTHER)
    assert entry["update_ratio"] == pytest.approx(2)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2000])


def pickled(path: Path) -> None:
    np.savez(path, **{**arrays(), "loss": np.array([object(), None])})


def of_another_model(path: Path) -> None:
    np.savez(path, **arrays(n=7))


def ragged(path: Path) -> None:
    content = arrays()
    np.savez(path, **{**content, "weights": content["weights"][:1]})


def of_another_type(path: Path) -> None:
    content = arrays()
    np.savez(path, **{**content, "gradients": content["gradients"].astype(np.float64)})


def no_array(path: Path) -> None:
    path.write_bytes(b"PK no zip")


@pytest.mark.parametrize(
    "damage", [cut, pickled, of_another_model, ragged, of_another_type, no_array]
)
def test_a_file_that_is_damaged_or_a_strangers_is_passed_over(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    for run in (RUN, DDP):
        write(tmp_path, run, arrays())
    damage(tmp_path / "ddp" / NUMERICS)
    assert {row["folder"] for row in numerics.rows(tmp_path, [RUN, DDP])} == {"none"}
    damage(tmp_path / "none" / NUMERICS)
    assert {row["folder"] for row in numerics.rows(tmp_path, [RUN])} <= {"none"}


def test_a_small_file_that_unpacks_to_a_large_one_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    content = {name: np.zeros((2, numerics.WIDEST + 1), np.float32)
               for name in ("gradients", "updates", "weights")}  # fmt: skip
    np.savez_compressed(tmp_path / "none" / NUMERICS, **{**arrays(), **content})
    assert numerics.rows(tmp_path, [RUN]) == []


def test_a_table_that_is_damaged_is_read_as_far_as_it_is_ours(tmp_path: Path) -> None:
    path = tmp_path / "numerics.csv"
    assert numerics.read_csv(path) == []
    write(tmp_path, RUN, arrays())
    numerics.write_csv(path, numerics.rows(tmp_path, [RUN]))
    whole = numerics.read_csv(path)
    assert len(whole) == 2
    with path.open("a") as file:
        file.write("none,x,2\nnone,3," + "[1]," * 9 + "\n")
        file.write("none,3," + ("1" + 400 * "0" + ",") * 9 + "\n")
    assert numerics.read_csv(path) == whole
    path.write_bytes(b"\xff\xfe\x00")
    assert numerics.read_csv(path) == []


# On real processes


def test_two_processes_compute_what_one_does_and_say_so(shell: Shell) -> None:
    done = shell.train(
        *SMALL, "parallel=ddp", "parallel.processes=2", "numerics=2", "hydra.run.dir=sweep/ddp"
    )
    assert done.returncode == 0, done.stderr
    folder = shell.folder / "sweep"
    found = result(folder / "ddp")
    row = {key: str(found[key]) for key in ("status", "parallel", "amp", "dataset", "model",
                                            "dtype", "seed", "replicas", "batch_size")}  # fmt: skip
    ddp = run_of(row | {"folder": "ddp"})
    none = run_of(row | {"folder": "none", "parallel": "none", "replicas": "1"})
    with ours.training(*SMALL, "numerics=2") as run:
        train(run)
        write(folder, none, kept(run))
    runs = [none, ddp]
    rows = numerics.rows(folder, runs)
    assert [row["folder"] for row in rows] == ["none", "none", "ddp", "ddp"]
    assert all(row["cosine"] == pytest.approx(1, abs=1e-5) for row in rows)
    summary = numerics.summarize(rows, runs)
    assert summary is not None
    assert {row["verdict"] for row in summary["rows"]} == {SAME}
    assert len(found["probe_seconds"]) == 2
