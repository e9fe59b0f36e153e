"""Saving beside the training: what is written is what was, and what goes wrong is told in time."""

import gc
import hashlib
import signal
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import ours
from ninefold.checkpoint.store import Checkpoints, read
from ninefold.checkpoint.writer import AsyncWriter, Staging, lock
from ninefold.engine import loop
from ninefold.engine.clip import NoClip
from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.none import Single
from ninefold.errors import NumericsError, Preempted, ResourceError
from ninefold.logger import Run
from ninefold.logger.jsonl import JSONLines
from ninefold.signals import Stop
from ninefold.train import build, training_run
from ninefold.train.training_run import TrainingRun
from ninefold.train.warmup import WarmUp
from tests.conftest import metrics
from tests.faults.writer import content, finish_writing, require_whole

CPU = torch.device("cpu")
SMALL = 1 << 16
RUN = (
    "device=cpu", "dataset=digits", "dataset.limit=8", "model=mlp", "batch_size=2", "epochs=2",
    "threads=1", "logger=quiet", "~logger.jsonl", "log_every=100", "checkpoint.every=0",
    "checkpoint.keep=2",
)  # fmt: skip
ALONE = RankContext(0, 1, CPU)


class Gated(Checkpoints):
    """Forces nothing to disk before its gate is opened."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, keep=2)
        self.gate = threading.Event()
        self.saved: list[int] = []

    def save(self, content: Mapping[str, Any], best: bool) -> None:
        assert self.gate.wait(60)
        super().save(content, best)
        self.saved.append(content["step"])


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Gated]:
    checkpoints = Gated(tmp_path / "checkpoints")
    yield checkpoints
    checkpoints.gate.set()


def test_what_changes_while_it_is_written_is_saved_as_it_was(gated):
    writer, live = AsyncWriter(gated, CPU), content(1, SMALL)
    writer.save(live, best=False)
    live["model"]["weight"].zero_()
    gated.gate.set()
    writer.wait()
    assert require_whole(gated.newest()) == 1


def test_a_save_waits_for_the_write_before_it(gated):
    writer = AsyncWriter(gated, CPU)
    writer.save(content(1, SMALL), best=False)
    threading.Timer(0.2, gated.gate.set).start()
    writer.save(content(2, SMALL), best=False)
    assert require_whole(gated.folder / "step-00000001.pt") == 1
    writer.wait()
    assert require_whole(gated.newest()) == 2


def test_a_failed_write_is_told_once_to_who_waits_for_it(tmp_path):
    (tmp_path / "checkpoints").write_bytes(b"")  # where a folder is to be
    writer = AsyncWriter(Checkpoints(tmp_path / "checkpoints", keep=2), CPU)
    assert not writer.failed
    writer.save(content(1), best=False)
    finish_writing()
    assert writer.failed
    with pytest.raises(ResourceError, match="File exists"):
        writer.wait()
    assert not writer.failed
    writer.wait()


# The staged copy


def tensors() -> dict[str, torch.Tensor]:
    return {
        "scalar": torch.tensor(3.0),
        "none": torch.ones(0, 4),
        "flags": torch.tensor([True, False]),
        "half": torch.randn(SMALL, dtype=torch.bfloat16),
        "whole": torch.arange(SMALL),
        "layout": torch.randn(8, 64, 16, 16).to(memory_format=torch.channels_last),
        "part": torch.randn(SMALL, 4)[:, 1:3],
        "repeated": torch.randn(SMALL, 1).expand(-1, 3),
    }


def test_a_staged_copy_is_saved_in_the_very_bytes_of_any_other_copy(tmp_path):
    given = {"step": 1, **tensors()}
    other = {"step": 1, **{name: given[name].to("cpu", copy=True) for name in tensors()}}
    digests = []
    for folder, copy in (("one", Staging(CPU).copy(given)), ("other", other)):
        Checkpoints(tmp_path / folder, keep=1).save(copy, best=False)
        digests.append(hashlib.sha256((tmp_path / folder / "last.pt").read_bytes()).hexdigest())
    assert digests[0] == digests[1]


@pytest.mark.gpu
def test_what_is_staged_from_a_gpu_is_page_locked_and_what_it_was(tmp_path):
    given = {name: value.cuda() for name, value in tensors().items()} | {"host": torch.randn(9)}
    staging = Staging(torch.device("cuda", 0))
    for _ in range(2):
        copies = staging.copy(given)
        for name, value in given.items():
            assert torch.equal(copies[name], value.cpu())
            assert copies[name].is_pinned() or not value.nbytes
    block, parts = weakref.ref(staging._block), copies
    del staging, copies
    gc.collect()
    assert block() is None
    assert not any(part.is_pinned() for part in parts.values())


@pytest.mark.gpu
def test_where_memory_cannot_be_locked_checkpoints_are_staged_and_it_is_said(monkeypatch, capsys):
    def twice(*given: Any) -> int:
        """Locking what is locked is refused, as in a sandbox."""
        assert lock(*given) == 0
        return lock(*given)

    monkeypatch.setattr("ninefold.checkpoint.writer.lock", twice)
    weights = torch.randn(300).cuda()
    copies = Staging(torch.device("cuda", 0)).copy({"weights": weights})
    assert torch.equal(copies["weights"], weights.cpu())  # CUDA has no error left to raise
    assert "note: the GPU cannot lock memory here (" in capsys.readouterr().out


# In a run


def a_run(folder: Path) -> TrainingRun:
    """A small network that has been trained for no step, of eight."""
    with build.running(ours.job(*RUN).text, folder, Stop()) as run:
        return run


def train(run: TrainingRun) -> None:
    with training_run.closing(run):
        loop.train(run)


def logged(run: TrainingRun, folder: Path) -> list[float]:
    """The test losses in metrics.jsonl once `run` is trained to its end."""
    state = run.state
    logger = JSONLines(Run(folder, state.step, state.measured, run.last_step, run.batch_size, {}))
    train(replace(run, loggers=[logger]))
    return metrics(folder, "test_loss")


def test_an_evaluation_is_logged_once_however_often_a_run_that_is_done_goes_on(tmp_path):
    """Be it that it was killed after its last checkpoint, or that it is asked for once more."""
    found = logged(a_run(tmp_path), tmp_path)
    assert len(found) == 2
    for _ in range(2):
        run = a_run(tmp_path)
        run.state.restore(read(run.writer.checkpoints.newest()), Single(), ALONE)
        assert logged(run, tmp_path) == found


def test_the_evaluation_of_a_run_of_no_step_is_logged(tmp_path):
    assert len(logged(replace(a_run(tmp_path), last_step=0), tmp_path)) == 1


@pytest.mark.parametrize("last_step", [4, 8])  # saved last of all, or before other steps
def test_a_run_does_not_end_well_if_a_checkpoint_could_not_be_written(tmp_path, last_step):
    (tmp_path / "checkpoints").write_bytes(b"")
    run = a_run(tmp_path)
    run.last_step = last_step
    with pytest.raises(ResourceError, match=r"^error: checkpoint=.*File exists"):
        train(run)


def test_a_write_that_failed_does_not_hide_what_ended_the_run(tmp_path):
    (tmp_path / "checkpoints").write_bytes(b"")
    run = a_run(tmp_path)

    def fail() -> None:
        with training_run.closing(run):
            training_run.save(run)
            raise KeyError("another")

    with pytest.raises(KeyError, match="another"):
        fail()


class Exiting:
    """A logger whose library exits at its end."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self, result: object) -> None:
        raise SystemExit(3)


