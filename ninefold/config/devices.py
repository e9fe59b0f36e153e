"""What cannot be combined with the devices that a job names: `device`, `parallel.devices`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninefold.errors import ConfigError, Failure
from ninefold.machine import gpu_number, numbers_of
from ninefold.types import GpuNumbers, accepts, allowed

FIELD = "parallel.devices"


def problems(job: Mapping[str, Any]) -> list[Failure]:
    """What is at odds with the named devices in `job`, a resolved configuration."""
    parallel, device = job.get("parallel"), job.get("device", "auto")
    if not isinstance(parallel, Mapping):
        return []
    chosen = parallel.get("devices")
    if isinstance(device, str) and ":" in device and "devices" in parallel:
        number = device.partition(":")[2]
        return [
            ConfigError(
                "device",
                device,
                "this strategy takes several GPUs; auto, cpu and cuda are allowed with it; set "
                f"parallel.devices=[{number}], or parallel=none",
            )
        ]
    if device == "cpu" and numbers_of(chosen):
        return [
            ConfigError(
                FIELD,
                listed(chosen),
                "these are GPUs, device is cpu; null is allowed on a CPU; leave one of them out",
            )
        ]
    if "at" in parallel:
        return _of_parts(job, parallel, chosen)
    if not accepts(GpuNumbers, chosen):
        return [
            ConfigError(
                FIELD,
                listed(chosen),
                "this strategy has a copy of the network on each device, all of them GPUs; "
                f"{allowed(GpuNumbers)}; set parallel.devices=null, or parallel=split",
            )
        ]
    return []


def listed(devices: object) -> object:
    """A list of devices as it is written on a command line."""
    return f"[{', '.join(map(str, devices))}]" if isinstance(devices, list) else devices


def _of_parts(job: Mapping[str, Any], parallel: Mapping[str, Any], chosen: Any) -> list[Failure]:
    """What is wrong for a strategy that has parts of the network on several devices."""
    at = parallel.get("at")
    cuts = [str(name) for name in at] if isinstance(at, list) else []
    found = _within_recomputed(cuts, job.get("checkpoint_activations"))
    if not isinstance(chosen, list):
        return found
    if None in map(gpu_number, chosen[1:]):
        found.append(
            ConfigError(
                FIELD,
                listed(chosen),
                "cpu is not the first device; the loss goes to the first one, and values that a "
                "GPU sends to the CPU are only there once that waits for them; name cpu first",
            )
        )
    if cuts and len(chosen) not in (1, len(cuts) + 1):
        found.append(
            ConfigError(
                "parallel.at",
                listed(at),
                f"it cuts the network into {len(cuts) + 1} parts; "
                f"parallel.devices={listed(chosen)} are {len(chosen)} devices; name "
                f"{len(chosen) - 1} modules, or {len(cuts) + 1} devices",
            )
        )
    mode = _section(job, "compile").get("mode")
    if mode is not None and len(chosen) > 1:
        found.append(
            ConfigError(
                "compile.mode",
                mode,
                f"parallel.devices={listed(chosen)} are {len(chosen)} devices; a network on one "
                "device can be compiled; leave one of them out",
            )
        )
    if numbers_of(chosen) and gpu_number(chosen[0]) is None:
        found += _of_two_kinds(job)
    return found


def _within_recomputed(cuts: Sequence[str], recomputed: object) -> list[Failure]:
    """Failures for cuts inside parts of `checkpoint_activations`.

    Such a part draws the random numbers of its dropout again, on the device of its input alone.
    """
    parts = recomputed if isinstance(recomputed, list) else []
    return [
        ConfigError(
            "parallel.at",
            f"[{', '.join(cuts)}]",
            f"{cut} is within {part}, a part of checkpoint_activations; such a part is computed "
            "again on one device; cut elsewhere, or name smaller parts",
        )
        for cut in cuts
        for part in parts
        if cut.startswith(f"{part}.")
    ]


def _of_two_kinds(job: Mapping[str, Any]) -> list[Failure]:
    """Failures for precisions that the CPU and a GPU do not share."""
    amp = _section(job, "amp")
    dtype = amp.get("dtype", "float32")
    if dtype != "float32":
        field, value, wrong = "amp.dtype", dtype, "it is entered for one kind of device"
    elif amp.get("scaler"):
        field, value, wrong = "amp.scaler", "true", "a GradScaler is of one kind of device"
    elif job.get("on_nonfinite") == "skip":
        field, value = "on_nonfinite", "skip"
        wrong = "it takes a GradScaler, which is of one kind of device"
    else:
        return []
    return [
        ConfigError(
            field,
            value,
            f"{wrong}; amp=fp32 and on_nonfinite=stop are allowed where parallel.devices has cpu "
            "and GPUs; use these, or GPUs alone",
        )
    ]


def _section(job: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    node = job.get(name)
    return node if isinstance(node, Mapping) else {}
