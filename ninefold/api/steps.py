"""`ninefold.time_steps`: which of several training steps is the fastest."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from ninefold.api import restore as restoring
from ninefold.api import together
from ninefold.api.calls import Step, as_function, note, repeat
from ninefold.api.session import Session
from ninefold.api.times import Times
from ninefold.errors import ConfigError

TRAINED = "The steps have trained what they train: restore= would put it back."


def time_steps(
    steps: Mapping[str, Step],
    *,
    minutes: float = 1.0,
    turn: float = 0.04,
    same: float = 0.02,
    level: float = 0.05,
    restore: Any = (),
    baseline: str | None = None,
    processes: str = "this",
    show: bool = True,
) -> Times:
    """Benchmark training steps against each other: which is the fastest in this process?

    With processes="new": in new processes, started for each round, which contain what differs from
    process to process, such as where memory lies.

    The steps take short turns in random order, so that what disturbs the machine disturbs all
    alike. Devices are waited for at the ends of turns only. In a torch.distributed group all
    processes call it, the order is the same in all of them, and a turn takes as long as in the
    slowest. What it estimates is the mean seconds of a step in a long run of it.

    steps: by name, a function without arguments that takes one training step, or a generator that
        yields after each step and does not end. With processes="new", a function without arguments
        that returns one of these: it is copied to the new processes.
    minutes: the longest that it takes, besides one turn of each step, and what compiling takes in
        their first calls. It ends sooner once the answer is settled and its ratios are known within
        3 %. With processes="new" it is the time of turns, besides starting, and there are three
        rounds at least.
    turn: seconds of a turn that are timed, at least 0.04, of several processes 0.3; before them as
        long is not timed.
    same: steps whose times differ by at most this share count as equally fast.
    level: the chance of any false verdict.
    restore: modules, optimizers, scalers and others with a state_dict, which are put back at the
        end, with the random states of torch, numpy and Python.
    baseline: the step that is named if it is shown to be within `same` of the fastest, and that
        ratios are against.
    processes: this, or new.
    show: print the answer (rank 0 alone), with the time that has passed meanwhile on a terminal.

    Raises ConfigError for steps or arguments that cannot be used, and what a step raises, with a
    note that names the step; of a new process the same class where it can be copied, else
    RuntimeError, and ResourceError where one has died.
    """
    new = is_new(processes)
    calls = factories(steps) if new else callables(steps)
    things = restoring.check(restore)
    if new and things:
        raise ConfigError(
            "restore",
            type(things[0]).__name__,
            "there is nothing to put back; with processes='new' the steps train copies in "
            "processes of their own; leave it out",
        )
    session = Session(
        list(calls),
        minutes=minutes,
        turn=turn,
        same=same,
        level=level,
        baseline=baseline,
        show=show,
        new=new,
    )
    try:
        if new:
            from ninefold.api.workers import take_rounds  # which needs a POSIX system

            take_rounds(session, calls)
        else:
            with restoring.restored(things):
                take_turns(session, calls)
        found = session.times(() if things or new else (TRAINED,))
    finally:
        session.close()
    session.show(found)
    return found


def take_turns(session: Session, calls: Mapping[str, Callable[[], Any]]) -> None:
    """Let steps take turns until the session ends."""
    session.begin()
    while session.block is not None:
        seconds = []
        for turn in session.block:
            try:
                repeat(calls[turn.step], turn.lead)
                began = session.now()
                repeat(calls[turn.step], turn.timed)
                seconds.append((session.now() - began) / turn.timed)
            except Exception as error:
                note(error, f"ninefold.time_steps: in the step {turn.step!r}")
                raise
        session.took(seconds)


def is_new(processes: object) -> bool:
    """Whether `processes` asks for new ones. Raises ConfigError."""
    if processes not in ("this", "new"):
        raise ConfigError(
            "processes", repr(processes), "there is no such choice; 'this' and 'new'; name one"
        )
    if processes == "this":
        return False
    if not hasattr(os, "geteuid"):
        raise ConfigError(
            "processes",
            "new",
            "this system cannot say whose a file of objects is; Linux and macOS can; take "
            "processes='this'",
        )
    from ninefold.ranks import started_by  # which needs a POSIX system

    launcher = started_by() or ("torch.distributed" if together.is_grouped() else "")
    if launcher:
        raise ConfigError(
            "processes",
            "new",
            f"{launcher} has made this process one of several; a process that is alone can start "
            "new ones; leave the launcher out, or take processes='this'",
        )
    return True


def factories(steps: object) -> dict[str, Callable[[], Any]]:
    """The factories of steps. Raises ConfigError."""
    check_names("steps", steps, "a function that returns a step")
    assert isinstance(steps, Mapping)
    for name, factory in steps.items():
        if isinstance(factory, nn.Module) or not callable(factory):
            raise ConfigError(
                f"steps[{name!r}]",
                type(factory).__name__,
                "new processes cannot build a step from it; with processes='new', a function "
                "without arguments that returns one; put it into a function",
            )
    return dict(steps)


def callables(steps: object) -> dict[str, Callable[[], Any]]:
    """The steps as functions. Raises ConfigError."""
    check_names("steps", steps, "a function or generator")
    assert isinstance(steps, Mapping)
    return {name: as_function(name, step) for name, step in steps.items()}


def check_names(field: str, given: object, kind: str) -> None:
    """Raise ConfigError unless `given` is a mapping from two names or more."""
    if not isinstance(given, Mapping):
        raise ConfigError(
            field, type(given).__name__, f"it is no mapping; a dict of names, with {kind} each; "
            "give one"
        )  # fmt: skip
    if wrong := [name for name in given if not isinstance(name, str)]:
        raise ConfigError(field, repr(wrong[0]), "it is no name; strings are; rename it")
    if len(given) < 2:
        raise ConfigError(
            field,
            ", ".join(given) or "empty",
            "there is nothing to compare it with; two or more are needed; add one",
        )
