"""What one command has come to, and how it says so: a line for each failure, an exit code."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ninefold import signals
from ninefold.config import overrides
from ninefold.config.job import ROOT, Job
from ninefold.errors import ConfigError, Failure, ResourceError, memory_failure, resource_failure
from ninefold.launch.concurrent import Runs
from ninefold.ranks import under_torchrun
from ninefold.secrets import redact
from ninefold.study.runner import Study


class Session:
    """A run, or the runs of a sweep. There is one in each process, as Hydra calls us in places."""

    def __init__(self) -> None:
        self.begin()

    def begin(self, here: bool = False, debug: bool = False) -> None:
        """Forget another command of this process.

        here: this process is the command, and not one that another launcher than Hydra's basic one
        runs a sweep's jobs in. debug: HYDRA_FULL_ERROR was set by the user.
        """
        self.here, self.debug = here, debug
        self.started = time.time()
        self.told: int | None = None  # the signal that this command received
        self.checked: Job | None = None  # what Hydra's callback has found to be right
        self.runs = 0
        self.beside: Runs | None = None  # where another launcher than Hydra's basic one has them
        self.codes: list[int] = []  # of the failures
        self.sweep: Path | None = None
        self.study_name: str | None = None
        self.study: Study | None = None  # None too for a sweep that is not run in rounds


SESSION = Session()


def heed_signals() -> None:
    """From here on raise KeyboardInterrupt when this command is told to stop."""
    for number in signals.heeded():
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    first = SESSION.told is None
    SESSION.told = number  # the exception alone could be lost in somebody's destructor
    if SESSION.beside is not None:
        if first:
            SESSION.beside.stop(number)
        elif number != signal.SIGINT:
            return  # they are being waited for
    raise KeyboardInterrupt(number)


def require_undisturbed() -> None:
    """Raise KeyboardInterrupt if this command was told to stop."""
    if SESSION.told is not None:
        raise KeyboardInterrupt(SESSION.told)


def failure_of(error: Exception) -> Failure:
    """`error` as one line: what Hydra says of a configuration, the system of a file, or a bug."""
    if isinstance(error, Failure):
        return error
    if SESSION.debug:
        print(redact("".join(traceback.format_exception(error))), file=sys.stderr)
    if short := memory_failure(error, "a run needs a few GB to import torch alone"):
        return short
    if isinstance(error, HydraException | OmegaConfBaseException | YAMLError):
        return overrides.of_composition(error, ROOT / "conf", sys.argv[1:])
    if isinstance(error, OSError):
        return resource_failure(
            error, "a run writes its folder", "choose another hydra.run.dir or hydra.sweep.dir"
        )
    if odd := overrides.of_flags(error, sys.argv[1:]):
        return odd
    what = f"{type(error).__name__}: {error}"
    if plugin := overrides.plugin_of(error):
        given = isinstance(error, ValueError | TypeError | KeyError)
        return (ConfigError if given else ResourceError)(
            "hydra", plugin, what, "this Hydra plugin gave up",
            "correct what it was given; HYDRA_FULL_ERROR=1 shows where",
        )  # fmt: skip
    return Failure("ninefold", "bug", what, "HYDRA_FULL_ERROR=1 shows where", "please report it")


def report(failures: Sequence[Failure]) -> None:
    """A line on stderr for each failure."""
    for failure in failures:
        print(failure, file=sys.stderr, flush=True)


def first_to_report(failure: Failure) -> bool:
    """Whether this process is the one to print `failure`: of several ranks, one is."""
    if not under_torchrun():
        return True
    from ninefold.launch import torchrun

    try:
        return torchrun.first_to_report(failure)
    except ConfigError:  # no store to agree through, on any rank
        return os.environ["RANK"] == "0"
    except Failure:  # this one cannot reach it
        return True


def refuse(failures: Sequence[Failure]) -> NoReturn:
    """Report `failures` and raise SystemExit with the code of the first."""
    report(failures)
    raise SystemExit(failures[0].code)


def leave(code: int) -> NoReturn:
    """Exit; under torchrun at once, or what is torn down might wait for peers that are gone."""
    if under_torchrun():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
