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


def text(value: Any) -> str | None:
    """Some text, or null."""
    if value is None or (isinstance(value, str) and value.strip()):
        return None
    return "text or null is allowed"


def sizes(value: Any) -> str | None:
    """Channels, height and width."""
    if (
        isinstance(value, list)
        and len(value) == 3
        and all(whole(1)(size) is None for size in value)
    ):
        return None
    return "[channels, height, width], whole numbers of at least 1, is allowed"


def numbers(value: Any) -> str | None:
    """One number for each channel, or null."""
    if value is None or (isinstance(value, list) and value
                         and all(number(-math.inf)(each) is None for each in value)):  # fmt: skip
        return None
    return "a list of numbers, one for each channel, or null is allowed"


def dotted(value: Any) -> str | None:
    """The name of something that can be imported."""
    if isinstance(value, str) and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", value):
        return None
    return "the dotted name of a class or a function is allowed"


def described(value: Any) -> str | None:
    """What is to be called, and with what."""
    if isinstance(value, Mapping) and dotted(value.get("_target_")) is None:
        return None
    return "a section with a _target_ in it, the dotted name of what to call, is allowed"


def existing(value: Any) -> str | None:
    """A run folder, or the word that has one looked for."""
    if value is None or value == "auto" or (Path(str(value)) / "config.yaml").is_file():
        return None
    return "auto, or a folder with a config.yaml in it, is allowed"


def begun(value: Any) -> str | None:
    """The folder of a study."""
    if value is None or (Path(str(value)) / "sweep.json").is_file():
        return None
    return "a folder with a sweep.json in it is allowed"


FLAG = one_of(True, False)
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
GRAPHS = ("reduce-overhead", "max-autotune")  # modes that record CUDA graphs
BUILT = ("parallel", "amp", "dataset", "task", "optimizer", "scheduler")  # groups of one object
RULES: dict[str, Rule] = {
    "seed": whole(0, most=2**32 - 1),
    "epochs": whole(0),
    "batch_size": whole(1),
    "max_steps": whole(0, otherwise=(None,)),
    "log_every": whole(1),
    "device": one_of("auto", "cpu", "cuda"),
    "threads": whole(1, most=1024, otherwise=("auto",)),  # OpenMP crashes on very many
    "profile": FLAG,
    "resume": existing,
    "accumulate": whole(1),
    "patience": whole(1, otherwise=(None,)),
    "ema": optional(number(0, below=1)),
    "deterministic": FLAG,
    "on_nonfinite": one_of("stop", "skip"),
    "checkpoint.every": whole(0, otherwise=(None,)),
    "checkpoint.keep": whole(2),  # if the newest is damaged, there is one before it
    "checkpoint.on_error": one_of("stop", "continue"),
    "loader.workers": whole(0),
    "compile.mode": optional(one_of(*COMPILE_MODES)),
    "clock.warmup": whole(0),
    "clock.sample": whole(0),
    "clock.probe": number(0, inclusive=True, below=60),
    "clock.ceiling": whole(0),
    "numerics": whole(0),
    "study.seed": whole(0, most=2**32 - 1),
    "study.repeats": whole(1, otherwise=(None, "auto")),
    "study.budget": optional(number(0)),
    "study.burn_in": whole(0),
    "study.drift": number(0),
    "study.retries": whole(0),
    "study.max_batch": FLAG,
    "study.resume": begun,
    "study.mixed": FLAG,
    "report.margin": number(0),
    "report.same": number(0, below=1),
    "report.target": optional(number(0, below=1)),
    "launch.inline": FLAG,
    "launch.timeout": number(0, below=10**8),  # more than a timedelta takes
    "launch.grace": number(0, below=10**8),
    "launch.max_restarts": whole(0),
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
    "amp.init_scale": number(0, below=2**127),  # it is a float32
    "amp.growth_factor": number(1),
    "amp.backoff_factor": number(0, below=1),
    "amp.growth_interval": whole(1),
    "dataset.root": text,
    "dataset.limit": whole(1, otherwise=(None,)),
    "dataset.classes": whole(1),
    "dataset.shape": sizes,
    "dataset.mean": numbers,
    "dataset.std": numbers,
    "dataset.flip": FLAG,
    "dataset.crop": whole(0),
    "dataset.val": number(0, inclusive=True, below=1),
    "dataset.download": FLAG,
    "dataset.train_count": whole(1),
    "dataset.test_count": whole(1),
    "model.net": described,
    "model.input_channels": whole(1),
    "model.input_size": whole(1, otherwise=(None,)),
    "model.memory_format": one_of("contiguous_format", "channels_last"),
    "optimizer.lr": number(0),
    "optimizer.weight_decay": number(0, inclusive=True),
    "optimizer.fused": FLAG,
    "scheduler.T_max": whole(0),
    "scheduler.patience": whole(0),
    **{f"{group}._target_": dotted for group in BUILT},
}


OF_A_SWEEP = ("study", "report")  # sections that no run has
SECTIONS = ("checkpoint", "clock", "compile", "launch", "load", "loader", *OF_A_SWEEP)


