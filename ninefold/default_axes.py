"""What `ninefold compare` compares by default: what differs here, and is safe without a score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ninefold import machine

BF16_FROM = (8, 0)  # compute capability of GPUs with bfloat16 and TF32
ONE = "bf16 is not compared, as this CPU has no instructions for it; amp=fp32,bf16 compares it."


def axes(device: str) -> dict[str, str]:
    """Return the strategies and the precisions that are compared on `device` unless others are
    asked for, as overrides have them.

    device: auto, cpu, cuda or cuda:N. Imports torch only where this host has GPUs, or one is named.
    """
    gpus = machine.count_gpus(device == "auto") if device != "cpu" else 0
    _, named, number = device.partition(":")
    numbers = [int(number)] if named and number.isdecimal() else range(gpus)
    short = machine.computes_in_bfloat16() is not False
    return of(min(gpus, 1) if named else gpus, _capability(numbers) if gpus else None, short)


def of(gpus: int, capability: tuple[int, int] | None, short: bool) -> dict[str, str]:
    """Return the axes of a machine with so many GPUs.

    capability: the lowest of theirs, if known. short: whether the CPU computes in bfloat16; without
    instructions for it a step takes up to five times as long, and so would the comparison.

    DataParallel is left out: on one device it repeats none, and on several DDP is faster. So is
    float16 without a GradScaler, which only a score could allow.
    """
    strategies = "none" if gpus == 1 else "none,ddp"
    if not gpus:
        return {"parallel": strategies, "amp": "fp32,bf16" if short else "fp32"}
    modern = capability is not None and capability >= BF16_FROM
    return {"parallel": strategies, "amp": "fp32,tf32,bf16" if modern else "fp32,scaler"}


def left_out(found: Mapping[str, str]) -> list[str]:
    """Return what is to be said of these default axes, in sentences."""
    return [] if "," in found["amp"] else [ONE]


def _capability(numbers: Iterable[int]) -> tuple[int, int] | None:
    """The lowest of these GPUs of torch's, by NVIDIA's driver; None: not known. Starts no CUDA."""
    import pynvml
    import torch

    try:
        pynvml.nvmlInit()
        try:
            there = [torch.cuda._get_nvml_device_index(number) for number in numbers]
        except (AttributeError, LookupError, RuntimeError):  # a part of a GPU, by its name
            there = [*range(pynvml.nvmlDeviceGetCount())]
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, there)
        return min(tuple(pynvml.nvmlDeviceGetCudaComputeCapability(each)) for each in handles)
    except (pynvml.NVMLError, ValueError):  # there is no driver, or no GPU
        return None
