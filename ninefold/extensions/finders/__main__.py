"""The command `python -m ninefold finders what=lr|batch_size`: its arguments, to an exit code.

Each combination of keys with several values (`amp=fp32,autocast`) is a job of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from ninefold.config.job import asked
from ninefold.config.resolvers import file_name
from ninefold.errors import (
    ConfigError,
    Interrupted,
    NumericsError,
    Preempted,
    ResourceError,
    require_package,
)
from ninefold.extensions.finders.max_batch import of_job
from ninefold.files import read_json, write_json
from ninefold.launch.command import carried_out, composed, jobs
from ninefold.launch.ready import ready
from ninefold.launch.run import spec_of, start
from ninefold.places import typed_as
from ninefold.ranks import started_by
from ninefold.study.sweep import typed
from ninefold.words import key_of

STOPPED = "the search was stopped"
WHAT = ("lr", "batch_size")
SMALLEST, LARGEST = 1.2e-38, 3.4e38  # positive numbers of float32, in which networks train
RATES = {"low": "1e-7", "high": "1", "steps": "100"}  # the arguments of what=lr, with defaults
HELP = """{} what=lr|batch_size [GROUP=OPTION ...] [KEY=VALUE ...]

Finds a learning rate for a job by rising ones, or the largest batch size that fits into memory.

  what=lr             takes steps with a learning rate that rises from step to step
    low=RATE          the first learning rate ({low})
    high=RATE         the last one ({high})
    steps=N           how many steps ({steps})
  what=batch_size     tries batch sizes in new processes
  GROUP=OPTION, KEY=VALUE
                      the job, as for {}; of several values (A,B) each is a job of its own
It prints the override to train with, and writes lr.json or batch_size.json into its run folder.
"""
RESULT = {"lr": "lr.json", "batch_size": "batch_size.json"}


def main(arguments: Sequence[str]) -> int:
    """Find what the arguments say; returns the exit code."""
    text = HELP.format(typed_as("finders"), typed_as("train"), **RATES).rstrip()
    return carried_out(run, arguments, STOPPED, text)


def run(arguments: Sequence[str]) -> None:
    """Raises Failure, and Refused for problems of the configuration."""
    own, words = taken(arguments)
    if launcher := started_by():
        raise ConfigError(
            "launcher",
            launcher,
            "a search starts processes of its own",
            "one process is to begin it",
            "leave the launcher out",
        )
    rates = rates_of(own)
    if own["what"] == "lr":
        require_package("what", "lr", "matplotlib", "finders")
    base: Path | None = None
    for label, job in jobs(words):
        config = composed("train", [*job, "launch.inline=false"], example())
        require_no_resume(config)
        base = base or Path(config.hydra.run.dir)
        folder = base / file_name(label) if label else base
        try:
            if own["what"] == "lr":
                lines, override = learning_rate(config, folder, rates)
            else:
                lines, override = batch_size(job, config, folder)
        except (Interrupted, Preempted) as failure:
            raise type(failure)(
                "signal", failure.value, STOPPED, "nothing of it is kept", "start it again"
            ) from failure
        kept = [word for word in job if key_of(word) != key_of(override)]
        kept = [word for word in kept if not word.startswith("hydra.")]
        said = [label] if label else []
        print("\n".join([*said, *lines, f"train with it: {typed([*kept, override])}"]), flush=True)


def example() -> str:
    return f"{typed_as('finders')} what=lr"


def taken(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """This command's own arguments, and those of train.py. Raises ConfigError."""
    own: dict[str, str] = {}
    words = []
    for word in arguments:
        key, equals, value = word.partition("=")
        if equals and key in ("what", *RATES):
            own[key] = value
        else:
            words.append(word)
    if own.get("what") not in WHAT:
        raise ConfigError(
            "what",
            own.get("what", "null"),
            "no such search",
            f"{', '.join(WHAT)} are allowed",
            f"type {example()}",
        )
    return own, words


def rates_of(own: dict[str, str]) -> tuple[float, float, int]:
    """The first and the last learning rate to try, and how many there are. Raises ConfigError."""
    low, high = (number(key, own.get(key, RATES[key])) for key in ("low", "high"))
    if low >= high:
        raise ConfigError(
            "low",
            f"{low:g}",
            f"high is {high:g}",
            "a lower learning rate than that is allowed",
            "correct one of them",
        )
    text = own.get("steps", RATES["steps"])
    if not re.fullmatch("[1-9][0-9]{1,5}", text):
        raise ConfigError(
            "steps", text, "not allowed", "a whole number from 10 to 999999 is", "correct it"
        )
    return low, high, int(text)


def number(key: str, text: str) -> float:
    """A learning rate. Raises ConfigError unless float32 has such a number."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not SMALLEST <= found <= LARGEST:
        raise ConfigError(
            key,
            text,
            "float32, in which networks train, has no such number",
            f"{SMALLEST:g} to {LARGEST:g} are allowed",
            "correct it",
        )
    return found


def require_no_resume(config: DictConfig) -> None:
    """Raise ConfigError for a job that continues another run."""
    if config.resume is not None:
        raise ConfigError(
            "resume",
            config.resume,
            "a search begins with new weights and leaves no run",
            "null is allowed",
            "leave it out",
        )


def learning_rate(
    config: DictConfig, folder: Path, rates: tuple[float, float, int]
) -> tuple[list[str], str]:
    """Find a learning rate; returns lines about it, and the override that sets it."""
    job = ready(asked(config, config.hydra), folder)
    folder.mkdir(parents=True, exist_ok=True)
    spec = spec_of(
        job, folder, command="ninefold.extensions.finders.rates:find_lr", arguments=rates
    )
    start(spec, job)
    found = read_json(folder / RESULT["lr"])
    if None in (found["steepest"], found["suggestion"]):  # as JSON has no other
        raise NumericsError(
            "what",
            "lr",
            "what its losses say is not finite",
            f"they are in {folder / RESULT['lr']}",
            "try a smaller range of learning rates: low and high",
        )
    lines = [f"learning rate {found['steepest']:.2g}: there the loss falls fastest"]
    if found["diverges"] is None:
        lines.append(f"the loss does not diverge up to {rates[1]:g}")
    else:
        tenth = found["diverges"] / 10
        lines.append(f"learning rate {tenth:.2g}: a tenth of where the loss diverges")
    lines.append(f"picture {folder / 'lr.png'}")
    return lines, f"optimizer.lr={found['suggestion']:.2g}"


def batch_size(job: Sequence[str], config: DictConfig, folder: Path) -> tuple[list[str], str]:
    """Find the largest batch that fits; returns a line about it, and the override that sets it."""

    def job_with(*instead: str) -> DictConfig:
        keys = {key_of(text) for text in instead}
        kept = [word for word in job if key_of(word) not in keys]
        return composed("train", [*kept, *instead], example())

    largest = of_job(job_with, config, folder)
    write_json(folder / RESULT["batch_size"], vars(largest))
    if largest.status == "failed" or largest.batch_size is None:
        raise ResourceError(
            "what",
            "batch_size",
            "no batch was found" if largest.status != "failed" else "the search did not end well",
            largest.why.partition("; ")[0].replace("error: ", ""),
            f"see the run.log files in {folder}",
        )
    return [f"batch_size  {largest}"], f"batch_size={largest.batch_size}"
