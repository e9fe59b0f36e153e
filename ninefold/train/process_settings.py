"""Settings of malloc, for a whole process."""

from __future__ import annotations

import ctypes
import platform

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
