"""A step that is recorded once and replayed trains what the step as written trains."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import ours
from ninefold.checkpoint.store import read
from ninefold.engine.loop import stepper, train
from ninefold.engine.parallel import RankContext
from ninefold.errors import ConfigError, NumericsError
from ninefold.model.convnet import ConvNet
from ninefold.result import NUMERICS
from ninefold.signals import Stop
from ninefold.train import build, cuda_graph
from ninefold.train.training_run import TrainingRun, closing
from ninefold.train.turns import endless, timed
from tests.conftest import Shell, metrics, only_run, result
from tests.kit import same as bitwise
from tests.train.operations import Operations

CPU = torch.device("cpu")
SMALL = (
    "dataset=synthetic", "dataset.shape=[3,8,8]", "dataset.train_count=160", "batch_size=16",
    "model.net.width=8", "threads=1", "logger=jsonl", "log_every=1", "clock.warmup=3",
    "clock.sample=4", "epochs=2",
)  # fmt: skip
HALF = ("amp=scaler", "amp.dtype=float16", "amp.init_scale=1e7", "amp.growth_interval=3")


class Dropping(ConvNet):
    """Drops a part of its features."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(F.dropout(images, 0.2, self.training))


class Failing(ConvNet):
    """Has infinite outputs for some batches of training."""

    def forward(self, images: Tensor) -> Tensor:
        fails = (images[0, 0, 0, 0] > images.mean()) & self.training
        return super().forward(images) * torch.where(fails, math.inf, 1.0)


@dataclass
class Trained:
    """What a run ended with."""

    checkpoint: dict[str, Any]
    logged: dict[str, list[float]]
    seconds: float
    recorder: Operations = field(default_factory=Operations)


@contextmanager
def training(
    folder: Path, *overrides: str, recorder: Operations | None = None, resume: bool = False
) -> Iterator[TrainingRun]:
    """A run in `folder`, whose steps `recorder` records if one is given."""
    text = ours.job(*SMALL, *overrides).text
    folder.mkdir(exist_ok=True)
    with build.running(text, folder, Stop(), resume=resume) as run:
        run.test = ours.first(run.test, 32)
        if recorder is not None:
            run.state.losses.reads_at_once = False  # as on a GPU: what is read is not recorded
            run.state.losses.start_epoch(run.state.losses.total, run.state.losses.bad)
            run.graph = cuda_graph.Graph(run.state, run.clock, recorder, CPU)
        with closing(run):
            yield run


def trained(folder: Path, *overrides: str, recorded: bool, resume: bool = False) -> Trained:
    recorder = Operations() if recorded else None
    with training(folder, *overrides, recorder=recorder, resume=resume) as run:
        train(run)
        checkpoints = run.writer.checkpoints
    logged = {key: metrics(folder, key) for key in ("loss", "lr", "scale", "grad_norm")}
    content = read(checkpoints.newest())
    return Trained(content, logged, run.clock.seconds, recorder or Operations())


TIMES = ("train_seconds", "evaluate_seconds", "epoch_seconds", "config")


def same(left: Trained, right: Trained) -> bool:
    """Whether weights, optimizer, averages, scaler, schedule, generators and logs are the same."""
    kept = [{k: v for k, v in each.checkpoint.items() if k not in TIMES} for each in (left, right)]
    return bitwise(*kept) and bitwise(left.logged, right.logged)


