"""Imported first in the forkserver: it dies with the launcher, and blocks signals for workers.

Workers hold the write end of the pipe by which a forkserver notices that its parent has ended, so
without the kernel's signal it would outlive a killed launcher together with them. A signal to the
whole process group must not end it either: its workers would die before they could save. A worker
inherits the blocked signals and receives them when it is ready to act on them. A preloaded module
can act in the forkserver only while it is imported, so this one does.

Garbage collection is off during the imports that follow: it takes a third of their time and finds
nothing. Workers turn it on again.

Modules are looked for where the launcher looks for them. Those of the job's classes are imported
here. One that cannot be imported is left to the launcher or the worker that needs it, which say so
in one line.
"""

import gc
import importlib
import json
import os
import signal
from contextlib import suppress

from ninefold.places import take_path
from ninefold.signals import SIGNALS, follow_parent

FORKSERVER = os.getpid()  # the parent of the workers
# JSON: `launcher`, the process id of the forkserver's parent; `targets`, names of modules;
# `safe_path`, PYTHONSAFEPATH as the command had it; `asks_nvml`, whether workers are to unset what
# has torch ask NVML. There is none where multiprocessing restarts a killed forkserver.
TOLD = "NINEFOLD_FORKSERVER"

told = json.loads(os.environ.pop(TOLD, "{}"))
take_path()
follow_parent(told.get("launcher"))
gc.disable()
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
os.environ.pop("PYTHONSAFEPATH", None)  # programs that users start may rely on it
if told.get("safe_path") is not None:
    os.environ["PYTHONSAFEPATH"] = told["safe_path"]
for name in told.get("targets", ()):
    with suppress(BaseException):  # sys.exit too
        importlib.import_module(name)
    if os.getpid() != FORKSERVER:  # it forks, and lets its child go on
        os._exit(1)