def problems(
    job: Mapping[str, Any],
    known: Iterable[str],
    inner: Mapping[str, Iterable[str]] | None = None,
    required: Iterable[str] = (),
) -> list[Failure]:
    """Everything that is wrong with `job`, a resolved mapping.

    `known` are its allowed keys, `inner` those in its sections and groups, where they are known;
    `required` those (`epochs`, `checkpoint.keep`) that it cannot do without.
    """
    known, inner = set(known), inner or {}
    found = _unknown(job, known)
    for section, keys in inner.items():
        if isinstance(job.get(section), Mapping):
            found += _unknown(job[section], set(keys), f"{section}.")
    found += [
        ConfigError(
            key, spelled(job[key]), "not a section", f"{key}.NAME=value is allowed",
            f"leave {key} whole",
        )
        for key in SECTIONS
        if key in job and not isinstance(job[key], Mapping)
    ]  # fmt: skip
    found += [
        ConfigError(key, "nothing", "it is missing", "a run needs it", f"do not take {key} away")
        for key in required
        if _lacks(job, key)
    ]
    loggers = job.get("logger")
    for name, node in loggers.items() if isinstance(loggers, Mapping) else ():
        if (allowed := described(node)) is not None:
            found.append(ConfigError(
                f"logger.{name}", spelled(node), "not allowed", allowed,
                f"take it away with ~logger.{name}",
            ))  # fmt: skip
    for field in RULES:
        group, _, key = field.rpartition(".")
        node = job.get(group) if group else job
        if isinstance(node, Mapping) and key in node:
            found += breach(field, node[key])
    return found or _at_odds(job)


def breach(field: str, value: Any) -> list[Failure]:
    """What the rule for `field`, if there is one, says of `value`."""
    if isinstance(value, str) and "${" in value:
        return []  # it refers to what only the worker knows: a checkpoint's configuration
    allowed = RULES[field](value) if field in RULES else None
    if allowed is None:
        return []
    return [ConfigError(field, spelled(value), "not allowed", allowed, f"correct {field}")]


def _unknown(node: Mapping[str, Any], known: set[str], prefix: str = "") -> list[Failure]:
    return [
        ConfigError(
            f"{prefix}{key}", spelled(node[key]), "no such key", suggestion(key, known),
            "remove it or correct its name",
        )
        for key in node
        if key not in known
    ]  # fmt: skip


def _lacks(job: Mapping[str, Any], field: str) -> bool:
    """Whether `job` has no such field; of a section that is not there at all, that is told."""
    group, _, key = field.rpartition(".")
    node = job.get(group) if group else job
    return isinstance(node, Mapping) and key not in node


def _at_odds(job: Mapping[str, Any]) -> list[Failure]:
    """Which of its values, each allowed, exclude each other."""
    dataset, model, scheduler, compiling = (
        node if isinstance(node := job.get(group), Mapping) else {}
        for group in ("dataset", "model", "scheduler", "compile")
    )
    found: list[Failure] = []
    shape, channels = dataset.get("shape"), model.get("input_channels")
    if isinstance(shape, list) and isinstance(channels, int):
        if not fits(shape[0], channels):
            found.append(misfit(shape[0], channels))
        found += [
            ConfigError(
                f"dataset.{key}", dataset[key], f"{len(dataset[key])} numbers, {shape[0]} channels",
                "a number for each channel of dataset.shape, or one for all, is allowed",
                f"correct dataset.{key}",
            )
            for key in ("mean", "std")
            if isinstance(dataset.get(key), list) and len(dataset[key]) not in (1, shape[0])
        ]  # fmt: skip
    for key, other in (("mean", "std"), ("std", "mean")):
        if dataset.get(key, 0) is None and isinstance(dataset.get(other), list):
            found.append(ConfigError(
                f"dataset.{key}", "null", f"dataset.{other} is given", "both or none are allowed",
                f"set dataset.{key}, or dataset.{other}=null",
            ))  # fmt: skip
    mode = compiling.get("mode")
    if mode in GRAPHS and job.get("accumulate", 1) != 1:  # wrong gradients, or an error in mid-step
        found.append(ConfigError(
            "compile.mode", mode, f"accumulate={job['accumulate']} adds up gradients over parts",
            "a CUDA graph overwrites those of the part before; "
            "default and max-autotune-no-cudagraphs are allowed with it",
            "choose one, or accumulate=1",
        ))  # fmt: skip
    if scheduler.get("T_max") == 0 and job.get("epochs"):
        found.append(ConfigError(
            "scheduler.T_max", 0, f"the cosine has no end in {job['epochs']} epochs",
            "a whole number of at least 1 is allowed, epochs by default", "leave it out",
        ))  # fmt: skip
    return found


def fits(channels: int, wanted: int) -> bool:
    """Whether images of so many channels can be made the model's input: gray ones are repeated."""
    return channels in (1, wanted)


def misfit(channels: int, wanted: int) -> ConfigError:
    return ConfigError(
        "model.input_channels", wanted, f"the images have {channels} channels",
        f"{channels} is allowed, or gray images for any model", "choose another model or dataset",
    )  # fmt: skip


def spelled(value: Any) -> Any:
    """`value` as YAML and the command line spell it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return value


def nearest(word: str, options: Iterable[str]) -> str:
    """What to do about a `word` that is none of `options`."""
    near = suggestion(word, options)
    return near if near.startswith("did you mean") else "name one of them"


def suggestion(word: str, known: Iterable[str]) -> str:
    """The names in `known` that `word` may have been meant to be, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names)}"


def require_division(batch_size: int, processes: int, parts: int = 1) -> None:
    """Raise ConfigError unless the global batch divides by the processes, and theirs by `parts`."""
    each, rest = divmod(batch_size, processes)
    if rest == 0 and each % parts == 0:
        return
    if rest == 0:
        raise ConfigError(
            "accumulate", parts, f"a process's {each} examples do not divide into so many parts",
            "parts are equal", f"choose a divisor of {each}",
        )  # fmt: skip
    below, above = (batch_size // processes) * processes, -(-batch_size // processes) * processes
    raise ConfigError(
        "batch_size", batch_size, f"does not divide by {processes} processes",
        "batch_size is global: every process takes an equal part",
        f"choose {below or above} or {above}" if below and below != above else f"choose {above}",
    )  # fmt: skip
