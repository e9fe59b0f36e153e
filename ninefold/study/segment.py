"""What runs of a study must have in common to be compared: code, machine and launcher."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from typing import Any

from ninefold.config.fingerprint import code
from ninefold.machine import cores, cpu, gpu_models, installed
from ninefold.types import spelled


def of(targets: Iterable[str], launcher: str) -> dict[str, Any]:
    """The entry in sweep.json. The launcher counts, as concurrent runs take longer."""
    return {"code": code(targets), "machine": machine(), "launcher": launcher}


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Changes of code, launcher and machine."""
    found = ["code"] if before["code"] != now["code"] else []
    if (was := before.get("launcher", "basic")) != now["launcher"]:
        found.append(f"hydra/launcher={now['launcher']} (was {was})")
    return found + [
        f"{key}={spelled(value)} (was {spelled(before['machine'].get(key))})"
        for key, value in now["machine"].items()
        if value != before["machine"].get(key)
    ]


def machine() -> dict[str, Any]:
    """Versions, CPU and GPUs, as far as they are known without importing torch."""
    return {
        "python": platform.python_version(),
        "torch": installed("torch"),
        "torchvision": installed("torchvision"),
        "cpu": cpu(),
        "cores": cores(),
        "gpus": gpu_models(),
        "visible": _visible_gpus(),
    }


def _visible_gpus() -> int | None:
    """How many GPUs a run may use; None: all. Which of them, a scheduler chooses each time."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    return sum(each.strip() not in ("", "-1") for each in visible.split(","))
