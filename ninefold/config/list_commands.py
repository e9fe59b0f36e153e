"""What commands print instead of running: `--help`, `ninefold conf`, `ninefold keys`."""

from __future__ import annotations

import fnmatch
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ninefold.config.conf_files import STUDIES, files_of, groups_of
from ninefold.config.options import option_keys
from ninefold.config.schema import (
    BY_OPTION,
    COMMAND,
    GROUPS,
    KEYS,
    SWEEP,
    Key,
    of_command,
    own_keys,
)
from ninefold.config.untrusted import EVALUATED
from ninefold.errors import ConfigError, nearest, require_configuration
from ninefold.exits import exit_code_of
from ninefold.files import read_text
from ninefold.places import CONF, typed_as
from ninefold.types import spelled, words

COMMANDS = {"train": tuple(GROUPS), "evaluate": EVALUATED}  # the groups of each
WIDTH = 100  # of --help, which is to fit a screen of 24 lines
COMMENT = 24  # where one begins in what `conf train` prints
USAGE = {
    "train": "[-m] [GROUP=OPTION ...] [KEY=VALUE ...]     (-m: a sweep, of values A,B,C)",
    "evaluate": "ckpt=PATH [GROUP=OPTION ...] [KEY=VALUE ...]",
}
COMMON = {
    "train": (
        *("epochs", "batch_size", "max_steps", "seed", "device", "optimizer.lr", "dataset.root"),
        *("parallel.processes", "checkpoint.every", "resume"),
    ),
    "evaluate": (
        *("ckpt", "weights", "batch_size", "device", "threads", "dataset.root", "load.partial"),
        *("loader.workers", "parallel.processes"),
    ),
}
COMPARE = """\
{compare} [GROUP=OPTION ...] [KEY=VALUE ...]

Which parallel strategy and which precision trains a model the fastest on this machine? Trains the
model with what differs here and is safe without a score: on a CPU none and ddp, in fp32 and, if it
has instructions for it, bf16; on a GPU fp32, tf32 and bf16, or fp32 and scaler, and ddp on several.
They take turns, beside a copy of the first. Says which to use, how sure that is, how to train so.

Examples:
  {compare} model=mlp batch_size=256
  {compare} model=resnet18 dataset=cifar10 dataset.root=data dataset.download=true
  {compare} parallel=none,ddp amp=fp32,bf16 'study.ask=[time,score]' seed=0,1,2

What to compare and for how long:
  parallel=A,B              any of {parallel}
  amp=A,B                   any of {amp}
  study.time_budget=N       minutes of timing, {minutes} by default
  study.ask=[time,score] compare accuracy too, which trains each combination once per seed
  launch.cpu_processes=N    processes of ddp and its like on a CPU, {processes} by default
  hydra.sweep.dir=FOLDER    where its files go: a new folder
  study.resume=FOLDER       go on with a comparison

Other groups and keys are those of training:
  {keys} [PATTERN]
  {conf} [GROUP]
Your own model and dataset in Python: help(ninefold.compare).
"""

CONF_HELP = """\
{conf} [GROUP[/OPTION]]

Lists the options that there are, or prints the file of one.

  (nothing)         all groups with the names of their options
  GROUP             a line for each option of a group, such as model
  GROUP/OPTION      the file of an option, such as model/resnet18: its keys and their values
  train, evaluate   the file of the command: keys with their defaults
"""
KEYS_HELP = """\
{keys} [PATTERN]

Prints the keys that a command takes: type, default and meaning of each.

  (nothing)    all keys
  WORD         the keys whose names have this word in them, such as lr
  PATTERN      the keys whose names match, such as 'dataset.*' (in quotes: *, ? and [abc])
"""


def help_text(command: str) -> str:
    """The text of `python COMMAND.py --help`."""
    keys, groups = {**of_command(command), **option_keys()}, COMMANDS[command]
    cells = [entry(group, " ".join(names_in(group)), 14, WIDTH) for group in groups]
    if command == "train":
        cells.append(entry(STUDIES, " ".join(names_in(STUDIES)), 14, WIDTH))
    lines = [
        f"{typed_as(command)} {USAGE[command]}",
        f"Groups and options ({typed_as('conf')} GROUP describes them):",
    ]
    for cell in cells:  # two short ones share a line
        if len(joined := f"{lines[-1]:{WIDTH // 2}}{cell}") <= WIDTH and len(lines) > 2:
            lines[-1] = joined
        else:
            lines.append(cell)
    lines.append(f"Some of the keys, with defaults ({typed_as('keys')} [PATTERN] prints all keys):")
    for name in COMMON[command]:
        first = re.split(r"[.;:](?: |$)", keys[name].meaning)[0]
        lines.append(entry(f"{name}={default_of(keys[name])}", first, 24, WIDTH))
    lines.append(
        "--cfg job prints the configuration that a command composes, --hydra-help more flags."
    )
    return "\n".join(lines)


def entry(left: str, right: str, column: int = 26, width: int = 79) -> str:
    """A line of help, wrapped."""
    first = f"  {left}".ljust(column)
    lines = textwrap.wrap(right, width - column, break_on_hyphens=False)
    if len(first) > column or not first.endswith(" "):
        lines.insert(0, first)
    else:
        lines[:1] = [first + "".join(lines[:1])]
    return f"\n{' ' * column}".join(lines).rstrip()