HOW: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "float16 and a scaler that skips steps": HALF,
    "bfloat16": ("amp=autocast",),
    "a rate for each step": ("scheduler=cosine", "scheduler.per=step", "scheduler.warmup=4"),
    "averages": ("ema=0.9", "ema_warmup=true"),
    "clipping": ("clip_grad_norm=0.05", *HALF),
    "micro-batches": ("accumulate=4", "clip_grad_norm=0.05"),
    "skipped losses": (
        "on_nonfinite=skip",
        f"model.net._target_={__name__}.Failing",
    ),
    "dropout": ("model.net._target_=tests.train.test_cuda_graph.Dropping",),
    "losses that are read together": ("log_every=5", "max_steps=17"),
}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_a_replayed_run_is_bitwise_the_run_as_written(how: tuple[str, ...], tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", *how, recorded=False)
    replayed = trained(tmp_path / "replayed", *how, recorded=True)
    assert same(plain, replayed)
    steps = plain.checkpoint["step"]
    assert replayed.recorder.recorded == 2  # in the warm-up, and in the run
    assert replayed.recorder.replayed == steps - 1 + 2
    if how == HOW["skipped losses"]:
        assert 0 < plain.checkpoint["skipped"] < steps
    if HALF[0] in how:
        assert 0 < plain.checkpoint["skipped"] < steps
        assert len(set(plain.logged["scale"])) > 3


@pytest.mark.parametrize("after", [True, False], ids=["with a graph", "without"])
@pytest.mark.parametrize("how", [HALF, ("scheduler=cosine", "scheduler.per=step", "ema=0.9")])
def test_a_run_that_is_resumed_is_bitwise_the_whole_one(
    how: tuple[str, ...], after: bool, tmp_path: Path
) -> None:
    whole = trained(tmp_path / "whole", *how, recorded=True)
    trained(tmp_path / "parts", *how, "max_steps=7", recorded=True)
    parts = trained(tmp_path / "parts", *how, recorded=after, resume=True)
    for each in (whole, parts):  # the one that stopped was evaluated then
        for key in ("measured", "best_step", "best_accuracy"):
            del each.checkpoint[key]
    assert same(whole, parts)
    assert parts.recorder.recorded == 2 * after


def test_the_step_with_the_first_bad_loss_is_named(tmp_path: Path) -> None:
    said = []
    for recorder in (None, Operations()):
        how = ("optimizer.lr=1e30", "log_every=9", "clock.sample=0")
        folder = tmp_path / str(recorder is None)
        with (
            training(folder, *how, recorder=recorder) as run,
            pytest.raises(NumericsError) as caught,
        ):
            train(run)
        said.append(str(caught.value))
    assert "not finite at step 2; all parameters" in said[0] or "first in parameter" in said[0]
    assert said[0] == said[1]


def test_the_first_steps_are_recorded_for_a_report_as_they_are_written(tmp_path: Path) -> None:
    for name, recorded in (("plain", False), ("replayed", True)):
        trained(tmp_path / name, "numerics=3", recorded=recorded)
    plain, replayed = (np.load(tmp_path / name / NUMERICS) for name in ("plain", "replayed"))
    assert all(np.array_equal(plain[key], replayed[key]) for key in plain.files)


def test_no_step_of_a_profile_is_replayed(tmp_path: Path) -> None:
    recorder = Operations()
    with training(tmp_path, "profile=true", "clock.warmup=0", recorder=recorder) as run:
        run.last_step = 0
        train(run)
    assert run.warmup.profile is not None
    assert "aten::convolution" in run.warmup.profile.table
    assert recorder.recorded == 0


def test_all_steps_of_a_turn_are_replayed_and_of_their_phases_those_before_are_timed(
    tmp_path: Path,
) -> None:
    recorder = Operations()
    with training(tmp_path, "clock.sample=2", recorder=recorder) as run:
        step, batches = stepper(run), endless(run)
        timed(run, step, batches, 2)
        before = recorder.replayed
        timed(run, step, batches, 40)
    assert recorder.replayed - before == 40
    assert run.clock.sampled_steps == 21
    assert {*run.clock.phase_seconds(40)} == {"data", "transfer"}


def test_the_memory_of_a_recorded_step_is_given_back_for_steps_as_written(tmp_path: Path) -> None:
    with training(tmp_path, recorder=Operations()) as run:
        timed(run, stepper(run), endless(run), 3)
        assert isinstance(run.graph, cuda_graph.Graph)
        assert run.graph._recording is not None
        with run.graph.off():
            assert run.graph._recording is None


def test_recording_does_not_count_on_the_clock(tmp_path: Path) -> None:
    class Watching(Operations):
        def record(self, compute: Any) -> Any:
            recorded = super().record(compute)
            ended.append(time.perf_counter())
            return recorded

    ended: list[float] = []
    how = ("max_steps=4", "log_every=1000", "clock.sample=0")
    with training(tmp_path, *how, recorder=Watching()) as run:
        train(run)
    assert len(ended) == 2
    assert run.clock._since > ended[1]  # it was started again after that


def test_a_batch_of_another_shape_is_one_line(tmp_path: Path) -> None:
    with training(tmp_path, recorder=Operations()) as run:
        train(run)
        updated = run.graph.computing(lambda inputs, targets: inputs.sum())
        run.state.restores += 1
        updated(torch.ones(4, 2), torch.ones(4))
        assert updated(torch.ones(4, 2), torch.ones(4)) == 8
        with pytest.raises(ConfigError) as caught:
            updated(torch.ones(3, 2), torch.ones(3))
    assert str(caught.value) == (
        "error: graph=true: the inputs of a batch are [3, 2] torch.float32; the recorded step "
        "takes [4, 2] torch.float32; set graph=false for data whose batches differ"
    )


def test_a_scheduler_that_sets_more_than_the_rate_is_one_line(tmp_path: Path) -> None:
    how = (
        "scheduler._target_=torch.optim.lr_scheduler.OneCycleLR", "~scheduler.patience",
        "~scheduler.factor", "+scheduler.max_lr=0.1", "+scheduler.total_steps=20",
        "scheduler.per=step", "optimizer=sgd",
    )  # fmt: skip
    recorder = Operations()
    with training(tmp_path, *how, recorder=recorder) as run, pytest.raises(ConfigError) as caught:
        train(run)
    assert "a recorded step has momentum fixed; " in str(caught.value)


def wait_in_steps(run: TrainingRun) -> None:
    """Make each loss of `run` read its own value."""
    loss = run.objective.task.loss

    def waits(*given: Tensor) -> Tensor:
        value = loss(*given)
        return value * float(value > -1)

    object.__setattr__(run.objective.task, "loss", waits)


def test_a_step_that_waits_for_the_device_is_one_line_that_says_so(tmp_path: Path) -> None:
    with training(tmp_path, recorder=Operations()) as run:
        wait_in_steps(run)
        with pytest.raises(RuntimeError, match="stream is capturing") as caught:
            train(run)
    failure = cuda_graph.explained(caught.value)
    assert isinstance(failure, ConfigError)
    assert str(failure).startswith(
        "error: graph=true: the training step cannot be recorded (CUDA error: operation not "
        "permitted when stream is capturing); "
    )


def test_several_gpus_are_refused_and_a_cpu_computes_the_steps_as_written(tmp_path: Path) -> None:
    with training(tmp_path) as run:
        two = RankContext(0, 1, torch.device("cuda", 0), replicas=2)
        with pytest.raises(ConfigError, match=r"^error: graph=true: .*; the run has 2; "):
            cuda_graph.step_graph(True, run.state, run.clock, two)
        for wanted, device in ((False, "cuda:0"), (True, "cpu")):
            context = RankContext(0, 1, torch.device(device))
            assert not cuda_graph.step_graph(wanted, run.state, run.clock, context).records


def test_on_a_cpu_a_run_says_that_there_is_no_graph(shell: Shell) -> None:
    done = shell.train("graph=true", "max_steps=1", "logger=quiet", "threads=1")
    assert (done.returncode, done.stderr) == (0, "")
    note = "graph=true is a no-op on a CPU: it records the step as a CUDA graph."
    assert f"note: {note}" in done.stdout
    found = result(only_run(shell.folder))
    assert found["graph"] is False
    assert note in found["notes"]


@pytest.fixture
def deterministic() -> Iterator[tuple[str, ...]]:
    """Overrides of a run whose arithmetic does not differ between two runs on a GPU.

    The rate is a float32 number: as a tensor it is the same.
    """
    yield ("device=cuda", "deterministic=true", "scheduler=none", "optimizer.lr=0.0009765625")
    torch.use_deterministic_algorithms(False)


ON_GPU: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "float16 and a scaler that skips steps": HALF,
    "bfloat16": ("amp=bf16",),
    "averages and clipping": ("ema=0.9", "ema_warmup=true", "clip_grad_norm=0.05"),
    "micro-batches": ("accumulate=4",),
    "dp": ("parallel=dp", "parallel.devices=[0]"),
    "skipped losses": (
        "on_nonfinite=skip",
        f"model.net._target_={__name__}.Failing",
    ),
    "dropout": HOW["dropout"],
    "losses that are read together": HOW["losses that are read together"],
    "warm-up of the rate": ("scheduler.warmup=4",),
}


