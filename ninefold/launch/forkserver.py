"""The process that workers are forked from, warm with everything they import."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from ninefold.errors import ResourceError
from ninefold.machine import gpu_driver
from ninefold.signals import SIGNALS

ROOT = Path(__file__).parents[2]
LAUNCHER = "NINEFOLD_LAUNCHER"  # see launch.preload, which must not be imported here
QUIET = ("PYTHONWARNINGS", "ignore::UserWarning:multiprocessing.resource_tracker", ",")


def start(job: Mapping[str, Any]) -> None:
    """Start the forkserver, with the modules of `job`'s targets imported; the first call decides.

    It imports torch in a process of its own while this one goes on.
    """
    modules = ["ninefold.launch.preload", "ninefold.launch.worker", *_target_modules(job)]
    if not gpu_driver():
        # The first optimizer of a process imports it, which takes 0.8 s. Beside a GPU that is left
        # to each worker: if it asked the driver anything here, no worker could use CUDA.
        modules.append("torch._dynamo")
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
    known = multiprocessing.get_all_start_methods()
    if multiprocessing.get_start_method(allow_none=True) not in (None, *known):
        # Joblib's, in a process that it started: workers would be told of it, and do not know it.
        multiprocessing.set_start_method("forkserver", force=True)
    # Multiprocessing's resource tracker, which is started along, would not survive a SIGUSR1 to the
    # process group: it inherits the mask.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        # A forkserver is not told its parent's sys.path (CPython up to 3.12), and silently preloads
        # nothing that it does not find: without launch.preload it would outlive a killed launcher.
        # The tracker tidies up after a killed launcher as well; it need not say so.
        with prepended("PYTHONPATH", str(ROOT), os.pathsep), prepended(*QUIET):
            os.environ[LAUNCHER] = str(os.getpid())
            forkserver.ensure_running()
    finally:
        os.environ.pop(LAUNCHER, None)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def prepended(name: str, value: str, separator: str) -> Iterator[None]:
    """While this lasts the environment variable `name` begins with `value`."""
    before = os.environ.get(name)
    os.environ[name] = value if before is None else value + separator + before
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def require_semaphores() -> None:
    """See that this host has the semaphores with which processes are started.

    Raises ResourceError.
    """
    try:
        multiprocessing.get_context("forkserver").Lock()
    except OSError as error:
        raise ResourceError(
            "file", "/dev/shm", error.strerror or type(error).__name__,
            "worker processes are started with semaphores, which are kept there",
            "mount it (docker run --shm-size=1g), or launch.inline=true for one process",
        ) from error  # fmt: skip


def _target_modules(tree: Any) -> list[str]:
    """The modules that a job's targets live in."""
    found: set[str] = set()
    if isinstance(tree, Mapping):
        if isinstance(tree.get("_target_"), str):
            found.add(tree["_target_"].rpartition(".")[0])
        for value in tree.values():
            found.update(_target_modules(value))
    return sorted(found)