def compare(_: Sequence[str]) -> int:
    """Print the help of `ninefold compare`; returns the exit code."""
    return _printed(_compare, (), "", "")


def conf(arguments: Sequence[str]) -> int:
    """Print the groups, the options of one, or the file of an option; returns the exit code."""
    allowed = "GROUP/OPTION, GROUP, train, evaluate or nothing"
    return _printed(_conf, arguments, allowed, CONF_HELP.format(conf=typed_as("conf")))


def keys(arguments: Sequence[str]) -> int:
    """Print the keys whose names a pattern matches, and what they take; returns the exit code."""
    allowed = "a pattern such as dataset.* or nothing"
    return _printed(_keys, arguments, allowed, KEYS_HELP.format(keys=typed_as("keys")))


def _printed(
    text: Callable[[str], str], arguments: Sequence[str], allowed: str, of_help: str
) -> int:
    def show() -> None:
        if {"-h", "--help"} & {*arguments}:
            sys.stdout.write(of_help)
            return
        require_configuration()
        if len(arguments) > 1:
            said = ("too many", f"{allowed} is allowed", "leave some out")
            raise ConfigError("arguments", " ".join(arguments), *said)
        sys.stdout.write(text("".join(arguments)))

    return exit_code_of(show, "it was stopped", "nothing was written")


def _compare(_: str) -> str:
    options = {group: ", ".join(names_in(group)) for group in ("parallel", "amp")}
    return COMPARE.format(
        **{name: typed_as(name) for name in ("compare", "conf", "keys")},
        **options,
        minutes=KEYS["study.time_budget"].default,
        processes=KEYS["launch.cpu_processes"].default,
    )


def _conf(name: str) -> str:
    """The text for GROUP, GROUP/OPTION, a command's name, or "": all groups. Raises Failure."""
    groups = groups_of("train")
    if not name:
        return "".join(f"{group}: {', '.join(options)}\n" for group, options in groups.items())
    if name in COMMANDS:
        return with_keys(read_text(CONF / f"{name}.yaml"), of_command(name))
    group, _, option = name.removesuffix(".yaml").partition("/")
    if group not in groups:
        known = f"{', '.join(groups)} are groups"
        raise ConfigError("conf", name, "no such group", known, nearest(group, groups))
    if not option:
        return "\n".join(entry(path.stem, about(path)) for path in files_of(group)) + "\n"
    if option not in groups[group]:
        known = f"{', '.join(groups[group])} are options"
        raise ConfigError("conf", name, "no such option", known, nearest(option, groups[group]))
    return read_text(next(path for path in files_of(group) if path.stem == option))


def _keys(pattern: str) -> str:
    """A paragraph for each key that `pattern` matches, or is a part of. Raises Failure."""
    known = [
        each for keys in (own_keys(False), own_keys(True), COMMAND, SWEEP, option_keys())
        for each in keys.items()
    ]  # fmt: skip
    wanted = pattern if {*"*?["} & {*pattern} else f"*{pattern}*"
    lines: dict[str, None] = {}  # train and evaluate share most keys, but not every default
    for name, key in known:
        if key.is_section or not fnmatch.fnmatchcase(name, wanted):
            continue
        default = default_of(key)
        left = f"{name}={default}" if default else name
        lines[entry(left, f"{words(key.kind)}. {key.meaning}")] = None
    if not lines:
        names = {name if "." in pattern else name.rpartition(".")[2] for name, _ in known}
        near = nearest(pattern, names)
        allowed = f"{typed_as('keys')} lists all"
        raise ConfigError("keys", pattern, "no key has such a name", allowed, near)
    return "\n".join(lines) + "\n"


def with_keys(text: str, keys: Mapping[str, Key]) -> str:
    """`text`, conf/COMMAND.yaml, with its keys: their defaults, and their meanings as comments."""
    lines = []
    for name, key in keys.items():
        _, inner, last = name.rpartition(".")
        value = "" if key.is_section else f" {default_of(key)}"
        first = f"{'  ' if inner else ''}{last}:{value}  ".ljust(COMMENT)
        meaning = textwrap.wrap(key.meaning, WIDTH - COMMENT - 2, break_on_hyphens=False)
        lines.append(first + f"\n{' ' * COMMENT}".join(f"# {line}" for line in meaning))
    before, hydra, after = text.partition("\nhydra:")
    return "\n".join([before, *lines, hydra + after])


def default_of(key: Key) -> str:
    """The default of a key as the command line takes it; empty: it differs between options."""
    return "" if key.default is BY_OPTION else str(spelled(key.default))


def names_in(group: str) -> list[str]:
    """The options of a group: the names of its files."""
    return [path.stem for path in files_of(group)]


def about(path: Path) -> str:
    """The first comment in an option's file."""
    for line in read_text(path).splitlines():
        if line.startswith("# ") and not line.startswith("# @package"):
            return line.removeprefix("# ")
        if not line.startswith("#"):
            break
    return ""
