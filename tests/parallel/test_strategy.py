"""A strategy from outside the package that replaces the model's parameters trains the same."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ninefold.checkpoint.store import read
from ninefold.checkpoint.weights import load_weights, weights
from ninefold.engine.parallel import Parallel, Place
from ninefold.engine.parallel.ddp import DDP
from ninefold.errors import ConfigError
from ninefold.model.convnet import ConvNet
from ninefold.train.build import make
from tests.conftest import ROOT, Shell, metrics, result

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Halves(Parallel):
    """Keeps each parameter as a vector, negated, as a stand-in for a sharded layout."""

    processes: int = 1
    max_processes: int = 1

    @contextmanager
    def join(self) -> Iterator[Place]:
        yield Place(0, 1, CPU, devices=(CPU, CPU))

    def wrap(self, model: nn.Module, place: Place) -> nn.Module:
        for module in list(model.modules()):
            for name, parameter in list(module.named_parameters(recurse=False)):
                shape, stride = parameter.shape, parameter.stride()
                setattr(module, name, nn.Parameter(-parameter.detach().clone()))
                nn.utils.parametrize.register_parametrization(module, name, Negated(), unsafe=True)
                assert getattr(module, name).shape == shape, stride
        return model

    def state(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, average: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        found = super().state(model, optimizer, average)
        return {
            "model": {plain(k): turned(k, v) for k, v in found["model"].items()},
            "optimizer": turn_momentum(found["optimizer"]),
            "average": {plain(k): turned(k, v) for k, v in average.items()},
        }

    def load(
        self,
        saved: Mapping[str, Any],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        average: Mapping[str, Tensor],
    ) -> None:
        own = {
            "model": {k: turned(k, saved["model"][plain(k)]) for k in model.state_dict()},
            "optimizer": turn_momentum(saved["optimizer"]),
            "average": {k: turned(k, saved["average"][plain(k)]) for k in average},
        }
        super().load(own, model, optimizer, average)


class Negated(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return -value


def plain(name: str) -> str:
    return name.replace("parametrizations.", "").removesuffix(".original")


def turned(name: str, value: Tensor) -> Tensor:
    return -value if name.endswith(".original") else value


def turn_momentum(state: Mapping[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(dict(state))
    for entry in found["state"].values():
        entry["exp_avg"] = -entry["exp_avg"]
    return found


TOY = [
    "parallel._target_=tests.parallel.test_strategy.Halves",
    "~parallel.device",
]
JOB = ["batch_size=32", "dataset.limit=704", "log_every=1", "logger=quiet",
       "epochs=2", "threads=1", "ema=0.9"]  # fmt: skip


@pytest.fixture
def here(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return shell


def test_a_strategy_that_replaces_parameters_trains_saves_and_resumes(
    here: Shell, tmp_path: Path
) -> None:
    commands = [
        [*JOB, "max_steps=40", "hydra.run.dir=none"],
        [*JOB, *TOY, "max_steps=25", "hydra.run.dir=toy"],
        ["resume=toy", "max_steps=40", TOY[0]],
    ]
    for command in commands:
        done = here.train(*command)
        assert done.returncode == 0, done.stderr
    none, toy = tmp_path / "none", tmp_path / "toy"
    losses = metrics(toy, "loss")
    assert losses == pytest.approx(metrics(none, "loss"), abs=1e-6)
    assert len(losses) == 40
    assert losses[-1] < losses[0] / 2
    ours, theirs = (read(run / "checkpoints" / "last.pt") for run in (none, toy))
    for key in ("model", "average"):
        assert ours[key].keys() == theirs[key].keys()
        for name in ours[key]:
            assert torch.allclose(ours[key][name], theirs[key][name], atol=1e-5), name
    assert load_weights(ConvNet(1, 10), weights(theirs)).complete  # in the plain model's shapes


def test_a_strategy_that_lacks_a_method_is_refused_in_one_line() -> None:
    from omegaconf import OmegaConf

    node = OmegaConf.create({"_target_": "ninefold.engine.parallel.Parallel"})
    with pytest.raises(ConfigError, match=r"abstract class Parallel.* join"):
        make(node, "parallel")


@pytest.mark.parametrize(
    ("strategy", "most", "no_op", "backend", "processes"),
    [("none", 1, False, None, 1), ("dp", 1, True, None, 1), ("ddp", None, False, "gloo", 2)],
)
def test_a_result_says_what_a_report_asks_of_a_strategy(
    shell: Shell,
    strategy: str,
    most: int | None,
    no_op: bool,
    backend: str | None,
    processes: int,
) -> None:
    """That ddp has two processes on a CPU, which share the threads of the others, included."""
    done = shell.train(
        f"parallel={strategy}", "device=cpu", "max_steps=1", "dataset.limit=64", "clock.warmup=0",
        "logger=quiet", "hydra.run.dir=run", "threads=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = result(shell.folder / "run")
    assert (found["max_processes"], found["no_op"], found["backend"]) == (most, no_op, backend)
    assert (found["processes"], found["threads"]) == (processes, 2)
    note = "2 processes share the 2 CPU threads that one process would have."
    assert (note in found["notes"]) == (processes == 2)


def test_a_place_has_one_device_unless_it_is_given_more() -> None:
    gpus = tuple(torch.device("cuda", index) for index in (2, 3))
    assert Place(0, 1, CPU).devices == (CPU,)
    assert Place(0, 1, CPU).gpus == []
    assert Place(0, 2, gpus[0]).gpus == [2]
    assert Place(0, 1, gpus[0], devices=gpus).gpus == [2, 3]


@pytest.mark.parametrize(("threads", "shares"), [(4, [2, 1, 1]), (2, [1, 1, 1])])
def test_the_threads_of_a_host_are_shared_out(threads: int, shares: list[int]) -> None:
    places = [Place(r, 3, CPU, local_rank=r, local_size=3) for r in range(3)]
    assert [place.share_of(threads) for place in places] == shares


def test_a_model_trained_with_ddp_is_freed_when_the_next_run_begins() -> None:
    """As in a sweep with launch.inline=true, where runs follow each other in one process."""

    def run() -> weakref.ref[nn.Module]:
        strategy = DDP(device="cpu")
        with strategy.join() as place:
            model = nn.Linear(4, 4)
            wrapped = strategy.wrap(model, place)
            wrapped(torch.ones(2, 4)).sum().backward()
            return weakref.ref(model)

    first = run()
    gc.disable()
    try:
        with DDP(device="cpu").join():
            assert first() is None
    finally:
        gc.enable()


def test_what_ended_a_run_is_told_though_its_process_group_cannot_be_left() -> None:
    """As after an error of a GPU, which every later call of NCCL repeats."""

    def fail() -> None:
        with DDP(device="cpu").join():
            dist.destroy_process_group()  # a second time it is an error
            raise KeyError("the cause")

    with pytest.raises(KeyError, match="the cause"):
        fail()
