"""Functions that run in processes forked from the one of a test.

A forked child has its parent's memory, but only the thread that forked: a lock that another thread
held at that moment stays locked. So what starts a thread is started after the fork, if it can be.
"""

import faulthandler
import gc
import os
import sys
import traceback
import warnings
from collections.abc import Callable

import torch

LONGEST = 1200  # seconds that a process may take: then it prints where it is, and ends with 1


def fork(child: Callable[[], object]) -> int:
    """Fork a process that runs `child` and ends by os._exit; returns its process id.

    Its exit code is 0, or 1 if `child` raises; after LONGEST seconds it is ended with 1.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: other threads may run
        process = os.fork()
    if process:
        return process
    gc.freeze()  # a store among its parent's garbage would join a thread that is not here
    status = 1
    try:
        faulthandler.dump_traceback_later(LONGEST, exit=True)
        torch.set_num_threads(1)  # OpenMP would wait for its parent's threads
        child()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def exit_code(process: int) -> int:
    """Wait for a process that was forked from this one."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
