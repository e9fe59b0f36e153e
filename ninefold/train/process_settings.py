"""Settings of a whole process: malloc and the random generators."""

from __future__ import annotations

import ctypes
import platform
import random
from collections.abc import Sequence

import numpy as np
import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -3, -4, -8  # glibc's malloc.h
LARGE = 1 << 20  # bytes


def keep_freed() -> None:
    """Have malloc keep freed memory, so that a step reuses the memory of the step before.

    By default glibc returns large blocks to the kernel at once, which gives them back page by
    page, filled with zeros: 1.2 GB in a step of AlexNet on a CPU. With an arena for each thread, a
    batch that a loader thread has read would not take the memory of an earlier one: 4 threads kept
    1.7 times what their batches need. Other C libraries are left as they are.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)
        mallopt(M_ARENA_MAX, 1)


def give_back_freed() -> None:
    """Have malloc return freed blocks of LARGE bytes to the kernel at once.

    So does glibc by default, until it has learned from a program's use not to.
    Where parameters are gathered for a short time only, memory that is kept would be as much as if
    they were never dropped.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)


def seed_generators(seed: int, gpus: Sequence[int] = ()) -> None:
    """Seed every random generator that training uses; those of several `gpus` differ."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # of all GPUs too, so that replicas would drop the same elements
    for index, each in seeds_of(gpus, seed).items():
        torch.cuda.default_generators[index].manual_seed(each)


def seeds_of(gpus: Sequence[int], seed: int) -> dict[int, int]:
    """The seed of each GPU of a process, by its index: the first has the process's own."""
    return {index: seed + 7919 * number for number, index in enumerate(gpus)}
