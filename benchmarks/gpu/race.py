"""Contestants that take turns on a GPU, in one process for each group of them.

A group shares a process where they are compared closely: two processes of the same code may differ
by some percent. What belongs to a process, such as TF32, separates groups.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.gpu.session import Session

READY = 300.0  # seconds that a process has to build and compile its contestants
END = 10.0  # seconds that it has to end


@dataclass(frozen=True)
class Contestant:
    """name: of its figures. kind: one of contestants.KINDS. steps: of a turn."""

    name: str
    kind: str
    overrides: tuple[str, ...]
    steps: int

    @property
    def alone(self) -> bool:
        """Whether it joins a process group, of which a process has one."""
        return "parallel=ddp" in self.overrides


@dataclass
class Group:
    """A process and the contestants in it that could be built."""

    process: BaseProcess
    connection: Connection
    names: list[str]


def race(session: Session, *groups: Sequence[Contestant], rounds: int) -> dict[str, list[float]]:
    """Seconds a step of each contestant in each round, by name.

    A first round warms up. Every other round runs in reverse order. A contestant that fails is
    left out, and the log says why; in a dry run RuntimeError is raised.
    """
    if session.dry:
        groups, rounds = merged(groups), 1
    figures: dict[str, list[float]] = {}
    with ExitStack() as stack:
        started = [stack.enter_context(process(session, group)) for group in groups]
        for group in started:
            session.say(f"  ready: {' | '.join(answer(session, group, READY))}")
        for number in range(-1, rounds):
            order = [(group, name) for group in started for name in group.names]
            for group, name in order if number % 2 else reversed(order):
                if name not in group.names:
                    continue
                group.connection.send(name)
                seconds = answer(session, group, READY)
                if isinstance(seconds, str):
                    session.say(f"  {name}: {seconds}")
                    group.names.remove(name)
                    figures.pop(name, None)
                elif number >= 0:
                    figures.setdefault(name, []).append(seconds)
    missing = [each.name for group in groups for each in group if each.name not in figures]
    if missing and session.dry:
        raise RuntimeError(f"these failed: {' | '.join(missing)}")
    for name, found in figures.items():
        values = " ".join(f"{1e3 * seconds:.4g}" for seconds in found)
        session.say(f"  {name}: {values} ms a step")
    return figures


def merged(groups: Sequence[Sequence[Contestant]]) -> tuple[Sequence[Contestant], ...]:
    """The same contestants in as few processes as possible."""
    every = [contestant for group in groups for contestant in group]
    together = [contestant for contestant in every if not contestant.alone]
    apart = [[contestant] for contestant in every if contestant.alone]
    return (*([together] if together else []), *apart)


@contextmanager
def process(session: Session, contestants: Sequence[Contestant]) -> Iterator[Group]:
    """A new process that builds `contestants`; it ends with the block."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    arguments = there, contestants, Path(session.log.name).resolve()
    started = context.Process(target=serve, args=arguments, daemon=True)
    with patch.dict(os.environ, session.variables()):
        started.start()
    there.close()
    try:
        yield Group(started, here, [contestant.name for contestant in contestants])
    finally:
        here.close()
        started.join(END)
        if started.is_alive():
            started.kill()
            started.join()


def answer(session: Session, group: Group, limit: float) -> Any:
    """What a group's process sends next; names of contestants become the group's.

    Raises RuntimeError if it has ended or takes too long.
    """
    if not group.connection.poll(max(1.0, min(limit, session.left))):
        raise RuntimeError(f"{', '.join(group.names)}: no answer within the time")
    try:
        found = group.connection.recv()
    except EOFError:
        raise RuntimeError(f"{', '.join(group.names)}: the process has ended") from None
    if isinstance(found, list):
        group.names[:] = found
    return found


def serve(connection: Connection, contestants: Sequence[Contestant], log: Path) -> None:
    """Build the contestants, send the names of those that could be, and take turns when asked."""
    with log.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    from benchmarks.gpu.contestants import KINDS  # it imports torch, which reads the environment

    with ExitStack() as stack:
        turns = {}
        for each in contestants:
            try:
                turn = KINDS[each.kind](each.overrides, each.steps)
                turns[each.name] = stack.enter_context(turn)
            except Exception:
                traceback.print_exc()
                print(f"  {each.name} could not be built", flush=True)
        connection.send(list(turns))
        while True:
            try:
                name = connection.recv()
            except EOFError:
                return
            try:
                connection.send(turns[name]())
            except Exception as error:
                traceback.print_exc()
                connection.send(f"{type(error).__name__}: {error}")
