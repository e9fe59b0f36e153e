"""Sets how a process computes: malloc, kernels of cuDNN, memory format, torch.compile."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

import torch
from torch import Tensor, nn

from ninefold.dataset.arrays import specs
from ninefold.engine.amp import Amp
from ninefold.engine.parallel import RankContext
from ninefold.errors import ConfigError
from ninefold.tree import Tree, leaves

AUTO, CONTIGUOUS = "auto", "contiguous_format"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # glibc's malloc.h
GRAPHS_FROM = 3  # the step from which on a CUDA graph is replayed, after warm-up and recording


def memory_format(
    wanted: str, shape: Tree, amp: Amp, device: torch.device, contiguous: bool = False
) -> str:
    """The name of the memory format that model.memory_format=`wanted` means.

    auto: channels last, which tensor cores and CPUs prefer. But contiguous on CUDA where products
    are computed in full float32: those kernels use no tensor cores, and are slower with channels
    last. And contiguous where the strategy keeps its parameters so, and for other inputs than
    images and volumes.
    shape: of an example, a tree of shapes where it has several inputs. amp: settled on `device`.
    contiguous: whether the strategy does.
    """
    if wanted != AUTO:
        return wanted
    if contiguous or (device.type == "cuda" and amp.full_float32(device)):
        return CONTIGUOUS
    return channels_last(shape)


def channels_last(shape: Tree) -> str:
    """The memory format for inputs of this shape that has channels last; contiguous for others."""
    axes = {len(each.shape) for each in leaves(specs(shape))}
    last = {4: "channels_last_3d", 3: "channels_last"}
    return next((name for count, name in last.items() if count in axes), CONTIGUOUS)


def require_one_kind(amp: Amp, context: RankContext) -> None:
    """Raise ConfigError if this process would enter autocast for one of two kinds of device."""
    if amp.dtype != "float32" and len({device.type for device in context.devices}) > 1:
        wrong = "it is entered for one kind of device"
        allowed = "parts of the network are on the CPU and on GPUs"
        raise ConfigError("amp.dtype", amp.dtype, wrong, allowed, "use amp=fp32, or GPUs alone")


def choose_kernels(deterministic: bool, benchmark: bool) -> None:
    """Set this process to deterministic kernels only, and cuDNN to time its algorithms.

    benchmark: the first time that cuDNN sees a shape it tries its algorithms and takes the fastest.
    """
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = benchmark


def notes(
    wanted: str, layout: str, benchmark: bool, context: RankContext, contiguous: bool = False
) -> list[str]:
    """Sentences about what has no effect, or another one than in other configurations, here.

    layout: what model.memory_format=`wanted` means here. benchmark: the key cudnn_benchmark.
    contiguous: whether the strategy keeps its parameters so.
    """
    found = []
    if contiguous and wanted == AUTO:
        found.append(
            "model.memory_format=auto is contiguous here, as parameters that are spread over "
            "processes must be, and may be channels last in other strategies."
        )
    elif contiguous and layout != CONTIGUOUS:
        found.append(
            f"model.memory_format={layout} is that of the inputs: parameters that are spread over "
            "processes are contiguous."
        )
    elif wanted == AUTO and layout == CONTIGUOUS:
        found.append(
            "model.memory_format=auto is contiguous here and channels last in precisions that "
            "tensor cores compute: full float32 does not run on them."
        )
    if benchmark and context.device.type == "cpu":
        found.append("cudnn_benchmark is a no-op on a CPU: cuDNN is a library for GPUs.")
    return found


def keep_freed() -> None:
    """Have malloc keep freed memory, so that a step reuses the memory of the step before.

    By default glibc returns large blocks to the kernel at once, which gives them back page by
    page, filled with zeros: 1.2 GB in a step of AlexNet on a CPU. Each thread keeps its own arena:
    operators allocate in parallel loops, as the backward pass of attention in bfloat16 does. Other
    C libraries are left as they are.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)


def give_back_freed() -> None:
    """Have malloc return what it keeps to the kernel, and freed blocks of 1 MiB or more at once.

    So does glibc by default, until it has learned from a program's use not to. After `keep_freed`
    only the first of the two is done. Where parameters are gathered for a short time only, memory
    that is kept would be as much as if they were never dropped.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
        ctypes.CDLL(None).malloc_trim(0)


class Compiled(nn.Module):
    """The compiled network while training, the plain network while evaluating.

    Evaluation has batches of two sizes, in another mode: each would be compiled for a few passes,
    and the accuracy would not be exactly the one that evaluate.py finds for the checkpoint.
    """

    def __init__(self, network: nn.Module, mode: str, backend: str = "inductor") -> None:
        super().__init__()
        self.network = network
        self.compiled = torch.compile(network, mode=mode, backend=backend, dynamic=False)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        return (self.compiled if self.training else self.network)(*inputs, **named)


def require_one_device(mode: str, context: RankContext) -> None:
    """Raise ConfigError if this process would train on several devices.

    Copies of the network would call the code compiled for the first one, with its weights; parts
    of it would be compiled together, for one device.
    """
    if len(context.devices) > 1:
        wrong = "one process cannot train a compiled network on several devices"
        do = "choose parallel=ddp, show it one GPU (CUDA_VISIBLE_DEVICES=0) or leave compile out"
        raise ConfigError("compile.mode", mode, wrong, f"it has {len(context.devices)} here", do)


def compile_notes(mode: str | None, device: torch.device) -> list[str]:
    """Sentences about what has no effect on a device."""
    if mode != "reduce-overhead" or device.type == "cuda":
        return []
    return [
        "compile.mode=reduce-overhead is a no-op on a CPU beyond compile=true: it records CUDA "
        "graphs."
    ]
