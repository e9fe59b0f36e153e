"""Starts of a command whose first steps are recorded, one after another."""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ninefold.bench import guardian
from ninefold.bench.contestant import START_SECONDS, Command, last_line, raised
from ninefold.errors import Failure
from ninefold.files import opener, write_text
from ninefold.process import scratch
from ninefold.waits import poll_until

ALL = ("torch", "numpy", "random", "default_rng", "hash")
VARIABLES = {
    "hash": {"PYTHONHASHSEED": "0"},
    "deterministic": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    "threads": {"OMP_NUM_THREADS": "1"},
}
RECORD = "NINEFOLD_BENCH_RECORD"  # the variable that asks the hook to record
Rank = dict[str, Any]  # what one rank has recorded of a step


@dataclass(frozen=True)
class Asked:
    """What is asked of a start.

    steps: after which it ends. fixed: sources of chance that are fixed. without: "dropout",
    "batchnorm". replay: the order of another training's data, by loader. until: "save": it ends two
    steps after torch.save was called. out: the folder that {out} stands for; None: a new one.
    """

    steps: int
    fixed: Sequence[str] = ALL
    without: Sequence[str] = ()
    replay: dict[str, list[Any]] | None = None
    until: str | None = None
    out: Path | None = None


@dataclass(frozen=True)
class Training:
    """The first steps of a command, of each the records of its ranks. name: of the command."""

    name: str
    steps: list[list[Rank]]

    @property
    def world(self) -> int:
        return int(self.steps[0][0]["world"])

    @property
    def first(self) -> Rank:
        return self.steps[0][0]

    def since(self, step: int) -> Training:
        """The same without its first steps."""
        return Training(self.name, self.steps[step:])

    def order(self) -> dict[str, list[Any]]:
        """The indices of examples by loader, as one process would take them."""
        found = defaultdict[str, list[Any]](list)
        for ranks in self.steps:
            for batches in zip(*(rank["data"] for rank in ranks), strict=False):
                for indices in zip(*(indices for _, indices in batches), strict=False):
                    found[batches[0][0]] += indices
        return found


def record(command: Command, keep: Path, asked: Asked) -> Training:
    """Start a command, and return its first steps. Raises Failure where it takes none."""
    folder = Path(tempfile.mkdtemp(dir=scratch()))
    if asked.out is not None:
        command = replace(command, text=command.text.replace("{out}", shlex.quote(f"{asked.out}")))
    replay = None
    if asked.replay is not None:
        replay = folder / "order"
        write_text(replay, json.dumps(asked.replay))
    variables = command.hooks(folder / "hook", False) | recording(asked, replay)
    number = 0
    while command.log(keep, number).exists():
        number += 1
    log = command.log(keep, number)
    began, process = time.monotonic(), command.start(0, log, variables)

    def ended() -> bool:
        files = [*folder.glob("*.steps")]
        done = [file for file in files if tail(file).endswith('"last": true}\n')]
        saved = bool(done) and asked.until is not None  # the other ranks wait for this one
        late = not files and time.monotonic() - began > START_SECONDS
        return process.poll() is not None or late or (bool(done) and (saved or is_all(done)))

    try:
        poll_until(ended)
    finally:
        guardian.kill(str(folder / "hook"), process)
        process.wait()
    steps = recorded(command, folder)
    if not steps:
        raise no_step(command, folder, process.returncode, log)
    if process.returncode > 0:
        raise command.ended(
            process.returncode,
            f"it ended with code {process.returncode} after {len(steps)} steps",
            last_words(log, command),
            f"correct it, see {log}",
        )
    return Training(command.name, steps)


def recording(asked: Asked, replay: Path | None = None, alone: bool = True) -> dict[str, str]:
    """The variables that have a command's first steps recorded.

    replay: the file of another training's order. alone: whether nothing else is wanted of it.
    """
    wanted = {"steps": asked.steps, "fixed": [*asked.fixed], "without": [*asked.without]}
    wanted |= {"replay": replay and str(replay), "until": asked.until, "alone": alone}
    found = {RECORD: json.dumps(wanted)}
    for each in asked.fixed:
        found |= VARIABLES.get(each, {})
    return found


def is_all(done: Sequence[Path]) -> bool:
    """Whether all ranks have taken the last step."""
    with open(done[0], encoding="utf-8", opener=opener) as content:
        return len(done) >= int(json.loads(next(content))["world"])


def last_words(log: Path, command: Command) -> str:
    """The exception that a command ended with, or the end of its output."""
    return raised(log, command.folder) or f"its output ends: {last_line(log)}"


def tail(file: Path) -> str:
    with open(file, "rb", opener=opener) as content:
        content.seek(max(file.stat().st_size - 64, 0))
        return content.read().decode()


def read(file: Path) -> list[Rank]:
    """The steps that a process has written; one that it was killed in is left out."""
    with open(file, encoding="utf-8", opener=opener) as content:
        return [json.loads(line) for line in content if line.endswith("\n")]


def recorded(command: Command, folder: Path) -> list[list[Rank]]:
    """The steps that processes have written, with all ranks in order.

    Raises ConfigError where two processes are one rank.
    """
    files = [read(file) for file in folder.glob("*.steps")]
    by_rank = sorted((each for each in files if each), key=lambda each: int(each[0]["rank"]))
    if len({each[0]["rank"] for each in by_rank}) < len(by_rank):
        raise command.failure(
            "2 of its processes take steps and no group joins them",
            "commands that train one model are compared",
            "start one training",
        )
    return [[*ranks] for ranks in zip(*by_rank, strict=False)]


def no_step(command: Command, folder: Path, code: int, log: Path) -> Failure:
    """Why it has taken no step. code: that it ended with; below 0 it was killed as too late."""
    if code > 0:
        wrong = f"it ended with code {code} before its first step"
        return command.ended(code, wrong, last_words(log, command), f"correct it, see {log}")
    if not (folder / "loaded").exists():
        return command.failure(
            "no Python of it loaded the hook",
            "-I, -E, -S, sudo and containers drop PYTHONPATH",
            "leave that out",
        )
    return command.failure(
        "it took no step", "Optimizer.step of torch ends one", f"see its output, {log}"
    )
