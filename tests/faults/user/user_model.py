"""What a user brings: a network whose training misbehaves, and a logger that does not close.

U_MODE names what happens in step U_STEP (10; 0 is the constructor) of rank U_RANK (0). U_SAID is a
file that is written when it happens, with what is to be known of it.
"""

import json
import multiprocessing.util
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

MODE = os.environ.get("U_MODE", "")
RANK = int(os.environ.get("U_RANK", "0"))
STEP = int(os.environ.get("U_STEP", "10"))
LONG = 300.0  # seconds that are never waited for
# As Linux has by default up to Python 3.13, and as most users' code was written for.
forking = multiprocessing.get_context("fork")
if MODE == "forktwice":
    os.register_at_fork(after_in_child=lambda: time.sleep(0.3))


class U(nn.Module):
    """Two linear layers."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, classes)
        )
        self.steps = 0
        if STEP == 0:
            misbehave()

    def forward(self, images: Tensor) -> Tensor:
        if self.training and type(images) is Tensor and images.device.type == "cpu":
            self.steps += 1
            if self.steps == STEP:
                misbehave()
            if MODE == "slow":
                time.sleep(0.02)
        return self.layers(images)


class Stuck:
    """A logger whose server does not answer at the end."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self, result: Any) -> None:
        say("closing")
        time.sleep(LONG)


class Odd(BaseException):
    """No Exception, as those of some libraries that stop a program."""


class Unsaid(Exception):
    """Fails to say what is wrong."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


def misbehave() -> None:
    if int(os.environ.get("RANK", "0")) == RANK and MODE:
        MODES[MODE]()


def say(what: Any) -> None:
    path = Path(os.environ["U_SAID"])
    new = path.with_suffix(f".{os.getpid()}")  # each rank may say it
    new.write_text(json.dumps(what))
    new.replace(path)


def leave(code: int) -> None:
    say(code)
    os._exit(code)


def leave_politely(code: int) -> None:
    say(code)
    sys.exit(code)


def raise_odd() -> None:
    say("")
    raise Odd("of a library")


def raise_unsaid() -> None:
    say("")
    raise Unsaid


def raise_late() -> None:
    say("")
    time.sleep(2)  # a signal may come meanwhile
    raise RuntimeError("too late")


def hang() -> None:
    say("")
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        time.sleep(1)


def fork() -> None:
    child = os.fork()
    if not child:
        time.sleep(LONG)
        os._exit(0)
    say(child)


def fork_twice() -> None:
    """As what is to outlive its parent does. The second child begins when its parent is gone."""
    if child := os.fork():
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return
    if not os.fork():
        time.sleep(LONG)
    os._exit(1)


def start_process(daemon: bool) -> None:
    process = forking.Process(target=time.sleep, args=(LONG,), name="reader", daemon=daemon)
    process.start()
    say(process.pid)


def start_thread() -> None:
    threading.Thread(target=time.sleep, args=(LONG,), name="feeder").start()
    say("")


def scan() -> None:
    """What many a data set does first, with processes as Python starts them by default."""
    method = "fork" if sys.version_info < (3, 14) else "forkserver"
    assert multiprocessing.get_start_method() == method
    with multiprocessing.Pool(2) as pool:
        pool.map(abs, range(8))
    say("scanned")  # at its end the pool was terminated


def save_slowly() -> None:
    """Have each write that is forced to disk take long from now on."""
    force = os.fsync

    def fsync(descriptor: int) -> None:
        say("saving")
        time.sleep(0.3)
        force(descriptor)

    os.fsync = fsync


def die() -> None:
    say("")
    os.kill(os.getpid(), signal.SIGRTMIN + 5)


def start_manager() -> None:
    """As what has multiprocessing make a folder for a socket, and leaves a process running."""
    multiprocessing.util.get_temp_dir()
    start_process(daemon=False)


def take_long() -> None:
    say("")
    time.sleep(0.5)


MODES: dict[str, Callable[[], None]] = {
    "_exit0": lambda: leave(0),
    "exit75": lambda: leave(75),
    "sysexit0": lambda: leave_politely(0),
    "sysexit3": lambda: leave_politely(3),
    "base": raise_odd,
    "hang": hang,
    "fork": fork,
    "forktwice": fork_twice,
    "unsaid": raise_unsaid,
    "mpdaemon": lambda: start_process(daemon=True),
    "mpprocess": lambda: start_process(daemon=False),
    "thread": start_thread,
    "pool": scan,
    "slow": lambda: say(""),
    "slowsave": save_slowly,
    "pause": take_long,
    "realtime": die,
    "manager": start_manager,
    "late": raise_late,
}
