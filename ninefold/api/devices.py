"""Accelerators, of whatever kind torch has: those in use, and their random states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def in_use(accelerator: Any = torch.accelerator) -> list[int]:
    """The numbers of the accelerators that this process uses; empty where it uses none.

    To ask another one for anything would begin to use it, which takes memory of it.
    accelerator: torch's module of that name.
    """
    there = accelerator.is_available()
    if not (there and getattr(module(accelerator), "is_initialized", lambda: True)()):  # MPS: none
        return []
    current, count = accelerator.current_device_index(), accelerator.device_count()
    return [n for n in range(count) if count > 1 and accelerator.memory_reserved(n)] or [current]


def random_state(accelerator: Any = torch.accelerator) -> Callable[[], None]:
    """Keep the random states of torch's generators; return what puts them back."""
    on_cpu = torch.get_rng_state()
    numbers = in_use(accelerator)
    of_devices = module(accelerator) if numbers else None
    several = hasattr(of_devices, "get_rng_state_all")  # MPS has one device, and no such function
    states: Any = None
    if of_devices is not None:
        states = of_devices.get_rng_state_all() if several else of_devices.get_rng_state()

    def put_back() -> None:
        torch.set_rng_state(on_cpu)
        if of_devices is not None:
            (of_devices.set_rng_state_all if several else of_devices.set_rng_state)(states)

    return put_back


def module(accelerator: Any) -> Any:
    """torch.cuda, torch.mps, torch.xpu or what belongs to the current accelerator."""
    return torch.get_device_module(accelerator.current_accelerator())
