"""Writers of checkpoints that are killed or refused what they ask of the system, and the remains.

The test process is the zygote: torch is imported once, every writer is a fork that saves once.
"""

import ctypes
import io
import os
import re
import signal
import socket
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ninefold.checkpoint import manifest
from ninefold.checkpoint.hashing import digest
from ninefold.checkpoint.store import STEP, Checkpoints, read
from ninefold.checkpoint.writer import AsyncWriter
from ninefold.errors import Failure, ResourceError
from tests.forks import exit_code, fork

KEEP = 2
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, ctypes.c_ulong(-1)
# All that a save asks of a file system; those that a machine does not have are left out there.
CALLS = (
    "?open,?openat,?close,?read,?write,?pread64,?pwrite64,?lseek,?ftruncate,?fsync,?fdatasync,"
    "?rename,?renameat,?renameat2,?link,?linkat,?unlink,?unlinkat,?mkdir,?mkdirat,?getdents64,"
    "?stat,?lstat,?fstat,?newfstatat,?statx,?statfs"
)


def content(step: int, size: int = 10) -> dict[str, Any]:
    """A checkpoint whose tensors tell its step."""
    return {"format": 2, "step": step, "model": {"weight": torch.full((size,), float(step))}}


def require_whole(path: Path) -> int:
    """The step of a checkpoint, after seeing that its tensors are of that step."""
    found = read(path)
    weight = found["model"]["weight"]
    assert torch.equal(weight, torch.full_like(weight, found["step"])), f"{path} is a mixture"
    return int(found["step"])


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class Beside(Checkpoints):
    """Checkpoints as a run writes them: from a copy, in a thread, which is waited for."""

    def save(self, content: Mapping[str, Any], best: bool) -> None:
        writer = AsyncWriter(Checkpoints(self.folder, KEEP), torch.device("cpu"))
        writer.save(content, best)
        writer.wait()


def finish_writing() -> None:
    """Until no thread of this process writes a checkpoint."""
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join()


# Processes


@dataclass
class Outcome:
    """What a writer came to: its exit code, and what it said of its save."""

    code: int
    said: str

    @property
    def saved(self) -> bool:
        return self.said == "saved"


class Writer:
    """A process that is ready to save, and does so once it is told to.

    It speaks by sendto and recvfrom, which are none of CALLS.
    """

    def __init__(self, save: Callable[[], None]) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(120)

        def live() -> None:
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)
            theirs.recv(1)
            code, said = 0, "saved"
            try:
                save()
            except Failure as failure:
                code, said = failure.code, str(failure)
            except BaseException:
                code, said = 1, traceback.format_exc()
            theirs.send(said.encode())
            os._exit(code)

        self.pid = fork(live)
        theirs.close()

    def start(self) -> None:
        self._ours.send(b"!")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def outcome(self) -> Outcome:
        """Wait for its end."""
        try:
            said = b"".join(iter(lambda: self._ours.recv(1 << 16), b""))
        except ConnectionResetError:
            said = b""
        self._ours.close()
        return Outcome(exit_code(self.pid), said.decode())


@contextmanager
def traced(writer: Writer, log: Path, inject: str | None = None) -> Iterator[None]:
    """Have the writer's system calls listed in `log`, and a fault injected into one of them."""
    command = ["strace", "-f", "-p", str(writer.pid), "-o", str(log), "-e", f"trace={CALLS}"]
    if inject is not None:
        command += ["-e", f"inject={inject}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        said = strace.stderr.readline()
        assert "attached" in said, said
        yield
        strace.communicate(timeout=120)


def calls_of(save: Callable[[], None], log: Path) -> list[tuple[str, int]]:
    """Each system call of one save, with its number among those of its name, in order.

    They are all of one thread, as strace counts those of each by themselves.
    """
    writer = Writer(save)
    with traced(writer, log):
        writer.start()
        assert writer.outcome().saved
    counts: dict[str, int] = {}
    found, threads = [], set()
    for thread, name in re.findall(r"^(\d+) +(\w+)\(", log.read_text(), re.MULTILINE):
        counts[name] = counts.get(name, 0) + 1
        found.append((name, counts[name]))
        threads.add(thread)
    assert len(threads) == 1
    return found


@contextmanager
def disk(folder: Path, options: str) -> Iterator[None]:
    """A file system in memory at `folder` while the block runs; only root can have it."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


# What is left


def steps(folder: Path) -> list[str]:
    """The names of the checkpoints of steps."""
    return [path.name for path in folder.glob("step-*") if STEP.fullmatch(path.name)]


def verifies(path: Path) -> bool:
    """Whether the sha256 of a checkpoint is one that the manifest lists under its name."""
    return digest(path) in manifest.sums(manifest.read(path.parent), path.name)


def wrong_now(folder: Path, allowed: set[int], warnings: str = "") -> list[str]:
    """What is wrong with a folder that must have one of the `allowed` steps to go on from.

    The user must be told the `warnings` and nothing else.
    """
    with redirect_stderr(io.StringIO()) as said:
        try:
            step = require_whole(Checkpoints(folder, KEEP).newest())
        except (Failure, AssertionError) as error:
            return [f"unreadable: {error}"]
    found = [] if step in allowed else [f"step {step} is taken, not one of {allowed}"]
    return found + ([] if said.getvalue() == warnings else [f"it was said: {said.getvalue()!r}"])


def wrong_later(folder: Path, step: int) -> list[str]:
    """What is wrong after the next writer: it must succeed and leave nothing lying around."""
    checkpoints = Checkpoints(folder, KEEP)
    before = len(steps(folder))
    try:
        checkpoints.save(content(step), best=False)
    except ResourceError as error:
        return [f"the next save failed: {error}"]
    found = wrong_now(folder, {step})
    listed = checkpoints.manifest()
    if names(folder) != {*listed, "manifest.json"}:
        found.append(f"{sorted(names(folder))} are there, {sorted(listed)} are listed")
    found += [f"{name} is damaged" for name in listed if not verifies(folder / name)]
    if len(steps(folder)) < min(KEEP, before + 1):
        found.append(f"fewer than {KEEP} steps are kept")
    return found
