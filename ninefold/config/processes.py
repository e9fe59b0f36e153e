"""The number of processes of a run."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from ninefold import machine
from ninefold.errors import ConfigError
from ninefold.numbers import counted
from ninefold.ranks import found, started_by
from ninefold.types import spelled


def number(wanted: Any, most: int | None, job: Mapping[str, Any], strategy: object) -> int:
    """The number of processes that parallel.processes=`wanted` means on this machine.

    most: how many the strategy can use; None: any number.
    job: the resolved job.
    strategy: the chosen option of `parallel`.

    Raises ConfigError if that number cannot be used.
    """
    if wanted != "auto":  # most mistakes show before torch is imported to look for GPUs
        _require_fitting(wanted, most, job, strategy)
    device, chosen = job["device"], job["parallel"].get("devices")
    named = named_gpus(device, chosen)
    looks = named or (device != "cpu" and (device != "auto" or most != 1))
    gpus = machine.count_gpus(looks=False) if looks else 0
    if named is not None:
        by_number = machine.numbers_of(chosen) is None
        field, value = ("device", device) if by_number else ("parallel.devices", spelled(chosen))
        if max(named, default=-1) >= gpus:
            machine.require_gpus(field, value, named, machine.gpus())
        gpus = len(named)
    if device == "cuda" and not gpus:
        do = "use device=cpu or device=auto"
        raise ConfigError("device", "cuda", "no usable GPU", "this machine has a CPU", do)
    started = found(os.environ).world_size if started_by() else None
    if wanted == "auto":
        here = started or gpus or job["launch"]["cpu_processes"]
        wanted = int(min(here, most or math.inf))
    _require_fitting(wanted, most, job, strategy)
    if started is not None and wanted != started:
        wrong = f"{started_by()} started {counted(started, 'process', 'processes')}"
        allowed = f"parallel={strategy} wants {wanted}"
        do = f"have it start {wanted}, or choose parallel=ddp with parallel.processes=auto"
        raise ConfigError("parallel.processes", wanted, wrong, allowed, do)
    if started is None and gpus and wanted > gpus:
        allowed = f"{gpus} {'found' if named is None else 'named'}"
        do = f"use parallel.processes={gpus} or device=cpu"
        raise ConfigError("parallel.processes", wanted, "more processes than GPUs", allowed, do)
    return int(wanted)


def named_gpus(device: str, chosen: list[int | str] | str | None) -> list[int] | None:
    """The GPUs that parallel.devices=`chosen` or else device=cuda:N names; None if neither does."""
    _, named, gpu = device.partition(":")
    numbers = machine.numbers_of(chosen)
    return [int(gpu)] if numbers is None and named else numbers


def _require_fitting(
    wanted: int, most: int | None, job: Mapping[str, Any], strategy: object
) -> None:
    """Raise ConfigError unless strategy, launcher and batch allow this number of processes."""
    if most is not None and wanted > most:
        wrong = f"parallel={strategy} runs in {counted(most, 'process', 'processes')}"
        allowed = f"parallel.max_processes={most} allows no more"
        raise ConfigError("parallel.processes", wanted, wrong, allowed, "use parallel=ddp")
    if job["launch"]["inline"] and wanted != 1:
        wrong = f"the job has {wanted} processes"
        allowed = "one process can run inline"
        raise ConfigError("launch.inline", "true", wrong, allowed, "set parallel.processes=1")
    if "accumulate" in job:  # an evaluation's batches need not divide
        require_division(job["batch_size"], wanted, job["accumulate"])
        require_pairs(job["batch_size"], wanted, job["augment"]["mixup"])


def require_division(batch_size: int, processes: int, accumulate: int) -> None:
    """Raise ConfigError unless the batch divides evenly by processes and micro-batches."""
    each, rest = divmod(batch_size, processes)
    if rest == 0 and each % accumulate == 0:
        return
    if rest == 0:
        wrong = f"the {counted(each, 'example')} of a process cannot be divided so"
        do = f"choose a divisor of {each}"
        raise ConfigError("accumulate", accumulate, wrong, "micro-batches are equal", do)
    parts = processes * accumulate
    below, above = batch_size // parts * parts, -(-batch_size // parts) * parts
    wrong = f"does not divide by {processes} processes"
    allowed = "batch_size is global: every process takes an equal part"
    do = f"choose {f'{below} or ' if below else ''}{above}"
    raise ConfigError("batch_size", batch_size, wrong, allowed, do)


def require_pairs(batch_size: int, processes: int, mixup: float) -> None:
    """Raise ConfigError unless a process can pair its examples, where mixup mixes them."""
    each = batch_size // processes
    if mixup and each % 2:
        wrong = f"{counted(processes, 'process', 'processes')} with {counted(each, 'example')} each"
        allowed = "mixup mixes pairs, so an even number is allowed"
        raise ConfigError("batch_size", batch_size, wrong, allowed, "choose another batch_size")
