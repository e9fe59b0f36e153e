"""Measure which parallel strategy and which precision to train with, and train with the answer."""

from __future__ import annotations

import os
import sys
from importlib import import_module


def look_in_working_folder() -> None:
    """Have modules in the working folder found, after those of all packages.

    `python -m` looks there first, a script in its own folder: a file of the user's there would be
    imported in the place of a package, and a copy of ninefold by half.
    """
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        return
    if not sys.flags.safe_path:  # -P, PYTHONSAFEPATH
        sys.path[:] = [*sys.path[1:], here]


# `python -m ninefold.report` imports this before all else: the modules that follow are Python's.
if sys.argv[:1] == ["-m"] and any(word.startswith("ninefold") for word in sys.orig_argv):
    look_in_working_folder()

TYPE_CHECKING = False  # True for a type checker; typing itself is not imported for a name in it
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"
# What programs call, and the module that has it: it is imported when it is asked for.
_PUBLIC = {
    "Answer": "ninefold.api.answer",
    "Times": "ninefold.answer.times",
    "compare": "ninefold.api.compare",
    "fits": "ninefold.api.fits",
    "load": "ninefold.api.load",
    "time_steps": "ninefold.api.steps",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
