"""The environment of a result: versions, driver, commit, machine and time."""

from __future__ import annotations

import math
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import torch

from ninefold.machine import cores, cpu, gpu_variables, installed, this_host
from ninefold.measure.devices import power_limit
from ninefold.places import INSTALLED, ROOT

COMMIT = "COMMIT"  # the file that names the commit of a copy, see benchmarks/gpu.py


def environment(processes: int = 1, gpus: Sequence[int] = ()) -> dict[str, Any]:
    """Versions, driver, commit, machine and time (UTC) of this process.

    processes: of the run, all on this host. gpus: numbers of those of this process.
    """
    packages = ("ninefold", "torchvision", "hydra-core", "omegaconf", "numpy")
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        **{package: installed(package) for package in packages},
    }
    git = ("git", "-C", str(ROOT))
    file = ROOT / COMMIT  # it counts first: the repository of a folder around is another
    packed = file.read_text().strip() if file.is_file() else None
    other = packed or INSTALLED
    commit = packed if other else _output(*git, "rev-parse", "HEAD")
    changes = None if other else _output(*git, "status", "--porcelain", "--untracked-files=no")
    return {
        "versions": versions,
        "platform": platform.platform(),
        "driver": _driver() if torch.cuda.is_available() else None,
        "variables": gpu_variables(),
        "power_limits": [round(w) for w in map(power_limit, gpus) if not math.isnan(w)] or None,
        "commit": commit,
        "dirty": bool(changes) if commit else None,
        "hostname": platform.node(),
        "cpu": cpu(),
        "cores": cores(),
        "hosts": [{"name": platform.node(), **this_host(), "ranks": list(range(processes))}],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _driver() -> str | None:
    """The version of NVIDIA's driver; nvidia-smi says it too, but takes up to 2 s."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
