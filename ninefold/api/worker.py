"""The process of one step in one round of `ninefold.time_steps(..., processes="new")`.

    python -m ninefold.api.worker PARENT FILE SHA256 NAME

builds a step from its factory in a file of objects, takes it once, and answers `{"ready": true}`.
Then it reads turns from stdin, `{"lead": 4, "timed": 8}` on a line, and answers the seconds of a
timed call. The line of an error is its last; it ends when stdin does, so with its parent.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from typing import Any

import cloudpickle

from ninefold import places
from ninefold.api import capsule
from ninefold.api.calls import as_function, repeat
from ninefold.errors import ConfigError
from ninefold.signals import follow_parent


def main() -> None:
    parent, file, sha256, name = sys.argv[1:]
    follow_parent(int(parent))  # in the middle of a turn too
    places.take_path()
    turns, answers = own_streams()
    try:
        call = built(name, capsule.load(file, sha256, f"steps[{name!r}]"))
        call()
        now()
        say(answers, {"ready": True})
        for line in turns:
            turn = json.loads(line)
            repeat(call, turn["lead"])
            began = now()
            repeat(call, turn["timed"])
            say(answers, {"seconds": (now() - began) / turn["timed"]})
    except Exception as error:
        say(answers, described(error))


def own_streams() -> tuple[TextIOWrapper, TextIOWrapper]:
    """stdin and stdout as they were; from now on a step reads nothing there, and prints to stderr.

    Neither is handed on to programs that it starts.
    """
    streams = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return streams


def built(name: str, factory: Callable[[], Any]) -> Callable[[], Any]:
    """The step that a factory makes, as a function. Raises ConfigError, and what it raises."""
    step = factory()
    if not callable(step) and not inspect.isgenerator(step):
        raise ConfigError(
            f"steps[{name!r}]",
            type(step).__name__,
            "what it returned is no step; with processes='new' it is a factory, which returns a "
            "function that takes a step or a generator that yields after each; put lambda: before "
            "a step",
        )
    return as_function(name, step)


def now() -> float:
    """The time, when devices have done what was queued; torch is not imported to ask for any."""
    if "torch" in sys.modules:
        from ninefold.api import devices

        devices.wait()
    return time.perf_counter()


def say(answers: TextIOWrapper, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def described(error: Exception) -> dict[str, Any]:
    """An error for the process that started this one, as itself where it can be copied."""
    try:
        copy = base64.b64encode(cloudpickle.dumps(error)).decode()
    except Exception:
        copy = ""
    return {
        "copy": copy,
        "text": f"{type(error).__name__}: {error}",
        "traceback": "".join(traceback.format_exception(error)),
    }


if __name__ == "__main__":
    main()
