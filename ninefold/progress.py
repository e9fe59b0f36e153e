"""Progress bars."""

from __future__ import annotations

import threading
from typing import Any

from tqdm import tqdm


def bar(*arguments: Any, **options: Any) -> tqdm[Any]:
    """A tqdm bar on stderr, shown on a terminal only, that locks among this process's threads.

    tqdm's own lock is a named semaphore, which a process that is killed leaves behind.
    """
    tqdm.set_lock(threading.RLock())
    return tqdm(*arguments, **{"disable": None, "leave": False, **options})