@pytest.mark.gpu
@pytest.mark.parametrize("how", ON_GPU.values(), ids=ON_GPU)
def test_on_a_gpu_a_replayed_run_is_bitwise_the_run_as_written(
    how: tuple[str, ...], deterministic: tuple[str, ...], tmp_path: Path
) -> None:
    job = (*deterministic, *how)
    plain = trained(tmp_path / "plain", *job, recorded=False)
    replayed = trained(tmp_path / "replayed", *job, "graph=true", recorded=False)
    assert same(plain, replayed)


@pytest.mark.gpu
@pytest.mark.parametrize("how", [(), ("optimizer=sgd", "optimizer.lr=0.03")], ids=["adamw", "sgd"])
def test_on_a_gpu_the_rate_of_each_step_is_used_and_rounded_to_float32(
    how: tuple[str, ...], deterministic: tuple[str, ...], tmp_path: Path
) -> None:
    job = (*deterministic, "scheduler=cosine", "scheduler.per=step", *how)
    plain = trained(tmp_path / "plain", *job, recorded=False)
    replayed = trained(tmp_path / "replayed", *job, "graph=true", recorded=False)
    assert plain.logged["lr"] == replayed.logged["lr"]
    assert len(set(plain.logged["lr"])) == 20
    assert plain.logged["loss"] == pytest.approx(replayed.logged["loss"], rel=1e-4)


