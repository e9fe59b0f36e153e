"""This machine: processor, cores, memory, GPUs, versions of packages.

Nothing here imports torch but `gpus`.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninefold.errors import ConfigError

WSL = "/dev/dxg"  # the GPUs of Windows; they are not among those of /proc
GPU_DRIVERS = ("/dev/nvidiactl", WSL, "/dev/nvhost-ctrl")  # Linux, WSL, Jetson
NVIDIA = Path("/proc/driver/nvidia/gpus")
PROCESSOR = Path("/proc/cpuinfo")
OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
_shared_cores: int | None = None
# Variables that change what a GPU computes, or how fast, and tell nothing of the host.
GPU_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING", "NCCL_ALGO", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_PROTO",
    "NCCL_SHM_DISABLE", "NVIDIA_TF32_OVERRIDE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)  # fmt: skip
BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names them; the last one on ARM
# What oneDNN, with which torch computes on a CPU, may use at most; these have none for bfloat16.
MOST = "ONEDNN_MAX_CPU_ISA"
WITHOUT_BFLOAT16 = {*("sse41", "avx", "avx2", "avx2_vnni", "avx512_core", "avx512_core_vnni")}


def installed(package: str) -> str | None:
    """The version of an installed package; None if there is none."""
    # Imported here, as email comes with it: 5 % of the time in which a wrong key is refused.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cores() -> int | None:
    """How many CPUs this process may use all the time, or what `share_cores` was told."""
    if _shared_cores is not None:
        return _shared_cores
    if sys.platform != "linux":
        return os.cpu_count()
    count, limit = len(os.sched_getaffinity(0)), quota()
    return count if limit is None else min(count, max(int(limit.cpus), 1))


@dataclass(frozen=True)
class Quota:
    """A limit on the CPU time of a control group, such as a container's.

    cpus: as many as its processes may use all the time, together. usage: the file that says what
    they have used.
    """

    cpus: float
    usage: Path

    def used(self) -> float:
        """Seconds of CPU time that the processes of the group have used. Raises OSError."""
        last = self.usage.read_text().split()
        return int(last[1]) / 1e6 if last[0] == "usage_usec" else int(last[0]) / 1e9


def quota() -> Quota | None:
    """The tightest quota of the control groups that this process is in; None without one.

    They are groups of version 2, or those of version 1 for cpu.
    """
    found = []
    for first, group in _own_groups("cpu"):
        with suppress(OSError, ValueError):
            if first:
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                most, period = (int((GROUPS / "cpu" / group / name).read_text()) for name in names)
                usage = GROUPS / "cpuacct" / group / "cpuacct.usage"
            else:
                most, period = map(int, (GROUPS / group / "cpu.max").read_text().split())
                usage = GROUPS / group / "cpu.stat"
            if most > 0:  # -1: no limit, which version 2 calls max
                found.append(Quota(most / period, usage))
    return min(found, key=lambda each: each.cpus, default=None)


def _own_groups(controller: str) -> Iterator[tuple[bool, Path]]:
    """The control groups of version 2, and of version 1 for `controller`, that this process is in.

    Yields whether it is of version 1, and its path in GROUPS, or in GROUPS/controller.
    """
    for line in _lines_of(OWN_GROUPS):
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            group = Path(path.lstrip("/"))
            # In a container the path may be the host's: then its root is the group's folder.
            for inner in (group, *group.parents):
                yield bool(controllers), inner


def share_cores(count: int | None) -> None:
    """Have `cores` say `count`: how many the processes of a run on this host may use together."""
    global _shared_cores
    _shared_cores = count


def cpu() -> str:
    """The name of the processor."""
    if not (said := _said_of_processor()):
        return platform.processor()
    names = [value for name, value in said if name == "model name"]
    return names[0] if names else platform.machine()


def computes_in_bfloat16() -> bool | None:
    """Whether the processor has instructions for bfloat16, and ONEDNN_MAX_CPU_ISA allows them.

    None where the system does not tell.
    """
    if os.environ.get(MOST, "").lower() in WITHOUT_BFLOAT16:
        return False
    for name, words in _said_of_processor():
        if name in ("flags", "Features"):  # of x86 and of ARM
            return not BFLOAT16.isdisjoint(words.split())
    return None


def _said_of_processor() -> list[tuple[str, str]]:
    """Names and values in Linux's description of the processor."""
    lines = (line.partition(":") for line in _lines_of(PROCESSOR))
    return [(name.strip(), value.strip()) for name, _, value in lines]


