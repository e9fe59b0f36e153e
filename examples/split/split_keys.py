"""The keys of parallel=split, and what it refuses, for the launcher: it reads them at its start."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from ninefold.config.combinations import Combination, Job
from ninefold.machine import gpu_number, numbers_of
from ninefold.types import Allowed, Count, Filled, If, Section, Whole, different

ONE_KIND = (
    "amp=fp32 and on_nonfinite=stop are allowed where parallel.devices has cpu and GPUs",
    "use these, or GPUs alone",
)


def count(job: Job) -> int:
    """How many devices are named."""
    devices = job["parallel.devices"]
    return len(devices) if isinstance(devices, list) else 0


def different_devices(values: Any) -> bool:
    return not isinstance(values, list) or different(list(map(gpu_number, values)))


DeviceList = Annotated[
    Annotated[
        list[Whole | Annotated[str, Meta(pattern=r"^(cpu|cuda:(0|[1-9][0-9]{0,3}))(?!\n)$")]],
        Meta(min_length=1),
    ]
    | Literal["auto"]
    | None,
    Allowed("auto, null, or a list of different devices such as [0,2] or [cpu,cuda:0], is allowed"),
    If(different_devices),
]


class SplitKeys(Section, kw_only=True):
    """parallel=split"""

    devices: DeviceList = None
    """The devices in the order of the network: numbers of GPUs, or names such as cpu, the first one
    for inputs and losses; null or auto: all GPUs."""
    at: Annotated[
        Annotated[list[Whole | Filled], Meta(min_length=1)] | Literal["auto"],
        Allowed("a list of different names of modules such as [layer3], or auto, is allowed"),
        If(different),
    ] = "auto"
    """The modules of the network with which the next device begins, such as [layer3]; auto: such
    that the devices have about the same number of parameters."""
    chunks: Count = 1
    """Parts of a batch that go through the devices one after the other, so that these work at the
    same time."""


def cuts(job: Job) -> list[str]:
    """The names in parallel.at; none for auto."""
    at = job["parallel.at"]
    return [str(name) for name in at] if isinstance(at, list) else []


def cpu_and_gpus(job: Job) -> bool:
    """Whether parts of the network are on the CPU, the first device, and others on GPUs."""
    devices = job["parallel.devices"]
    named = isinstance(devices, list)
    return named and gpu_number(devices[0]) is None and bool(numbers_of(devices))


def cpu_is_not_first(job: Job) -> bool:
    """Whether a device after the first one is the CPU."""
    return count(job) > 1 and None in map(gpu_number, job["parallel.devices"][1:])


def full_precision(job: Job) -> bool:
    return job["amp.dtype"] in (None, "float32")


REFUSED = (
    Combination(
        "parallel.devices",
        cpu_is_not_first,
        "cpu is not the first device",
        "the loss goes to the first one, and values that a GPU sends "
        "to the CPU are only there once that waits for them",
        "name cpu first",
    ),
    Combination(
        "parallel.at",
        lambda job: cuts(job) and count(job) > 1 and count(job) != len(cuts(job)) + 1,
        "it cuts the network into {parts} parts",
        "parallel.devices={parallel.devices} are {count} devices",
        "name {modules} modules, or {parts} devices",
        {
            "parts": lambda job: len(cuts(job)) + 1,
            "count": count,
            "modules": lambda job: count(job) - 1,
        },
    ),
    Combination(
        "compile.mode",
        lambda job: count(job) > 1 and job["compile.mode"] is not None,
        "parallel.devices={parallel.devices} are {count} devices",
        "a network on one device can be compiled",
        "leave one of them out",
        {"count": count},
    ),
    Combination(
        "amp.dtype",
        lambda job: cpu_and_gpus(job) and not full_precision(job),
        "it is entered for one kind of device",
        *ONE_KIND,
    ),
    Combination(
        "amp.scaler",
        lambda job: cpu_and_gpus(job) and full_precision(job) and job["amp.scaler"],
        "a GradScaler is of one kind of device",
        *ONE_KIND,
    ),
    Combination(
        "on_nonfinite",
        lambda job: (
            cpu_and_gpus(job)
            and full_precision(job)
            and not job["amp.scaler"]
            and job["on_nonfinite"] == "skip"
        ),
        "it takes a GradScaler, which is of one kind of device",
        *ONE_KIND,
    ),
)
