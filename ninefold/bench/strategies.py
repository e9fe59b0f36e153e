"""One command as one process and by DDP: how it is started, and whether that took effect.

Frameworks keep the batch of each process. So a step of two processes takes twice as many examples.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from functools import partial

from ninefold.bench.change import Axis, Change, Seen
from ninefold.bench.command import Command
from ninefold.bench.messages import Hello
from ninefold.errors import ConfigError
from ninefold.frameworks import ON_CPU, TORCHRUN, strategy_variables
from ninefold.machine import cores, count_gpus
from ninefold.numbers import counted, plural

AXIS = Axis("--strategies", "processes", "train")
PROCESSES_ON_CPU = 2  # of ddp on a machine without a GPU
LAUNCHER = f"-m torch.distributed.run {TORCHRUN}"
PYTHON = re.compile(
    r"(?:^|(?<=[\s;&|(]))\S*python[\d.]*(?:\s+-[bBdEiOqRsSuvx]+)*(?=\s+(?:-m\s|[^-\s]))"
)
THREADS = "OMP_NUM_THREADS"


def in_strategies(command: Command, names: Sequence[str]) -> list[Command]:
    """The command in each of these strategies. Raises ConfigError for names that are none."""
    gpus, visible = count_gpus(), "CUDA_VISIBLE_DEVICES"
    if f"{visible}=" in command.text:
        wrong, allowed = f"it sets {visible} itself", f"{AXIS.option} gives each process its GPU"
        raise ConfigError("command", command.text, wrong, allowed, f"export {visible} before")
    if gpus == 1 and "ddp" in names:
        wrong, do = "there is one GPU here", f"{visible}= hides the GPU"
        allowed = f"ddp takes a process for each of several, or {PROCESSES_ON_CPU} on a CPU"
        raise ConfigError(AXIS.option, ",".join(names), wrong, allowed, do)
    both = "two commands of your own"
    if gpus > 1:
        seen = os.environ.get(visible, "0,1").replace(" ", "").split(",")
        lines = [f"{visible}={','.join(of)} {command.text}" for of in (seen[:1], seen[:2])]
        both = " ".join(map(shlex.quote, lines))
    do = f"have the script do what torchrun, or its framework's variables, ask for, or give {both}"
    changes = {"none": one_process(gpus, do), "ddp": by_ddp(gpus, do, command.text)}
    return command.in_each(AXIS.option, names, changes, "none and ddp, as of parallel=,")


def one_process(gpus: int, do: str) -> Change:
    """The change to one process, on one GPU. gpus: of this machine. do: see `Seen`."""
    variables = strategy_variables("auto", 1) | ({} if gpus else ON_CPU)
    if gpus > 1:
        # Without a launcher Hugging Face's Trainer would use all of them, by DataParallel.
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        variables["CUDA_VISIBLE_DEVICES"] = first
    took_effect = partial(trains_in, 1, do, "")
    return Change("none", AXIS, variables=variables, processes=1, took_effect=took_effect)


def by_ddp(gpus: int, do: str, text: str) -> Change:
    """The change to a process on each GPU, or to two on a CPU, all started by torchrun."""
    processes = gpus or PROCESSES_ON_CPU
    threads = os.environ.get(THREADS, str(max((cores() or 1) // processes, 1)))
    told = "" if f"{THREADS}=" in text else f" ({THREADS}={threads})"
    variables = strategy_variables("ddp", processes) | ({} if gpus else ON_CPU) | {THREADS: threads}
    launch, took_effect = partial(by_torchrun, processes), partial(trains_in, processes, do, told)
    return Change("ddp", AXIS, launch, variables, processes, took_effect=took_effect)


def by_torchrun(processes: int, text: str) -> str:
    """The text of a command whose script torchrun is to start. Raises ConfigError."""
    found = [*PYTHON.finditer(text)]
    launchers = ("torch.distributed", "accelerate.commands", "deepspeed")
    if len(found) != 1 or any(launcher in text for launcher in launchers):
        wrong = "torchrun is put before its script for ddp, and no one script is seen"
        allowed = "python FILE and python -m MODULE are allowed, once"
        do = "write it so, without a launcher, or give two commands of your own"
        raise ConfigError("command", text, wrong, allowed, do)
    end = found[0].end()
    return f"{text[:end]} {LAUNCHER} {processes}{text[end:]}"


def trains_in(processes: int, do: str, threads: str, ranks: Sequence[Hello]) -> Seen:
    """What the first step shows of a command that is to train in so many processes.

    threads: of each, as a part of a sentence.
    """
    world, averages = ranks[0]["world"], ranks[0]["averages"]
    took = world == processes and (world == 1 or averages is not None)
    wrong, allowed = None, f"{processes} {plural(processes, 'was', 'were')} asked for"
    if world == processes and not took:
        wrong = f"whether the {world} processes of ddp average gradients is not seen"
        allowed = "no DistributedDataParallel and no FSDP was called in the first step"
    elif world == 1 and not took:
        wrong = f"each of the {processes} processes of ddp trains a copy of its own"
        allowed = "the script joins no process group, though torchrun has started it"
    value = counted(world, "process", "processes")
    told = f"{value}{f' by {averages}' if averages else ''}{threads}"
    return Seen(took, value, told, allowed, do, wrong)
