"""All nine cells train on the same thing, and their checkpoints are interchangeable."""

from __future__ import annotations

import itertools
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

from ninefold.checkpoint.store import read
from ninefold.checkpoint.weights import load_weights, weights
from ninefold.engine.parallel import Place
from ninefold.engine.parallel.dp import DP
from ninefold.model.convnet import ConvNet
from tests.conftest import Shell, metrics, result

PARALLEL = ("none", "dp", "ddp")
AMP = ("fp32", "autocast", "scaler")
STEPS = 50
# Largest difference of a training loss from parallel=none's, over the first 50 steps. bfloat16
# keeps 8 bits: two processes that sum in another order differ by that much after a few updates.
TOLERANCE = {"fp32": 1e-5, "autocast": 3e-2, "scaler": 3e-2}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """The nine cells, ddp with two real processes, the learning rate falling every epoch."""
    folder = tmp_path_factory.mktemp("nine")
    shell = Shell(folder)
    done = shell.train(
        "-m", f"parallel={','.join(PARALLEL)}", f"amp={','.join(AMP)}", "parallel.processes=auto",
        "launch.cpu_processes=2", "batch_size=32", "dataset.limit=704", f"max_steps={STEPS}",
        "model.net.width=8", "log_every=1", "threads=2", "study.ask=[accuracy]",
        "scheduler.patience=0", "+scheduler.threshold=0.99", f"hydra.sweep.dir={folder / 'sweep'}",
        "clock.warmup=0", "logger=quiet",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not shell.survivors()
    runs = [path.parent for path in (folder / "sweep").glob("*/result.json")]
    found = {(result(run)["parallel"], result(run)["amp"]): run for run in runs}
    assert len(runs) == len(found) == 9
    return found


@pytest.mark.parametrize("amp", AMP)
@pytest.mark.parametrize("parallel", ["dp", "ddp"])
def test_the_same_global_batches_give_the_same_losses_under_every_strategy(
    cells: dict[tuple[str, str], Path], parallel: str, amp: str
) -> None:
    reference = metrics(cells["none", amp], "loss")
    losses = metrics(cells[parallel, amp], "loss")
    assert len(losses) == len(reference) == STEPS
    assert losses == pytest.approx(reference, abs=TOLERANCE[amp], rel=0)


def test_every_cell_sees_the_same_learning_rates_from_plateau(
    cells: dict[tuple[str, str], Path],
) -> None:
    traces = {tuple(metrics(run, "lr")) for run in cells.values()}
    assert len(traces) == 1
    first, *_, last = traces.pop()
    assert last == pytest.approx(first / 10)  # it fell after the second epoch


def test_a_checkpoint_of_any_cell_loads_whole_into_the_model_of_any_other(
    cells: dict[tuple[str, str], Path],
) -> None:
    saved = {cell: read(run / "checkpoints" / "last.pt") for cell, run in cells.items()}
    keys = {tuple(weights(content)) for content in saved.values()}
    assert len(keys) == 1
    assert keys.pop() == tuple(ConvNet(1, 10, 8).state_dict())
    for content in saved.values():
        assert load_weights(ConvNet(1, 10, 8), weights(content)).complete
    for one, other in itertools.pairwise(saved.values()):
        assert one.keys() == other.keys()
        assert one["optimizer"]["state"].keys() == other["optimizer"]["state"].keys()
        assert one["optimizer"]["state"]


def test_every_cell_says_what_was_in_force(cells: dict[tuple[str, str], Path]) -> None:
    for (parallel, amp), run in cells.items():
        found = result(run)
        assert found["status"] == "ok"
        assert found["processes"] == (2 if parallel == "ddp" else 1)
        assert found["dtype"] == ("float32" if amp == "fp32" else "bfloat16")
        assert found["grad_scaler"] is (amp == "scaler")
        assert any("no-op" in note for note in found["notes"]) == (parallel == "dp")
        assert len(found["peak_memory_bytes"]) == len(found["devices"]) == found["processes"]
        assert found["test_count"] == 360
        assert found["steps"] == STEPS
        assert found["epochs"] == pytest.approx(STEPS / 22)


def test_every_cell_has_the_same_number_of_cpu_threads(
    cells: dict[tuple[str, str], Path],
) -> None:
    totals = {result(run)["threads"] for run in cells.values()}
    assert len(totals) == 1


@pytest.mark.parametrize("gpus", [1, 4])
def test_dp_on_a_cpu_leaves_the_gpus_of_the_machine_alone(
    monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    torchs = import_module("torch.nn.parallel.data_parallel")
    monkeypatch.setattr(torchs, "_get_available_device_type", lambda: "cuda")
    monkeypatch.setattr(torchs, "_get_all_device_indices", lambda: list(range(gpus)))
    monkeypatch.setattr(torchs, "_get_device_index", lambda device, *how: device)
    monkeypatch.setattr(torchs, "_check_balance", lambda devices: None)
    model, inputs = nn.Linear(3, 2), torch.ones(4, 3)
    wrapped = DP(device="cpu").wrap(model, Place(0, 1, torch.device("cpu")))
    assert isinstance(wrapped, nn.DataParallel)
    assert torch.equal(wrapped(inputs), model(inputs))
    assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]


def test_dp_on_a_cpu_is_bitwise_the_run_without_parallelism(
    cells: dict[tuple[str, str], Path],
) -> None:
    for amp in AMP:
        none = weights(read(cells["none", amp] / "checkpoints" / "last.pt"))
        dp = weights(read(cells["dp", amp] / "checkpoints" / "last.pt"))
        assert all(torch.equal(none[key], dp[key]) for key in none)