@pytest.mark.gpu
def test_on_a_gpu_a_resumed_run_is_bitwise_the_whole_one(
    deterministic: tuple[str, ...], tmp_path: Path
) -> None:
    job = (*deterministic, *HALF, *HOW["dropout"], "graph=true")
    whole = trained(tmp_path / "whole", *job, recorded=False)
    trained(tmp_path / "parts", *job, "max_steps=7", recorded=False)
    parts = trained(tmp_path / "parts", *job, recorded=False, resume=True)
    assert bitwise(whole.checkpoint["model"], parts.checkpoint["model"])
    assert bitwise(whole.checkpoint["rng"], parts.checkpoint["rng"])
    assert bitwise(whole.logged, parts.logged)


@pytest.mark.gpu
@pytest.mark.parametrize("graph", ["true", "false"])
def test_on_a_gpu_the_first_bad_loss_leaves_the_weights_as_they_were(
    graph: str, tmp_path: Path
) -> None:
    how = ("device=cuda", "optimizer.lr=1e30", "log_every=9", "clock.sample=0", f"graph={graph}")
    with training(tmp_path, *how) as run, pytest.raises(NumericsError, match="at step 2"):
        train(run)
    weights = list(run.state.model.parameters())
    assert max(weight.abs().max().item() for weight in weights) > 1e29  # of the first step
    assert all(weight.isfinite().all() for weight in weights)


@pytest.mark.gpu
@pytest.mark.parametrize("how", [(), HALF], ids=["fp32", "float16 and a scaler"])
def test_between_log_points_the_host_never_waits_for_a_replayed_step(
    how: tuple[str, ...], tmp_path: Path
) -> None:
    with training(tmp_path, *how, "device=cuda", "graph=true", "log_every=1000") as run:
        epoch = run.batches.epoch

        def watched(*arguments: Any) -> Iterator[tuple[Tensor, Tensor]]:
            """Waiting is an error from the third batch on: the second step is recorded."""
            try:
                for number, batch in enumerate(epoch(*arguments)):
                    if number > 1:
                        torch.cuda.set_sync_debug_mode("error")
                    yield batch
            finally:  # the loop ends at its last step, and does not ask for another batch
                torch.cuda.set_sync_debug_mode("default")

        run.warmup.steps = 0
        run.batches.epoch = watched  # type: ignore[method-assign]
        try:
            train(run)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert run.graph.records


WAITING = """
import torch.nn.functional as F

class Loss:
    def __call__(self, output, target):
        values = F.cross_entropy(output, target, reduction="none")
        return values * float(values.sum() > -1)
"""


@pytest.mark.gpu
def test_on_a_gpu_a_step_that_waits_is_one_line(shell: Shell) -> None:
    (shell.folder / "waiting.py").write_text(WAITING)
    done = shell.train(
        "graph=true", "device=cuda:0", "epochs=1", "task.loss={_target_: waiting.Loss}",
        env={"PYTHONPATH": f"{shell.folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: graph=true: the training step cannot be recorded (")
    assert done.stderr.count("\n") == 1
