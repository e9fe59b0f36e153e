"""Accelerators, of whatever kind torch has: those in use."""

from __future__ import annotations

from typing import Any

import torch


def in_use(accelerator: Any = torch.accelerator) -> list[int]:
    """The numbers of the accelerators that this process uses; empty where it uses none.

    To ask another one for anything would begin to use it, which takes memory of it.
    accelerator: torch's module of that name.
    """
    if not accelerator.is_available():
        return []
    module = torch.get_device_module(accelerator.current_accelerator())
    if not getattr(module, "is_initialized", lambda: True)():  # MPS has no such function
        return []
    current, count = accelerator.current_device_index(), accelerator.device_count()
    return [n for n in range(count) if count > 1 and accelerator.memory_reserved(n)] or [current]
