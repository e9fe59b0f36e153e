"""What the driver says of a GPU through NVML; NaN for all that it does not say."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

# Bits of nvmlDeviceGetCurrentClocksThrottleReasons, in NVML's words. An idle GPU is no reason.
REASONS = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


def state(index: int) -> list[float]:
    """SM clock in MHz, temperature in °C and the bits of REASONS; `index` is torch's of a GPU."""
    return [
        _ask(index, lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
        _ask(
            index, lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)
        ),
        _ask(index, lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
    ]


def joules(index: int) -> float:
    """Energy that a GPU has used since its driver was loaded; counted from Volta on."""
    return _ask(index, lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)) / 1000


def reasons(bits: int) -> list[str]:
    """The names of the throttle reasons in `bits`."""
    return [name for bit, name in REASONS.items() if bits & bit]


def _ask(index: int, question: Callable[[Any, Any], float]) -> float:
    try:
        return float(question(*_gpu(index)))
    except Exception:  # of many types: no library, no driver, no such GPU, not on this kind of it
        return math.nan


@functools.cache
def _gpu(index: int) -> tuple[Any, Any]:
    """The library, and its handle of a GPU: by UUID, as CUDA_VISIBLE_DEVICES numbers them anew."""
    import pynvml

    pynvml.nvmlInit()
    uuid = torch.cuda.get_device_properties(index).uuid
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