def test_a_logger_that_exits_does_not_hide_that_a_signal_ended_the_run(tmp_path):
    run = replace(a_run(tmp_path), loggers=[Exiting()])
    with pytest.raises(Preempted), training_run.closing(run):
        raise Preempted("signal", "SIGTERM", "the run was stopped", "it is saved", "resume it")


@dataclass(frozen=True)
class Opening(NoClip):
    """Opens a gate in the step of this number, and so sees that training came there before."""

    gate: threading.Event
    steps: list[int]
    number: int

    def __call__(self) -> None:
        self.steps.append(len(self.steps) + 1)
        if len(self.steps) == self.number:
            self.gate.set()


def gated_run(folder: Path, gated: Gated, number: int) -> tuple[TrainingRun, list[int]]:
    """A run that saves after each step, and whose disk does nothing before step `number`."""
    steps: list[int] = []
    clip: Any = Opening(gated.gate, steps, number)
    run = replace(a_run(folder), checkpoint_every=1, warmup=WarmUp(steps=0), clip=clip)
    run.writer = AsyncWriter(gated, CPU)
    return run, steps


def test_steps_do_not_wait_for_a_disk_that_is_slower_than_they_are(tmp_path, gated):
    run, steps = gated_run(tmp_path, gated, number=4)
    threading.Timer(20, gated.gate.set).start()  # so that the test ends if they do
    began = time.monotonic()
    train(run)
    assert time.monotonic() - began < 15
    assert steps == [1, 2, 3, 4, 5, 6, 7, 8]
    assert run.left_out >= 2  # those of the steps 2 and 3, while 1 was being written
    assert gated.saved[:2] == [1, 4]  # the first evaluation is the best so far
    assert gated.saved[-1] == 8
    assert len(gated.saved) + run.left_out == 8


def test_a_failed_write_is_noticed_after_the_step(tmp_path):
    (tmp_path / "checkpoints").write_bytes(b"")
    run = a_run(tmp_path)
    training_run.save(run)
    finish_writing()
    run.state.step = 3
    with pytest.raises(ResourceError):
        run.after_step()


class Total(Tensor):
    """As a collective on GPUs gives it: at once, and who reads it has waited for all processes."""

    read = False

    def item(self) -> Any:
        self.read = True
        return super().item()


class Queueing(Single):
    def all_reduce_sum(self, values: Tensor) -> Tensor:
        TOTALS.append(values.clone().as_subclass(Total))
        return TOTALS[-1]


TOTALS: list[Any] = []


def test_no_process_leaves_before_it_knows_that_the_checkpoint_is_written(tmp_path):
    run = replace(a_run(tmp_path), context=RankContext(1, 2, CPU), parallel=Queueing())
    run.stop.signal = signal.SIGTERM
    with pytest.raises(Preempted, match="it is saved at step 0"):
        training_run.save_and_stop(run)
    assert TOTALS.pop().read


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_nothing_that_is_not_finite_is_written(tmp_path, value):
    run = a_run(tmp_path)
    with torch.no_grad():
        next(run.state.model.parameters())[1, 2] = value
    with pytest.raises(
        NumericsError, match=r"parameter=hidden\.0\.weight: not finite after step 0"
    ):
        training_run.save(run)
    run.writer.wait()
    assert not (tmp_path / "checkpoints").exists()


def test_large_parameters_are_finite_though_their_sum_is_not(tmp_path):
    run = a_run(tmp_path)
    with torch.no_grad():
        next(run.state.model.parameters()).fill_(3e38)
    training_run.save(run, must=True)
    assert read(run.writer.checkpoints.newest())["step"] == 0
