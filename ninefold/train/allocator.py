"""What the C library does with memory that is freed."""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h


def keep_freed() -> None:
    """Have malloc keep what is freed, so that a step works in the memory of the one before.

    By default glibc returns large blocks to the kernel at once, and gets them back page by page,
    each filled with zeros: 1.2 GB of a step of AlexNet on a CPU. What else there is in place of
    glibc is left as it is.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)
