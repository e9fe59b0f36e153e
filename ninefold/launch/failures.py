"""Turn any exception into a Failure with an error line and an exit code: one table, `ROWS`."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ninefold.errors import (
    ConfigError,
    Failure,
    PeerError,
    ResourceError,
    located,
    memory_failure,
    resource_failure,
    users_line,
)
from ninefold.process import OutputClosed, no_reader
from ninefold.secrets import redact


@dataclass(frozen=True)
class Raised:
    """An exception that ended a process: a worker, or the launcher.

    log, rank: of a worker, the file with the traceback, and its rank.
    of_hydra: of the launcher, the failure that the error is if it came from Hydra.
    """

    error: BaseException
    log: Path | None = None
    rank: int | None = None
    of_hydra: Failure | None = None

    @cached_property
    def text(self) -> str:
        """What the error says, without secrets: it may be shortened, and half of one is one too."""
        return redact(str(self.error))

    @cached_property
    def what(self) -> str:
        return f"{type(self.error).__name__}: {self.text}".rstrip(": ")

    @cached_property
    def line(self) -> str | None:
        """`path/file.py:LINE` of the user's code that raised it; None if none took part."""
        return users_line(self.error)

    @cached_property
    def details(self) -> str:
        """Where a worker's error is found: the line of the user's code, if any, and the log."""
        return located(self.error, f"traceback in {self.log}")


def failure_of(raised: Raised) -> Failure:
    """Convert an exception to a Failure: that of the first row of `ROWS` that knows it."""
    if isinstance(raised.error, Failure):
        return raised.error
    here = LAUNCHER if raised.rank is None else WORKER
    rows = (row for process, row in ROWS if process in (BOTH, here))
    found = next(failure for row in rows if (failure := row(raised)))
    found.__cause__ = raised.error
    return found


def _of_memory(raised: Raised) -> Failure | None:
    launcher = raised.line or "a run needs a few GB to import torch alone"
    return memory_failure(raised.error, launcher if raised.rank is None else raised.details)


def _no_deterministic_kernel(raised: Raised) -> Failure | None:
    before, missing, _ = raised.text.partition(" does not have a deterministic implementation")
    if not missing:
        return None
    return ConfigError(
        "deterministic",
        "true",
        f"{before.rpartition(' ')[2]} has no deterministic kernel; {raised.details}; choose "
        "another model or leave it out",
    )


def _no_kernel_for_the_dtype(raised: Raised) -> Failure | None:
    """oneDNN lacks some, as of an LSTM in bfloat16 on CPUs without instructions for it."""
    if not raised.text.startswith("could not create a primitive"):
        return None
    said = raised.text.partition(". Run")[0]
    return ConfigError(
        "kernel",
        "oneDNN",
        f"this CPU has none for a layer in its precision ({said}); {raised.details}; take "
        "amp=fp32, or another layer",
    )


def _not_compiled(raised: Raised) -> Failure | None:
    if type(raised.error).__module__ not in ("torch._dynamo.exc", "torch._inductor.exc"):
        return None
    return ConfigError(
        "compile",
        "true",
        f"the network cannot be compiled ({raised.text.partition(chr(10))[0]}); {raised.details}; "
        "leave compile out, or see the traceback",
    )


def _of_the_system(raised: Raised) -> Failure | None:
    """A full disk, a missing permission and the like."""
    if not isinstance(raised.error, OSError):
        return None
    if raised.rank is not None:
        return resource_failure(raised.error, raised.details, "see that it can be written to")
    if raised.line is not None:
        return resource_failure(raised.error, raised.line, "see that it is there and can be used")
    do = "choose another hydra.run.dir or hydra.sweep.dir"
    return resource_failure(raised.error, "a run writes its folder", do)


def _of_cuda_in_a_fork(raised: Raised) -> Failure | None:
    if "Cannot re-initialize CUDA in forked subprocess" not in raised.text:
        return None
    return ConfigError(
        "CUDA",
        "initialized",
        "a module that was imported before the workers were forked used the GPU driver; "
        f"{raised.details}; do not call torch.cuda while a module is imported, or use "
        "launch.inline=true",
    )


def _of_shared_memory(raised: Raised) -> Failure | None:
    """NCCL keeps the buffers between the GPUs of a host in /dev/shm."""
    lines = [line.strip() for line in raised.text.splitlines() if "/dev/shm" in line]
    if not lines or not ("No space left" in raised.text or "failed to extend" in raised.text):
        return None
    return ResourceError(
        "file",
        "/dev/shm",
        f"NCCL found no room there ({lines[0][:120]}); {raised.details}; give it more (docker run "
        "--shm-size=1g)",
    )


