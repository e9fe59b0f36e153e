"""The command `python -m ninefold fits`: the memory of each configuration's step, and its largest
batch, as a table."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ninefold.config import like
from ninefold.config.composition import flags_of
from ninefold.config.conf_files import is_own, of_options
from ninefold.config.job import Settled, asked, check
from ninefold.config.resolvers import file_name
from ninefold.errors import (
    ConfigError,
    Failure,
    Interrupted,
    Preempted,
    Refused,
    ResourceError,
    require_configuration,
)
from ninefold.exits import exit_code_of
from ninefold.extensions.fits import COUNT, PARTS, ROOM
from ninefold.extensions.fits.steps import divisor, of_job
from ninefold.files import read_json, write_json
from ninefold.launch import events
from ninefold.launch.command import composed, jobs, usable
from ninefold.launch.ready import start_importing
from ninefold.launch.run import failure_of, outcome_of, spec_of
from ninefold.machine import count_gpus
from ninefold.numbers import counted as in_words
from ninefold.places import typed_as
from ninefold.process import scratch
from ninefold.progress import aligned
from ninefold.ranks import started_by
from ninefold.study.sweep import typed
from ninefold.words import key_and_value, key_of, last_of_each

STOPPED = "the count was stopped"
MIB = 2**20
UNITS = {"MiB": MIB, "GiB": 2**30}
HELP = """{} [memory=SIZE] [GROUP=OPTION ...] [KEY=VALUE ...]

Counts what a training step holds in memory, before anything runs on the device, and the largest
batch. With that one it takes real steps, and with others until one fits and one does not.

  memory=24GiB        of a device that need not be here: no steps are taken
  GROUP=OPTION, KEY=VALUE
                      the job, as for {}; of several values (A,B) each is a row
It prints MiB of a process, at the moment of a step at which it holds most, and the largest
batch_size: with memory= the one for which it is {:g} times that, else by real steps.
"""
NOT_COUNTED = """\
Not counted: workspaces of libraries such as cuDNN, NCCL and oneDNN, what the allocator keeps
besides, evaluations, data that dataset.resident keeps on a GPU, the process itself."""
OF_MEMORY = """\
The largest batch is limited by memory=, and leaves room of it for what is not counted: half as
much again (seen: 12 to 48 %); but on a CPU the process itself takes 0.5 to 0.7 GiB."""
OF_DATA = "The largest batch is limited by the training set: all of it fits."
HEAD = ("MiB a process", "weights", "gradients", "optimizer", "activations", "together", "largest")


def main(arguments: Sequence[str]) -> int:
    """Count what the arguments say; returns the exit code."""
    if {"-h", "--help"} & {*arguments}:
        print(HELP.format(typed_as("fits"), typed_as("train"), ROOM).rstrip())
        return 0
    words, left = last_of_each(arguments), "nothing is left of what was written"
    return exit_code_of(lambda: run(words), STOPPED, left, lambda error: failure_of(error, words))


def run(arguments: Sequence[str]) -> None:
    """Raises Failure, and Refused for problems of the configuration."""
    events.connect()
    try:
        require_configuration()
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
    rows, limits = list[list[str]](), list[str]()
    failures: list[Failure] = []
    named = ""
    typed_words = [word for word in arguments if key_of(word) != "memory"]
    flags = flags_of(like.expanded(usable(typed_words, typed_as("fits"))))
    own = [f"--config-dir={flags.config_dir}"] if flags.config_dir else []
    named_by, lists = zip(*jobs(flags.overrides), strict=True)
    fitting = of_options(lists, lambda group: None)
    each = dict.fromkeys(
        (tuple(value for value in values if value in words), (*own, *words))
        for values, words in zip(named_by, fitting, strict=True)
    )
    configs = [composed([*words, "launch.inline=false"], typed_as("fits")) for _, words in each]
    asked_for = [asked(config, config.hydra) for config in configs]
    for job_asked in asked_for:
        if job_asked.resume is not None:
            wrong, allowed = "steps are taken with new weights, and leave no run", "null is allowed"
            raise ConfigError("resume", job_asked.resume, wrong, allowed, "leave it out")
    found_jobs = [*map(check, asked_for)]  # before any is counted
    for (values, words), checked in zip(each, found_jobs, strict=True):
        label, swept, known = " ".join(values), {*map(key_of, values)}, {*map(key_of, words)}
        kept = [word for word in typed_words if key_of(word) in known or not is_own(word)]
        given_words = [*(word for word in kept if key_of(word) not in swept), *values]
        try:
            start_importing(checked)
            job = checked.settle()
            if (said := subject(job)) != named:  # a count takes seconds and prints nothing else
                print(f"counting a step's memory: {said}", file=sys.stderr, flush=True)
                named = said
            if memory:
                found = counted(job, memory)
                limit = OF_DATA if found["whole"] else OF_MEMORY
            else:
                base = Path(configs[0].hydra.run.dir)
                found, limit = taken(label, words, given_words, job, base)
        except (Interrupted, Preempted) as failure:
            left = ("nothing of it is kept", "start it again")
            raise type(failure)("signal", failure.value, STOPPED, *left) from failure
        except (Failure, Refused) as failure:  # the others can be counted
            failures += failure.failures if isinstance(failure, Refused) else [failure]
            continue
        rows.append([label, *texts(found, memory is None)])
        limits.append(limit)
        line = dict(zip(HEAD, rows[-1], strict=True))
        events.tell("row", configuration=label, **found, line=line)
    if rows:
        last = dict.fromkeys(limits)
        print("\n".join(aligned([HEAD, *rows])), NOT_COUNTED, *last, sep="\n", flush=True)
    if failures:
        raise Refused(failures)


def subject(job: Settled) -> str:
    """What is counted: `convnet on digits (1437 examples), adamw, cpu`."""
    model, dataset, optimizer = (job.choices[key] for key in ("model", "dataset", "optimizer"))
    examples, device = in_words(job.training_examples(), "example"), job.resolved["device"]
    if device == "auto":
        device = "cuda" if count_gpus() else "cpu"
    return f"{model} on {dataset} ({examples}), {optimizer}, {device}"


def size_of(text: str) -> int:
    """The bytes of a size such as 24GiB. Raises ConfigError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(MiB|GiB)", text)
    if not found or not 0 < float(found[1]) < 1e9:
        allowed = "a number of MiB or GiB is allowed"
        raise ConfigError("memory", text, "no size", allowed, "type memory=24GiB")
    return int(float(found[1]) * UNITS[found[2]])


