"""Die with the parent process, even when it is killed with SIGKILL."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def follow_parent() -> None:
    """Ask the kernel for SIGKILL when the parent dies. Linux only; elsewhere nothing happens."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before the request was in force
        os.kill(os.getpid(), signal.SIGKILL)
