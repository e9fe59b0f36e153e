"""The environment of a result: versions, driver, commit, machine and time."""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from ninefold.machine import cores, cpu, installed, this_host
from ninefold.places import INSTALLED, ROOT

COMMIT = "COMMIT"  # the file of a packed copy, see `benchmarks.gpu --pack`


def environment(processes: int = 1) -> dict[str, Any]:
    """Versions, driver, commit, machine and time (UTC) of this process.

    processes: of the run, all on this host.
    """
    versions: dict[str, str | None] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
    }
    for package in ("ninefold", "torchvision", "hydra-core", "omegaconf", "numpy"):
        versions[package] = installed(package)
    git = ("git", "-C", str(ROOT))
    packed = _packed_commit(ROOT)  # it counts first: the repository of a folder around is another
    other = packed or INSTALLED
    commit = packed if other else _output(*git, "rev-parse", "HEAD")
    changes = None if other else _output(*git, "status", "--porcelain", "--untracked-files=no")
    return {
        "versions": versions,
        "platform": platform.platform(),
        "driver": _driver() if torch.cuda.is_available() else None,
        "commit": commit,
        "dirty": bool(changes) if commit else None,
        "hostname": platform.node(),
        "cpu": cpu(),
        "cores": cores(),
        "hosts": [{"name": platform.node(), **this_host(), "ranks": list(range(processes))}],
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _packed_commit(root: Path) -> str | None:
    """The commit that files without their repository were copied from, as they say themselves."""
    file = root / COMMIT
    return file.read_text().strip() if file.is_file() else None


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