def _of_one_gpu_for_two(raised: Raised) -> Failure | None:
    if "Duplicate GPU detected" not in raised.text:
        return None
    return ConfigError(
        "CUDA_VISIBLE_DEVICES",
        os.environ.get("CUDA_VISIBLE_DEVICES", "unset"),
        f"two processes have the same GPU; {raised.details}; show each process one of its own, or "
        "all GPUs to all",
    )


def _of_a_gpu(raised: Raised) -> Failure | None:
    if type(raised.error).__name__ != "AcceleratorError":
        return None
    line = next((line for line in raised.text.splitlines() if line.strip()), "")
    return ResourceError(
        "device",
        "cuda",
        f"the GPU reports an error ({line[:160]}); {raised.details}; see dmesg and nvidia-smi; the "
        "run can be resumed",
    )


def _no_interface(raised: Raised) -> Failure | None:
    if "Unable to find address for: " not in raised.text:
        return None
    return ConfigError(
        "GLOO_SOCKET_IFNAME",
        os.environ.get("GLOO_SOCKET_IFNAME", "unset"),
        f"no such interface on {socket.gethostname()}; found "
        f"{', '.join((name for _, name in socket.if_nameindex()))}; set it on that host",
    )


PEER_GONE = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Timed out waiting",
    "Broken pipe",
    "Socket Timeout",
    "wait timeout",
    "Connection refused",
    "No route to host",
    "Network is unreachable",
    "connectFullMesh failed",
    "Application timeout caused pair closure",
    "remote process exited or there was a network error",
)


def _of_a_peer(raised: Raised) -> Failure | None:
    # By name, as torch is not imported here.
    collective = any(kind.__name__ == "DistError" for kind in type(raised.error).__mro__)
    if not collective and not any(words in raised.text for words in PEER_GONE):
        return None
    said = raised.text.partition("Last error:")[2].strip() or raised.text  # NCCL's message
    return PeerError(
        "rank",
        raised.rank,
        f"a peer went away or did not answer ({said[:120]}); {raised.details}; see the other "
        "ranks' logs; launch.timeout is how long one waits",
    )


def _of_an_optimizer(raised: Raised) -> Failure | None:
    """An optimizer or scheduler of torch's refused by its own `raise` what it was given, such as
    SparseAdam gradients that are not sparse.
    """
    frames = list(traceback.walk_tb(raised.error.__traceback__))
    steps = traceback.extract_tb(raised.error.__traceback__)
    if not frames or not (steps[-1].line or "").startswith("raise "):
        return None
    frame, _ = frames[-1]
    module, owner = frame.f_globals.get("__name__", ""), frame.f_locals.get("self")
    if owner is None or not module.startswith("torch.optim."):
        return None
    return ConfigError(
        "scheduler" if module == "torch.optim.lr_scheduler" else "optimizer",
        type(owner).__name__,
        f"{raised.what}; {raised.details}; correct its arguments, or choose another",
    )


def _of_code(raised: Raised) -> Failure:
    """Any other error: a mistake in the user's code if a line of it took part, or one of ours."""
    what, line = raised.what, raised.line
    if raised.rank is not None:
        do = "please report it" if line is None else "correct it there"
        return Failure("rank", raised.rank, f"{what}; {raised.details}; {do}")
    if line is not None:
        return Failure("code", line, f"{what}; HYDRA_FULL_ERROR=1 shows how; correct it there")
    return Failure("ninefold", "bug", f"{what}; HYDRA_FULL_ERROR=1 shows where; please report it")


LAUNCHER, WORKER, BOTH = "launcher", "worker", "both"

# In which process each row is asked, in this order: the first that knows the error says its line.
ROWS: tuple[tuple[str, Callable[[Raised], Failure | None]], ...] = (
    (BOTH, lambda raised: no_reader() if isinstance(raised.error, OutputClosed) else None),
    (BOTH, _of_memory),
    (WORKER, _no_deterministic_kernel),
    (WORKER, _no_kernel_for_the_dtype),
    (WORKER, _not_compiled),
    (LAUNCHER, lambda raised: raised.of_hydra),
    (BOTH, _of_the_system),
    (WORKER, _of_cuda_in_a_fork),
    (WORKER, _of_shared_memory),
    (WORKER, _of_one_gpu_for_two),
    (WORKER, _of_a_gpu),
    (WORKER, _no_interface),
    (WORKER, _of_a_peer),
    (WORKER, _of_an_optimizer),
    (BOTH, _of_code),
)
