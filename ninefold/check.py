"""What can be checked of a job before torch is imported or a process started."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ninefold.errors import ConfigError, Failure

# A name that becomes part of a path or a table: no separators, no blanks, no leading dot.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
# A rule says what is wrong with a value, or nothing.
Rule = Callable[[Any], str | None]


def whole(least: int, *, most: float = math.inf, otherwise: tuple[Any, ...] = ()) -> Rule:
    """An integer from `least` to `most`, or one of the values in `otherwise`."""
    upper = "" if most == math.inf else f" and at most {most}"
    also = "".join(f" or {'null' if value is None else value}" for value in otherwise)

    def rule(value: Any) -> str | None:
        # 1 == True in Python: `in` alone would let booleans through
        if any(value is other or value == other for other in otherwise if value is not True):
            return None
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return None
        return f"a whole number of at least {least}{upper}{also} is allowed"

    return rule


def number(above: float, *, inclusive: bool = False, below: float = math.inf) -> Rule:
    """A number above `above`, or equal to it if `inclusive`, and below `below`."""

    def rule(value: Any) -> str | None:
        fine = isinstance(value, int | float) and not isinstance(value, bool)
        if fine and (above < value < below or (inclusive and value == above)):
            return None
        lower = f"{'of at least' if inclusive else 'above'} {above:g}"
        upper = "" if below == math.inf else f" and below {below:g}"
        return f"a number {lower}{upper} is allowed"

    return rule


def optional(rule: Rule) -> Rule:
    """What `rule` allows, or null."""

    def either(value: Any) -> str | None:
        wrong = None if value is None else rule(value)
        return wrong and f"{wrong}, or null"

    return either


def one_of(*choices: Any) -> Rule:
    """One of `choices`."""

    def rule(value: Any) -> str | None:
        if any(value is choice or (value == choice and type(value) is type(choice))
               for choice in choices):  # fmt: skip
            return None
        return f"{', '.join(str(choice).lower() for choice in choices)} are allowed"

    return rule


def existing(value: Any) -> str | None:
    """A run folder, or the word that has one looked for."""
    if value is None or value == "auto" or (Path(str(value)) / "config.yaml").is_file():
        return None
    return "auto, or a folder with a config.yaml in it, is allowed"


FLAG = one_of(True, False)
RULES: dict[str, Rule] = {
    "seed": whole(0, most=2**32 - 1),
    "epochs": whole(0),
    "batch_size": whole(1),
    "max_steps": whole(0, otherwise=(None,)),
    "log_every": whole(1),
    "device": one_of("auto", "cpu", "cuda"),
    "threads": whole(1, otherwise=("auto",)),
    "resume": existing,
    "checkpoint.every": whole(0),
    "checkpoint.keep": whole(1),
    "loader.workers": whole(0),
    "clock.warmup": whole(0),
    "clock.sample": whole(0),
    "launch.inline": FLAG,
    "launch.timeout": number(0),
    "launch.cpu_processes": whole(1),
    "load.partial": FLAG,
    "parallel.processes": whole(1, otherwise=("auto",)),
    "parallel.gradient_as_bucket_view": FLAG,
    "parallel.broadcast_buffers": FLAG,
    "parallel.find_unused_parameters": FLAG,
    "parallel.static_graph": FLAG,
    "parallel.bucket_cap_mb": optional(number(0)),
    "parallel.sync_batchnorm": FLAG,
    "amp.dtype": one_of("auto", "float32", "float16", "bfloat16"),
    "amp.scaler": FLAG,
    "amp.tf32": FLAG,
    "amp.init_scale": number(0),
    "amp.growth_factor": number(1),
    "amp.backoff_factor": number(0, below=1),
    "amp.growth_interval": whole(1),
    "dataset.limit": whole(1, otherwise=(None,)),
    "dataset.classes": whole(1),
    "dataset.flip": FLAG,
    "dataset.crop": whole(0),
    "dataset.download": FLAG,
    "dataset.train_count": whole(1),
    "dataset.test_count": whole(1),
    "model.input_channels": whole(1),
    "model.input_size": whole(1, otherwise=(None,)),
    "model.memory_format": one_of("contiguous_format", "channels_last"),
    "optimizer.lr": number(0),
    "optimizer.weight_decay": number(0, inclusive=True),
    "optimizer.fused": FLAG,
}


SECTIONS = ("checkpoint", "clock", "launch", "load", "loader")


def problems(job: Mapping[str, Any], known: Iterable[str]) -> list[Failure]:
    """Everything that is wrong with `job`, a resolved mapping; `known` are its allowed keys."""
    known = set(known)
    found: list[Failure] = [
        ConfigError(
            key, job[key], "no such key", suggestion(key, known), "remove it or correct its name"
        )
        for key in job
        if key not in known
    ]
    found += [
        ConfigError(
            key, job[key], "not a section", f"{key}.NAME=value is allowed", f"leave {key} whole"
        )
        for key in SECTIONS
        if key in job and not isinstance(job[key], Mapping)
    ]
    for field, rule in RULES.items():
        group, _, key = field.rpartition(".")
        node = job.get(group) if group else job
        if not isinstance(node, Mapping) or key not in node:
            continue
        if isinstance(node[key], str) and "${" in node[key]:
            continue  # it refers to what only the worker knows: a checkpoint's configuration
        allowed = rule(node[key])
        if allowed is not None:
            value = "null" if node[key] is None else node[key]
            found.append(ConfigError(field, value, "not allowed", allowed, f"correct {field}"))
    return found


def suggestion(word: str, known: Iterable[str]) -> str:
    """The names in `known` that `word` may have been meant to be, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names)}"


def require_division(batch_size: int, processes: int) -> None:
    """Raise ConfigError unless the global batch divides by the processes."""
    if batch_size % processes == 0:
        return
    below, above = (batch_size // processes) * processes, -(-batch_size // processes) * processes
    raise ConfigError(
        "batch_size", batch_size, f"does not divide by {processes} processes",
        "batch_size is global: every process takes an equal part",
        f"choose {below or above} or {above}" if below and below != above else f"choose {above}",
    )  # fmt: skip
