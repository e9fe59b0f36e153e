"""What may make a training script faster: a change each, and the line of the script for it.

`ninefold bench --try` has the script run with each of them, in turns beside the script as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from ninefold.bench.change import Change
from ninefold.bench.command import Command
from ninefold.bench.messages import Script
from ninefold.bench.precisions import BF16, NETWORK
from ninefold.frameworks import COMPILE_LINES, FUSED_LINES, loader_arguments
from ninefold.numbers import counted

AS_IT_IS = "as it is"  # of this command the hook says what it has of the changes
WORKERS = "workers"  # a kind
TOGETHER = " + "  # between the names of changes that are tried together

# What a part of a step costs: the command without it.
PARTS = (
    Change(
        "no reading", leaves_out=True, does="Without reading any data",
        unavailable=lambda script: "no DataLoader" if script["workers"] is None else None,
    ),
    Change(
        "no averaging", leaves_out=True, does="Without averaging gradients over ranks",
        unavailable=lambda script: "one process" if script["world"] == 1 else None,
    ),
    Change("no optimizer", leaves_out=True, does="Without the optimizer"),
)  # fmt: skip


def of_machine(cores: int) -> list[Change]:
    """All that may help on a machine with so many cores."""
    workers = dict.fromkeys((0, 1 if cores < 3 else 2, min(cores, 8)))
    threads = dict.fromkeys(n for n in (1, cores // 2, cores) if n)
    in_numbers = [*map(loader_workers, workers), *map(compute_threads, threads)]
    return [*in_numbers, BF16, CHANNELS_LAST, FUSED, COMPILE]


def with_changes(command: Command, changes: Sequence[Change]) -> Command:
    """The command with these changes."""
    return command.changed(changes, TOGETHER.join(each.name for each in changes))


def loader_workers(count: int) -> Change:
    def unavailable(script: Script) -> str | None:
        if script["workers"] is None:
            return "no DataLoader"
        if script["iterable"]:
            return "each worker may read all of an IterableDataset"
        return "already there" if script["workers"] == count else None

    return Change(
        f"{WORKERS}={count}",
        unavailable=unavailable,
        does=f"Loading with {counted(count, 'worker') if count else 'no worker'}",
        line=f"DataLoader(..., {', '.join(loader_arguments(count))})"
        + (", without persistent_workers and prefetch_factor" if not count else ""),
        in_framework={"accelerate": f"num_workers={count}, or dataloader_num_workers={count}"},
        where="loader",
    )


def compute_threads(count: int) -> Change:
    def unavailable(script: Script) -> str | None:
        if script["cuda"]:
            return "the GPU computes"
        return "already there" if script["threads"] == count else None

    return Change(
        f"threads={count}",
        unavailable=unavailable,
        does=f"With {counted(count, 'thread')}",
        line=f"torch.set_num_threads({count})",
        where=NETWORK,
    )


CHANNELS_LAST = Change(
    "channels_last",
    unavailable=lambda script: None if script["convolutions"] else "no convolution",
    does="In channels_last",
    line="model.to(memory_format=torch.channels_last), and the images",
    where=NETWORK,
)


def _lacks_optimizer(script: Script) -> str | None:
    if script["fused"] is None:
        return "no optimizer of PyTorch that can be"
    return "already there" if script["fused"] else None


FUSED = Change(
    "fused",
    unavailable=_lacks_optimizer,
    does="With a fused optimizer",
    line="fused=True in the optimizer",
    in_framework=FUSED_LINES,
    where="optimizer",
)
COMPILE = Change(
    "compile",
    unavailable=lambda script: "already there" if script["compiled"] else None,
    does="Compiled",
    line="model.compile()",
    in_framework=COMPILE_LINES,
    where=NETWORK,
    alters=True,
)
