"""Faults at chosen moments of a real run, through its own seams: a task that misbehaves.

FAULT=<fault>@<phase>:<rank>:<number> in the environment names one; without it the task is plain
classification. FAULT_MARK is a file that grows by a byte each time a fault fires. Phases:

    start       this process builds its objects; its peers wait for it
    step        the number-th forward pass in training, counted from 1
    validation  the number-th batch of an evaluation, counted from 1
    write       the number-th file forced to disk by rank 0 while it writes checkpoints

SLOW is the least number of seconds that a training step takes.

Each step waits for the write before it: no checkpoint is left out because a write takes long, so
that the steps are known at which a fault comes and from which a run goes on.
"""

import ctypes
import gc
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from ninefold.ranks import found
from ninefold.signals import Stop
from ninefold.task.classification import Classification
from ninefold.train import build
from ninefold.waits import poll_until
from tests.faults.writer import finish_writing

SIGNALS = {
    "kill": signal.SIGKILL,
    "term": signal.SIGTERM,
    "int": signal.SIGINT,
    "usr1": signal.SIGUSR1,
    "freeze": signal.SIGSTOP,
}


class Task(Classification):
    """Cross entropy, and the fault that the environment asks for."""

    def __init__(self, classes: int, label_smoothing: float = 0) -> None:
        super().__init__(classes, label_smoothing=label_smoothing)
        fault, _, moment = os.environ.get("FAULT", "").partition("@")
        phase, rank, number = moment.split(":") if moment else ("", "0", "0")
        self.__dict__.update(
            fault=fault, phase=phase, rank=int(rank), number=int(number), seen={}, poison=""
        )
        if mark := os.environ.get("FAULT_MARK"):
            Path(f"{mark}.rank{own_rank()}").write_text(str(os.getpid()))
        if phase == "write":
            force = os.fsync

            def fsync(descriptor: int) -> None:
                self.reach("write")
                force(descriptor)

            os.fsync = fsync
        self.reach("start", number=0)

    def __deepcopy__(self, _: Any) -> Classification:
        """What the trial before a run takes: a task without faults."""
        return Classification(self.classes, label_smoothing=self.label_smoothing)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        if output.requires_grad:
            finish_writing()
            time.sleep(float(os.environ.get("SLOW", "0")))
            self.reach("step")
        loss = super().loss(output, target)
        if self.poison:
            loss, self.__dict__["poison"] = loss * float(self.poison), ""
        return loss

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        self.reach("validation")
        return super().measure(output, target)

    def reach(self, phase: str, number: int | None = None) -> None:
        """This moment has come; the fault fires if it is its own, once in all."""
        count = self.seen[phase] = self.seen.get(phase, 0) + 1
        own = (phase, own_rank(), count if number is None else number)
        if own == (self.phase, self.rank, self.number):
            with Path(os.environ["FAULT_MARK"]).open("ab") as file:
                file.write(b"x")
            self.fire()

    def fire(self) -> None:
        name, _, victim = self.fault.partition("_")
        if name == "exception" and self.phase == "start":
            build._loggers = injected  # built next; this object's own trouble is configuration
            return
        if name == "exception":
            injected()
        if name == "segfault":
            ctypes.string_at(0)
        if name == "poison":  # the loss is multiplied by it: nan, inf
            self.__dict__["poison"] = victim
            return
        if name in ("full", "readonly"):
            if name == "full":
                fill(Path(os.environ["FAULT_DISK"]) / "filler")
            else:
                protect(Path(os.environ["FAULT_DISK"]) / "run" / "checkpoints")
            return
        process = pid_of(victim)
        if victim == "group":
            os.killpg(process, SIGNALS[name])
        else:
            os.kill(process, SIGNALS[name])
        if name in ("term", "int", "usr1") and self.phase != "start":
            wait_for_signal()
        elif name == "kill":
            time.sleep(0.5)  # so that what follows happens after it


def injected(*_: object) -> Any:
    raise RuntimeError("injected")


def own_rank() -> int:
    return found(os.environ).rank


def pid_of(victim: str) -> int:
    """The process of rank0, of rank1, or the launcher (and its group)."""
    if victim.startswith("rank"):
        path = Path(f"{os.environ['FAULT_MARK']}.{victim}")
        while not path.exists() or not path.read_text():
            time.sleep(0.01)
        return int(path.read_text())
    forkserver = os.getppid()  # whose parent is the launcher
    return int(Path(f"/proc/{forkserver}/stat").read_text().rpartition(")")[2].split()[1])


def wait_for_signal() -> None:
    """Until this process has received what was sent to it, directly or through the launcher."""
    (stop,) = [thing for thing in gc.get_objects() if isinstance(thing, Stop)]
    poll_until(lambda: stop.signal, 20, interval=0.005)


def fill(path: Path) -> None:
    """Take all room that is left on a small disk."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1 << 8, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def protect(folder: Path) -> None:
    """Make `folder` a read-only mount of itself."""
    folder.mkdir(exist_ok=True)
    for options in (["--bind", str(folder)], ["-o", "remount,bind,ro"]):
        subprocess.run(["mount", *options, str(folder)], check=True)


class InfiniteTest(Classification):
    """Fine in training, not finite when it is measured."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        loss = super().loss(output, target)
        return loss if output.requires_grad else loss * float("inf")


class Overflowing(Classification):
    """A finite loss whose gradients are not."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        loss = super().loss(output, target)
        return loss + (output.sum() - output.sum().detach()) * 1e38 * 1e10
