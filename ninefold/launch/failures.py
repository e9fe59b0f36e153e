"""Turn any exception into a Failure with an error line and an exit code."""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ninefold import ranks
from ninefold.errors import (
    NOT_DETERMINISTIC,
    ConfigError,
    Failure,
    PeerError,
    ResourceError,
    error_text,
    located,
    memory_failure,
    resource_failure,
    text_of,
    users_line,
)
from ninefold.exits import bug
from ninefold.secrets import redact
from ninefold.streams import OutputClosed, no_reader

SHORT = "BFloat16", "Half"  # what torch's errors call its 16-bit floats
AUTOCAST = os.path.join("ninefold", "engine", "amp.py")  # whose autocast calls the network


@dataclass(frozen=True)
class Raised:
    """An exception that ended a process: a worker, or the launcher.

    log, rank: of a worker, the file with the traceback, if it has one yet, and its rank.
    of_hydra: of the launcher, the failure that the error is if it came from Hydra.
    """

    error: BaseException
    log: Path | None = None
    rank: int | None = None
    of_hydra: Failure | None = None

    @cached_property
    def text(self) -> str:
        """What the error says, without secrets: it may be shortened, and half of one is one too."""
        return redact(text_of(self.error))

    @cached_property
    def what(self) -> str:
        return redact(error_text(self.error))

    @cached_property
    def line(self) -> str | None:
        """`path/file.py:LINE` of the user's code that raised it; None if none took part."""
        return users_line(self.error)

    @cached_property
    def details(self) -> str:
        """Where a worker's error is found: the line of the user's code, if any, and the log."""
        return located(
            self.error, f"traceback in {self.log}" if self.log else "the run had not begun"
        )


@dataclass(frozen=True)
class Known:
    """An error of a library's in a worker that a user can act on.

    words: one of them is in its text, or in the full name of one of its classes or of the module
        that raised it.
    about: FIELD=VALUE, or the name of an environment variable, or rank, which have one.
    """

    words: tuple[str, ...]
    kind: type[Failure]
    about: str
    wrong: str
    do: str

    def failure(self, raised: Raised) -> Failure | None:
        names = [f"{kind.__module__}.{kind.__name__}" for kind in type(raised.error).__mro__]
        for frame, _ in traceback.walk_tb(raised.error.__traceback__):
            names[-1] = frame.f_globals.get("__name__", "")  # at last the innermost
        lines = [line.strip() for line in raised.text.splitlines() if line.strip()]
        known = [line for line in lines if any(words in line for words in self.words)]
        if not known and not any(words in name for words in self.words for name in names):
            return None
        last = raised.text.partition("Last error:")[2].strip().splitlines()  # NCCL's message
        said = (last or known or lines or [""])[0][:160]
        field, _, value = self.about.partition("=")
        given = raised.rank if field == "rank" else os.environ.get(field, "unset")
        return self.kind(field, value or given, f"{self.wrong} ({said})", raised.details, self.do)


