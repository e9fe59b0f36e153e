"""The command `python -m ninefold fits`: the memory of each configuration's step, and its largest
batch, as a table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from typing import NamedTuple

import torch

from ninefold.config.job import Settled, asked, check
from ninefold.errors import ConfigError, Failure, Refused
from ninefold.extensions.fits.counted import StepMemory, step_of
from ninefold.launch import events
from ninefold.launch.command import carried_out, composed, jobs
from ninefold.launch.run import outcome_of
from ninefold.machine import available_memory
from ninefold.places import typed_as
from ninefold.progress import aligned
from ninefold.ranks import started_by
from ninefold.words import key_and_value, key_of

MIB = 2**20
MAX_SIZE = 1e9  # in its unit
UNITS = {"MiB": MIB, "GiB": 2**30}
NEAR = 0.02  # of the largest batch: how much larger one that does not fit may be
ROOM = 1.5  # times what is counted, for what is not: 1.12 to 1.48 were seen (README)
HELP = """{} [memory=SIZE] [GROUP=OPTION ...] [KEY=VALUE ...]

Counts what a training step holds in memory, before anything runs on the device.

  memory=24GiB        of a device; by default what this one has free
  GROUP=OPTION, KEY=VALUE
                      the job, as for {}; of several values (A,B) each is a row
It prints MiB of a process, at the moment of a step at which it holds most, and the largest
batch_size for which memory is {:g} times that.
"""
NOT_COUNTED = """\
Not counted: workspaces of libraries such as cuDNN, NCCL and oneDNN, what the allocator keeps
besides, evaluations, data that dataset.resident keeps on a GPU, the process itself. So the largest
batch leaves room for half as much again (seen: 12 to 48 %)."""
HEAD = ("MiB a process", "weights", "gradients", "optimizer", "activations", "together", "largest")


def main(arguments: Sequence[str]) -> int:
    """Count what the arguments say; returns the exit code."""
    text = HELP.format(typed_as("fits"), typed_as("train"), ROOM).rstrip()
    return carried_out(run, arguments, "the count was stopped", text)


class Row(NamedTuple):
    """What was counted of a configuration.

    found: of a process whose part of the batch is as large as was asked for. largest: the largest
    batch_size for which `memory`, in bytes, has ROOM; 0: none. whole: whether it is the whole set.
    """

    label: str
    found: StepMemory
    largest: int
    memory: int
    whole: bool

    def texts(self) -> list[str]:
        """Its line of the table."""
        found = self.found
        parts = found.weights, found.gradients, found.optimizer, found.activations, found.total
        said = f"batch_size={self.largest}" if self.largest else "none"
        whole = ", the whole set" if self.whole else ""
        of_memory = f"{said} in {self.memory / 2**30:.3g} GiB{whole}"
        return [self.label, *(f"{size / MIB:,.0f}" for size in parts), of_memory]

    def tell(self) -> None:
        """Tell the process that has started the command, if it listens."""
        events.tell(
            "row",
            configuration=self.label,
            **asdict(self.found),
            total=self.found.total,
            largest=self.largest,
            memory=self.memory,
            line=dict(zip(HEAD, self.texts(), strict=True)),
        )


def run(arguments: Sequence[str]) -> None:
    """Raises Failure, and Refused for problems of the configuration."""
    events.connect()
    try:
        _run(arguments)
    except Exception as error:  # as Hydra's of an option that there is none of
        events.tell_failures(outcome_of(error, arguments).failures)
        raise


def _run(arguments: Sequence[str]) -> None:
    if launcher := started_by():
        wrong = "each of its processes would count the same"
        do = "leave the launcher out"
        raise ConfigError("launcher", launcher, wrong, "one process counts for all", do)
    given = dict(key_and_value(word) for word in arguments)
    memory = size_of(given["memory"]) if "memory" in given else None
    rows: list[Row] = []
    failures: list[Failure] = []
    for label, words in jobs([word for word in arguments if key_of(word) != "memory"]):
        config = composed("train", [*words, "launch.inline=false"], typed_as("fits"))
        try:
            rows.append(row(label, check(asked(config, config.hydra)).settle(), memory))
            rows[-1].tell()
        except Failure as failure:  # the others can be counted
            failures.append(failure)
    if rows:
        lines = aligned([HEAD, *(each.texts() for each in rows)])
        print("\n".join(lines), NOT_COUNTED, sep="\n", flush=True)
    if failures:
        raise Refused(failures)


def size_of(text: str) -> int:
    """The bytes of a size such as 24GiB. Raises ConfigError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(MiB|GiB)", text)
    if not found or not 0 < float(found[1]) < MAX_SIZE:
        allowed = "a number of MiB or GiB is allowed"
        raise ConfigError("memory", text, "no size", allowed, "type memory=24GiB")
    return int(float(found[1]) * UNITS[found[2]])


def row(label: str, job: Settled, memory: int | None) -> Row:
    """Count a job, and its largest batch_size. memory: bytes of a device; None: what is free."""
    processes, most = job.processes, job.training_examples() // job.processes
    with step_of(job) as step:
        device = step.setup.context.device
        memory = free(device) if memory is None else memory
        own = job.resolved["batch_size"] // processes
        pair = 2 * job.resolved["accumulate"]  # batch norm and mixup do not take one example
        memory_of = cache(step.memory)
        found = memory_of(own)
        largest = largest_part(
            lambda examples: memory_of(examples).total,
            own,
            most,
            pair,
            math.floor((memory if device.type == "cuda" else memory / processes) / ROOM),
        )
    return Row(label, found, largest * processes, memory, largest + pair > most)


def free(device: torch.device) -> int:
    """The bytes of memory that are free on this device. Raises ConfigError if that is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if (found := available_memory()) is None:
        wrong, allowed = "what is free is not known here", "a size is allowed"
        raise ConfigError("memory", "null", wrong, allowed, "give memory=24GiB")
    return found


def largest_part(
    bytes_of: Callable[[int], int], start: int, most: int, multiple: int, memory: int
) -> int:
    """The most examples of a step, a multiple up to `most`, that `memory` holds; 0: none.

    bytes_of: counts a step of so many. What a step holds grows with them, and mostly evenly: a
    straight line through the last two says what to count next, and each third time it is the
    middle, until one that fits and one that does not are NEAR.
    """
    fits, fails = 0, (most // multiple + 1) * multiple
    before, size, tries = (0, 0), start, 0
    while fails - fits > max(multiple, NEAR * fits):
        size = min(max(size // multiple * multiple, fits + multiple), fails - multiple)
        if (found := bytes_of(size)) <= memory:
            fits = size
        else:
            fails = size
        each = max((found - before[1]) / (size - before[0]), 1.0)
        before, tries = (size, found), tries + 1
        size = (fits + fails) // 2 if tries % 3 == 0 else math.floor(size + (memory - found) / each)
    return fits