def counted(job: Settled, memory: int | None) -> dict[str, Any]:
    """The bytes of a step by PARTS, and the largest batch_size for `memory`; 0: none.

    memory: bytes of a device; None: what is free. Raises Failure.
    """
    from ninefold.launch.workers import run_workers  # it imports torch, as the forkserver does

    with TemporaryDirectory(dir=scratch()) as folder:
        most = job.training_examples()
        given = (memory, most - most % divisor(job))
        command = "ninefold.extensions.fits.counted:count"
        run_workers(spec_of(job, Path(folder), command=command, arguments=given), 1, 0)
        found: dict[str, Any] = read_json(Path(folder, COUNT))
    return found


def taken(
    label: str, words: Sequence[str], given: Sequence[str], job: Settled, base: Path
) -> tuple[dict[str, Any], str]:
    """The same with the largest batch_size that real steps were taken with, and what limits it.

    words: the overrides of the job, which `label` tells from others. given: as typed. base: for the
    folders of runs.
    """
    least, examples = divisor(job), job.training_examples()
    if examples < least:
        wrong = f"the smallest batch has {in_words(least, 'example')}"
        do = "lower accumulate or parallel.processes"
        raise ConfigError(
            "accumulate", job.resolved["accumulate"], wrong, f"{examples} are there", do
        )
    folder = base / file_name(label) if label else base
    if label:
        print(label)
    try:
        found = counted(job, None)
    except ConfigError as failure:  # steps can be taken, or say what is wrong
        print(f"not counted: {failure.cause}")
        found = dict.fromkeys((*PARTS, "counted", "memory"))
    first = found["counted"]
    fits, fails, why = of_job(words, job, folder, first or job.resolved["batch_size"])
    if not fits:
        do = "choose a smaller model, or a larger machine"
        raise ResourceError("batch_size", fails, why, "no batch fits", do)
    said = {"batch_size": fits, "fails_at": fails, "why": why, "counted": first}
    write_json(folder / "batch_size.json", said)
    limit = "" if fails is None else f", and {fails} does not fit"
    kept = [word for word in given if not word.startswith("hydra.")]
    command = typed(last_of_each([*kept, f"batch_size={fits}"]))
    of = f"{label}: " if label else ""
    lines = f"{of}batch_size={fits} is the largest{limit}: {why}\ntrain with it: {command}"
    return {**found, "largest": fits, "whole": fails is None}, lines


def texts(found: Mapping[str, Any], searched: bool) -> list[str]:
    """The cells of a configuration in the table, after its name. searched: by real steps."""
    sizes = ["?" if found[part] is None else f"{found[part] / MIB:,.0f}" for part in PARTS]
    largest, of_count = found["largest"], found["counted"]
    said = f"batch_size={largest}" if largest else "none"
    said += " by real steps" if searched else f" in {found['memory'] / 2**30:.3g} GiB"
    said += ", the whole set" if found["whole"] else ""
    apart = "" if of_count in (None, largest) else f" (the count said {of_count})"
    return [*sizes, said + apart]