KNOWN = (
    Known(
        (NOT_DETERMINISTIC,),
        ConfigError,
        "deterministic=true",
        "an operation has no deterministic kernel",
        "choose another model or leave it out",
    ),
    Known(  # as experts that no example of a process has chosen in this step
        ("Expected to have finished reduction in the prior iteration",),
        ConfigError,
        "parallel.find_unused_parameters=false",
        "a step gave some trained parameters no gradient, which DDP waits for",
        "set it to true, or use these parameters in each step",
    ),
    Known(
        ("torch._dynamo.exc.", "torch._inductor.exc."),
        ConfigError,
        "compile=true",
        "the network cannot be compiled",
        "leave compile out, or see the traceback",
    ),
    Known(
        ("Cannot re-initialize CUDA in forked subprocess",),
        ConfigError,
        "CUDA=initialized",
        "a module that was imported before the workers were forked used the GPU driver",
        "do not call torch.cuda while a module is imported, or use launch.inline=true",
    ),
    Known(  # NCCL keeps the buffers between the GPUs of a host there
        ("failed to extend /dev/shm", "/dev/shm/nccl"),
        ResourceError,
        "file=/dev/shm",
        "NCCL found no room there",
        "give it more (docker run --shm-size=1g)",
    ),
    Known(
        ("Duplicate GPU detected",),
        ConfigError,
        "CUDA_VISIBLE_DEVICES",
        "two processes have the same GPU",
        "show each process one of its own, or all GPUs to all",
    ),
    Known(
        ("device-side assert",),
        ConfigError,
        "device=cuda",
        "a kernel got an index that is out of range, such as a label or a token",
        "train once with device=cpu, whose error names it",
    ),
    Known(
        ("no kernel image",),
        ConfigError,
        "device=cuda",
        "this torch has no kernels for this GPU",
        "install a build of torch for it, or use device=cpu",
    ),
    Known(
        ("AcceleratorError",),
        ResourceError,
        "device=cuda",
        "the GPU reports an error",
        "see dmesg and nvidia-smi, which also says whether it takes one process only (E. Process); "
        "the run can be resumed",
    ),
    Known(  # such as SparseAdam, gradients that are not sparse
        ("torch.optim.", ".step() missing "),
        ConfigError,
        "optimizer=torch.optim",
        "it, or a scheduler of it, refused its step",
        "correct its arguments, or choose another",
    ),
    Known(
        ("Unable to find address for",),
        ConfigError,
        "GLOO_SOCKET_IFNAME",
        "gloo finds no address by it",
        "name an interface of this host that leads to the others, as `ip address` lists them",
    ),
    Known(
        ("EADDRINUSE",),
        ResourceError,
        "MASTER_PORT",
        "another program has this port",
        "set it to one that is free",
    ),
    Known(
        (
            "DistError",
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
        ),
        PeerError,
        "rank",
        "a peer went away or did not answer",
        "see the other ranks' logs: launch.timeout is how long one waits",
    ),
)


def failure_of(raised: Raised) -> Failure:
    """Convert an exception to a Failure: the first that knows it."""
    if isinstance(raised.error, Failure):
        return raised.error
    in_worker = raised.rank is not None
    found = raised.details if in_worker else raised.line or "a run needs a few GB to import torch"
    alone = in_worker and ranks.found(os.environ).world_size == 1
    known = (
        row.failure(raised) for row in KNOWN if in_worker and not (alone and row.kind is PeerError)
    )
    failure = (
        (no_reader() if isinstance(raised.error, OutputClosed) else None)
        or memory_failure(raised.error, found)
        or raised.of_hydra
        or _of_the_system(raised)
        or next(filter(None, known), None)
        or _of_code(raised)
    )
    failure.__cause__ = raised.error
    return failure


def _of_the_system(raised: Raised) -> Failure | None:
    """A full disk, a missing permission and the like."""
    if not isinstance(raised.error, OSError):
        return None
    if raised.rank is not None:
        return resource_failure(raised.error, raised.details, "see that it can be written to")
    if raised.line is not None:
        return resource_failure(raised.error, raised.line, "see that it is there and can be used")
    do = "choose another hydra.run.dir or hydra.sweep.dir"
    if raised.error.filename is None:  # as of the semaphores of worker processes
        do = "see that /dev/shm has room (docker run --shm-size=1g), or set launch.inline=true"
    return resource_failure(raised.error, "a run writes its folder, and /dev/shm", do)


def _of_code(raised: Raised) -> Failure:
    """Any other error: a mistake in the user's code if a line of it took part, or one of ours."""
    what, line = raised.what, raised.line
    if raised.rank is not None:
        do = "please report it" if line is None else "correct it there"
        frames = traceback.walk_tb(raised.error.__traceback__)
        if any(f.f_code.co_filename.endswith(AUTOCAST) for f, _ in frames):
            if line is None:
                do = "it fails in this precision; leave that out (amp=fp32), or report it"
            elif any(name in raised.text for name in SHORT):
                do = "correct it there, or leave this precision out (amp=fp32)"
        return Failure("rank", raised.rank, what, raised.details, do)
    if line is not None:
        return Failure("code", line, what, "HYDRA_FULL_ERROR=1 shows how", "correct it there")
    return bug(raised.error)
