"""What the runs of a study have in common besides their configuration: code and machine."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ninefold.machine import cores, cpu

ROOT = Path(__file__).parents[2]
NVIDIA = Path("/proc/driver/nvidia/gpus")


def code(root: Path = ROOT) -> str:
    """sha256 of everything below `root` that bears on what is trained and how it is measured."""
    digest = hashlib.sha256()
    files = [*root.glob("ninefold/**/*.py"), *root.glob("conf/**/*.yaml"), root / "train.py"]
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def machine() -> dict[str, Any]:
    """Versions, CPU and GPUs, as far as they are known without importing torch."""
    return {
        "python": platform.python_version(),
        "torch": _version("torch"),
        "torchvision": _version("torchvision"),
        "cpu": cpu(),
        "cores": cores(),
        "gpus": _gpus(),
        "visible": _visible(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _visible() -> int | None:
    """How many GPUs a run may use, None: all. Which of them, a scheduler chooses anew each time."""
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        return None
    return sum(each.strip() not in ("", "-1") for each in said.split(","))


def _gpus() -> list[str]:
    """The names that the driver gives for its GPUs."""
    names = []
    for path in sorted(NVIDIA.glob("*/information")):
        for line in path.read_text().splitlines():
            if line.startswith("Model:"):
                names.append(line.partition(":")[2].strip())
    return names
