"""Start the forkserver: the process that workers are forked from, with torch imported."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, process
from typing import Any

from ninefold.config.untrusted import targets_in
from ninefold.machine import gpu_driver
from ninefold.process import SAFE_PATH, importable, replaced, scratch, starting

TOLD = "NINEFOLD_FORKSERVER"  # see launch.preload, which must not be imported here
# The first optimizer of a process imports torch._dynamo, which takes 0.8 s.
PRELOADED = ["ninefold.launch.preload", "ninefold.launch.worker", "torch._dynamo"]
HARMLESS = ("ninefold", "torch", "torchvision")  # their modules call no driver while imported
# torch.cuda.is_available() then asks NVML, which a forked process survives.
WITHOUT_DRIVER = ("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def start(job: Mapping[str, Any]) -> None:
    """Start the forkserver and import the modules of `job`'s targets in it; once per process.

    It imports torch while this process continues.
    """
    modules = {target.rpartition(".")[0] for target in targets_in(job)}
    targets = preloadable(sorted(modules), gpu_driver())
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    config: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
    config.setdefault("tempdir", str(scratch()))  # else a killed command leaves one there
    told = {
        "launcher": os.getpid(),
        "targets": targets,
        "safe_path": os.environ.get(SAFE_PATH[0]),
        "asks_nvml": WITHOUT_DRIVER[0] not in os.environ,
    }
    # A forkserver does not get its parent's sys.path (CPython up to 3.12), and silently skips
    # modules that it does not find: without launch.preload it would outlive a killed launcher.
    with importable(), replaced(TOLD, json.dumps(told)), replaced(*WITHOUT_DRIVER), starting():
        forkserver.ensure_running()


def preloadable(targets: Sequence[str], gpus: bool) -> list[str]:
    """The modules among `targets` that may be imported before workers are forked.

    On a host with GPUs only modules known to leave CUDA alone: after torch.cuda.is_available(),
    which much code calls while it is imported, no process forked from there can use CUDA. Other
    modules are then imported by each worker.
    """
    return [name for name in targets if not gpus or name.partition(".")[0] in HARMLESS]