def _lines_of(path: Path) -> list[str]:
    """The lines of a file of the system; none where there is no such file."""
    with suppress(OSError):
        return path.read_text().splitlines()
    return []


def gpu_driver() -> bool:
    """Whether this host has a driver for GPUs, which need not mean that there is one to use."""
    return any(Path(driver).exists() for driver in GPU_DRIVERS)


def gpu_variables() -> dict[str, str]:
    """Those of GPU_VARIABLES that are set."""
    return {name: os.environ[name] for name in GPU_VARIABLES if name in os.environ}


def this_host() -> dict[str, Any]:
    """Its processor, how many cores this process may use, and its GPUs."""
    return {"cpu": cpu(), "cores": cores(), "gpus": gpu_models()}


def gpu_models() -> list[str]:
    """The names that NVIDIA's driver gives for the GPUs of this host. Starts no CUDA."""
    return [
        line.partition(":")[2].strip()
        for path in sorted(NVIDIA.glob("*/information"))
        for line in path.read_text().splitlines()
        if line.startswith("Model:")
    ]


def count_gpus(looks: bool = True) -> int:
    """Return how many GPUs a process may use. looks: whether torch is only asked if there are some.

    Importing torch takes seconds.
    """
    here = not looks or gpu_models() or gpu_driver()
    if not here or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gpus() -> list[str]:
    """Name and memory of each GPU that this process may use. Imports torch, starts CUDA."""
    import torch

    if not torch.cuda.is_available():
        return []
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB)" for gpu in found]


def gpu_number(device: int | str) -> int | None:
    """The number of a GPU that is named by it, or as `cuda:NUMBER`; None for `cpu`."""
    if isinstance(device, int):
        return device
    kind, _, number = device.partition(":")
    return None if kind == "cpu" else int(number)


def numbers_of(devices: Sequence[int | str] | str | None) -> list[int] | None:
    """The numbers of the GPUs in parallel.devices; None for null and auto: all that there are."""
    if devices is None or isinstance(devices, str):
        return None
    return [number for device in devices if (number := gpu_number(device)) is not None]


def require_gpus(field: str, value: object, wanted: Sequence[int], there: Sequence[str]) -> None:
    """Raise ConfigError unless the GPUs numbered `wanted` are among `there`, see `gpus`."""
    missing = [number for number in wanted if number >= len(there)]
    if not missing:
        return
    listed = ", ".join(f"{number} {name}" for number, name in enumerate(there))
    allowed = f"{len(there)} GPU{'s' * (len(there) != 1)}: {listed}" if there else "no GPU found"
    do = "name one of them" if there else "use device=cpu or device=auto"
    raise ConfigError(field, value, f"there is no GPU {missing[0]}", allowed, do)


def available_memory() -> int | None:
    """Bytes of main memory that this host and this process's control groups have left, if known."""
    found = [_meminfo()]
    for first, group in _own_groups("memory"):
        names = ("limit_in_bytes", "usage_in_bytes") if first else ("max", "current")
        folder = GROUPS / "memory" / group if first else GROUPS / group
        found.append(_of_group(folder, *(f"memory.{name}" for name in names)))
    return min((value for value in found if value is not None), default=_physical())


def shared_memory() -> int:
    """Bytes of /dev/shm, where processes hand batches over; Docker gives it 64 MB.

    In use or not: cells of a study start one after another, and are to read alike.
    """
    with suppress(OSError):
        return shutil.disk_usage("/dev/shm").total
    return 0


def _meminfo() -> int | None:
    lines = _lines_of(Path("/proc/meminfo"))
    sizes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(sizes[0]) * 1024 if sizes else None


def _of_group(folder: Path, limit: str, usage: str) -> int | None:
    """Bytes that a control group has left, where cached files count as free."""
    try:
        most, used = (int((folder / name).read_text()) for name in (limit, usage))
        lines = (folder / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # there is none, or no limit
        return None
    cached = [line.split()[1] for line in lines if line.startswith("inactive_file ")]
    return max(most - used + sum(map(int, cached)), 0)


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
