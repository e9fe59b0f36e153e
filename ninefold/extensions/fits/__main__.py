"""The command `python -m ninefold fits`: the memory of each configuration's step, and its largest
batch, as a table."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence

import torch

from ninefold.config.job import Settled, asked, check
from ninefold.errors import ConfigError
from ninefold.extensions.finders.__main__ import jobs
from ninefold.extensions.fits.counted import step_of
from ninefold.launch.command import carried_out, composed
from ninefold.machine import available_memory
from ninefold.places import typed_as
from ninefold.progress import aligned
from ninefold.words import key_and_value, key_of

MIB = 2**20
UNITS = {"MiB": MIB, "GiB": 2**30}
NEAR = 0.02  # of the largest batch: how much larger one that does not fit may be
HELP = """{} [memory=SIZE] [GROUP=OPTION ...] [KEY=VALUE ...]

Counts what a training step holds in memory, before anything runs on the device.

  memory=24GiB        of a device; by default what this one has
  GROUP=OPTION, KEY=VALUE
                      the job, as for {}; of several values (A,B) each is a row
It prints MiB of a process, at the moment of a step at which it holds most, and the largest
batch_size that fits.
"""
NOT_COUNTED = (
    "Not counted: what the allocator keeps besides, workspaces of libraries such as cuDNN, data "
    "that dataset.resident keeps on a GPU, and the process itself."
)
HEAD = ("MiB a process", "weights", "gradients", "optimizer", "activations", "together", "largest")


def main(arguments: Sequence[str] | None = None) -> int:
    """Count what the arguments say; returns the exit code."""
    text = HELP.format(typed_as("fits"), typed_as("train")).rstrip()
    words = sys.argv[1:] if arguments is None else arguments
    return carried_out(run, words, "the count was stopped", text)


def run(arguments: Sequence[str]) -> None:
    """Raises Failure, and Refused for problems of the configuration."""
    given = dict(key_and_value(word) for word in arguments)
    memory = size_of(given["memory"]) if "memory" in given else None
    rows: list[Sequence[str]] = [HEAD]
    for label, words in jobs([word for word in arguments if key_of(word) != "memory"]):
        config = composed("train", [*words, "launch.inline=false"], typed_as("fits"))
        rows.append((label, *row(check(asked(config, config.hydra)).settle(), memory)))
    print("\n".join(aligned(rows)), NOT_COUNTED, sep="\n", flush=True)


def size_of(text: str) -> int:
    """The bytes of a size such as 24GiB. Raises ConfigError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(MiB|GiB)", text)
    if not found or not float(found[1]):
        wrong = "no size; a number of MiB or GiB is allowed; type memory=24GiB"
        raise ConfigError("memory", text, wrong)
    return int(float(found[1]) * UNITS[found[2]])


def row(job: Settled, memory: int | None) -> list[str]:
    """The figures of a job in MiB, and the largest batch_size. memory: of a device, in bytes."""
    with step_of(job) as step:
        batch_size = job.resolved["batch_size"]
        processes = job.processes
        found = step.memory(batch_size // processes)
        parts = (found.weights, found.gradients, found.optimizer, found.activations, found.total)
        device = step.setup.context.device
        memory = free(device) if memory is None else memory
        each = memory if device.type == "cuda" else memory // processes
        largest = largest_part(
            lambda examples: step.memory(examples).total,
            job.training_examples() // processes,
            job.resolved["accumulate"],
            each,
        )
        said = "none" if not largest else f"batch_size={largest * processes}"
        return [*(f"{size / MIB:,.0f}" for size in parts), f"{said} in {memory / 2**30:.3g} GiB"]


def free(device: torch.device) -> int:
    """The bytes of memory of this device, of a CPU those that are free."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return available_memory() or 0


def largest_part(bytes_of: Callable[[int], int], most: int, multiple: int, memory: int) -> int:
    """The most examples of a step, a multiple up to `most`, that `memory` holds; 0: none.

    bytes_of: counts a step of so many. What a step holds grows with them, mostly evenly. Between
    one that fits and one that does not, what a straight line says is tried and then the middle,
    until they are NEAR.
    """
    fits, fails = multiple, most // multiple * multiple
    at_fits, at_fails = bytes_of(fits), bytes_of(fails)
    if at_fits > memory or at_fails <= memory:
        return 0 if at_fits > memory else fails
    share = (memory - at_fits) / (at_fails - at_fits)
    while fails - fits > max(multiple, NEAR * fits):
        guess = math.floor(fits + share * (fails - fits)) // multiple * multiple
        guess = min(max(guess, fits + multiple), fails - multiple)
        if (found := bytes_of(guess)) <= memory:
            fits, at_fits = guess, found
        else:
            fails, at_fails = guess, found
        share = 0.5 if share != 0.5 else (memory - at_fits) / (at_fails - at_fits)
    return fits


if __name__ == "__main__":
    from ninefold.exits import exit_with

    exit_with(main)
