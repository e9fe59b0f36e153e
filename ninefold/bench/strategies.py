"""One command as one process and by DDP: how it is started, and whether that took effect.

Frameworks keep the batch of each process. So a step of two processes takes twice as many examples.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ninefold.bench.contestant import Command, Hello, Strategy
from ninefold.bench.precisions import require_known
from ninefold.default_axes import count_gpus
from ninefold.errors import ConfigError
from ninefold.machine import cores
from ninefold.numbers import counted

OPTION = "--strategies"
ALLOWED = ("none", "ddp")
ON_CPU = 2  # processes of ddp on a machine without a GPU
LAUNCHER = "-m torch.distributed.run --standalone --nproc-per-node"
PYTHON = re.compile(
    r"(?:^|(?<=[\s;&|(]))\S*python[\d.]*(?:\s+-[bBdEiOqRsSuvx]+)*(?=\s+(?:-m\s|[^-\s]))"
)
THREADS = "OMP_NUM_THREADS"


def in_strategies(command: Command, names: Sequence[str]) -> list[Command]:
    """The command in each of these strategies. Raises ConfigError for names that are none."""
    gpus = count_gpus()
    require_known(OPTION, names, ALLOWED, f"{' and '.join(ALLOWED)}, as of parallel=,")
    if gpus == 1 and "ddp" in names:
        raise ConfigError(
            OPTION,
            ",".join(names),
            "there is one GPU here",
            f"ddp takes a process for each of several, or {ON_CPU} on a CPU",
            "CUDA_VISIBLE_DEVICES= hides the GPU",
        )
    return [in_strategy(command, name, gpus) for name in dict.fromkeys(names)]


def in_strategy(command: Command, name: str, gpus: int) -> Command:
    """The command as one process, on one GPU, or by DDP. gpus: of this machine.

    torchrun starts what a strategy needs, and Lightning and Fabric are told that they are to use
    it; accelerate, Hugging Face's Trainer and loops that call DDP see it by themselves.
    """
    several = name == "ddp"
    processes = (gpus or ON_CPU) if several else 1
    variables = {**command.variables}
    for prefix in ("PL_TRAINER", "LT"):
        variables[f"{prefix}_STRATEGY"] = "ddp" if several else "auto"
        variables[f"{prefix}_DEVICES"] = str(processes)
    if not gpus:
        # Else accelerate, and so Hugging Face's Trainer, joins a group and averages nothing.
        variables["ACCELERATE_USE_CPU"] = "true"
    if several and THREADS not in os.environ:
        variables[THREADS] = str(max((cores() or 1) // processes, 1))
    if not several and gpus > 1:
        # Without a launcher Hugging Face's Trainer would use all of them, by DataParallel.
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        variables["CUDA_VISIBLE_DEVICES"] = first
    text = by_torchrun(command, processes) if several else command.text
    return replace(command, name=name, text=text, variables=variables, processes=processes)


def by_torchrun(command: Command, processes: int) -> str:
    """The text of a command whose script torchrun is to start. Raises ConfigError."""
    found = [*PYTHON.finditer(command.text)]
    launchers = ("torch.distributed", "accelerate.commands", "deepspeed")
    if len(found) != 1 or any(launcher in command.text for launcher in launchers):
        raise command.failure(
            "torchrun is put before its script for ddp, and no one script is seen",
            "python FILE and python -m MODULE are allowed, once",
            "write it so, without a launcher, or give two commands of your own",
        )
    end = found[0].end()
    return f"{command.text[:end]} {LAUNCHER} {processes}{command.text[end:]}"


def require_effect(commands: Sequence[Command], said: Mapping[str, Sequence[Hello]]) -> None:
    """Raise ConfigError unless each command trains in its processes, and averages over them.

    said: by name what each rank said after its first step.
    """
    world = {command.name: said[command.name][0]["world"] for command in commands}
    both = "two commands of your own"
    if any("CUDA_VISIBLE_DEVICES" in command.variables for command in commands):
        text = next(command.text for command in commands if command.processes == 1)
        both = " ".join(shlex.quote(f"CUDA_VISIBLE_DEVICES={gpus} {text}") for gpus in ("0", "0,1"))
    for command in commands:
        name, wanted = command.name, command.processes
        seen = seen_by(said[name])
        if world[name] == wanted and (wanted == 1 or seen["averages"]):
            continue
        line, network = (
            f" ({where})" if where else "" for where in (seen["line"], seen["network"])
        )
        if world[name] == wanted:
            wrong = (
                f"whether the {wanted} processes of {name} average gradients is not seen{network}"
            )
            found = "no DistributedDataParallel and no FSDP was called in the first step"
        elif world[name] == 1:
            wrong = f"each of the {wanted} processes of {name} trains a copy of its own{network}"
            found = "the script joins no process group, though torchrun has started it"
        elif len({*world.values()}) == 1 and len(world) > 1:
            wrong = f"the script sets its processes itself{line}: the commands do not differ"
            found = f"all train in {counted(world[name], 'process', 'processes')}"
        else:
            wrong = f"{name} trains in {world[name]} processes{line}"
            found = f"{wanted} {'was' if wanted == 1 else 'were'} asked for"
        raise ConfigError(
            OPTION,
            asked(commands),
            wrong,
            found,
            f"have the script do what torchrun, or its framework's variables, ask for, or give "
            f"{both}",
        )


def asked(commands: Sequence[Command]) -> str:
    """The strategies of these commands, as the option has them."""
    return ",".join(dict.fromkeys("none" if each.processes == 1 else "ddp" for each in commands))


def seen_by(ranks: Sequence[Hello]) -> Strategy:
    """What the first rank has seen of its strategy."""
    found = ranks[0]["strategy"]
    assert found is not None
    return found


def sentences(
    commands: Sequence[Command], said: Mapping[str, Sequence[Hello]], factors: Mapping[str, float]
) -> Iterator[str]:
    """What trains in how many processes, where strategies are compared; whether batches differ."""
    if not commands[0].processes:
        return
    parts, alike = list[str](), dict[str, None]()
    for command in commands:
        name, several = asked([command]), (command.processes or 1) > 1
        by = f" by {averages}" if (averages := seen_by(said[command.name])["averages"]) else ""
        threads = command.variables.get(THREADS, os.environ.get(THREADS)) if several else None
        more = f" ({THREADS}={threads})" if threads else ""
        parts.append(
            f"{name} in {counted(command.processes or 1, 'process', 'processes')}{by}{more}"
        )
        if command.processes != commands[0].processes and factors[command.name] == 1:
            alike[name] = None
    yield f"Seen in the first step: {', '.join(dict.fromkeys(parts))}."
    for name in alike:
        yield (
            f"A step of {name} takes as many examples as one of {asked(commands[:1])}; whether "
            "both compute the same was not looked at."
        )
