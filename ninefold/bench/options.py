"""The options of what starts several commands, and which of them have an effect together."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import warnings
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, NamedTuple

from ninefold.bench import output
from ninefold.bench.command import OUT
from ninefold.errors import ConfigError
from ninefold.parser import Parser
from ninefold.places import typed_as
from ninefold.types import MAX_TIME

TURNS = "turns"  # the mode without an option
EACH: dict[str, Any] = {"action": "append", "default": []}  # an option that may come again


class Rule(NamedTuple):
    """When an option has an effect.

    needs: the option without which it has none. never: those beside which it has none. modes: those
    in which it has one, None: in all. A mode is an option, too, or `TURNS`.
    """

    needs: str | None = None
    never: str = ""
    modes: str | None = None


ALWAYS = Rule()


class CommandsParser(Parser):
    """Reads the options of a command that starts several commands. modes: that exclude others."""

    def __init__(self, command: str, does: str, examples: str, modes: Sequence[str] = ()) -> None:
        super().__init__(
            "see its options",
            "--help",
            prog=typed_as(command),
            description=does,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._modes, self._rules = modes, dict[str, Rule]()

    def take(
        self, flag: str, metavar: Any, says: str, kind: Any = str, rule: Rule = ALWAYS, **more: Any
    ) -> None:
        """Add an option with a value. more: as of argparse."""
        option = self.add_argument(flag, metavar=metavar, help=says, type=kind, **more)
        self._rules[option.dest] = rule

    def flag(self, *flags: str, says: str, rule: Rule = ALWAYS) -> None:
        """Add an option without a value."""
        option = self.add_argument(*flags, action="store_true", help=says)
        self._rules[option.dest] = rule

    def read(self, words: Sequence[str]) -> Namespace:
        """The arguments; what follows -- is one command. Raises ConfigError."""
        end = words.index("--") if "--" in words else len(words)
        asked = self.parse_intermixed_args(words[:end])
        if line := words[end + 1 :]:
            asked.commands.append(line[0] if len(line) == 1 else joined(line))
        self._require_effects(asked)
        return asked

    def _require_effects(self, asked: Namespace) -> None:
        """Raise ConfigError for an option that has no effect as others are."""
        given = {
            name: value
            for name, value in vars(asked).items()
            if value not in (None, []) and value is not False
        }
        modes = [mode for mode in self._modes if mode in given]
        mode = modes[0] if modes else TURNS
        for option, value in given.items():
            rule = self._rules.get(option, ALWAYS)
            works = "" if option in modes[1:] else rule.modes or mode
            if mode not in works.split():
                where = f"with --{mode}" if modes else f"without --{works}"
                raise without_effect(option, value, where)
            if rule.needs and rule.needs not in given:
                raise without_effect(option, value, f"without --{rule.needs}")
            for other in rule.never.split():
                if other in given:
                    raise without_effect(option, value, f"with --{other}")


def without_effect(option: str, value: object, where: str) -> ConfigError:
    text = ", ".join(map(str, value)) if isinstance(value, list) else value
    name = f"--{option.replace('_', '-')}"
    return ConfigError(name, text, f"it has no effect {where}", "see --help", "leave it out")


def add_shared(options: CommandsParser) -> None:
    """Add the options by which commands are made, run and told of."""
    one = "one for all commands, or one for each"
    axis = Rule(modes="turns score")
    names = Rule(None, "precisions strategies", "turns whole score")
    name = "a name for each command, in order, in the place of A, B, C"
    options.take("--name", "NAME", name, rule=names, **EACH)
    options.take("--cwd", "DIR", f"the folder to run in: {one}", **EACH)
    options.take("--env", "VENV", f"the virtual environment to run in: {one}", **EACH)
    each = "make one command for each value, in the place of {K}"
    options.take("--each", "K=V,V", each, **EACH)
    options.take(
        "--precisions",
        "P,P",
        "compare one script in fp32, bf16, fp16 as Lightning, Fabric, accelerate or Hugging Face's "
        "Trainer choose them by themselves; a plain loop gets autocast in bf16",
        rule=axis,
    )
    options.take(
        "--strategies",
        "S,S",
        "compare one script as one process (none) and by DDP on the GPUs, or in two processes on a "
        "CPU (ddp), by examples a second; with --precisions each in each",
        rule=axis,
    )
    revisions = "run one command in two revisions of git; . is the working tree as it is"
    options.take("--revisions", ("BASE", "HEAD"), revisions, rule=names, nargs=2)
    of_revisions = Rule(needs="revisions")
    link = "a file or folder that git does not have, to be linked into each revision"
    options.take("--link", "PATH", link, rule=of_revisions, **EACH)
    setup = "a line for /bin/sh to run in each revision first"
    options.take("--setup", "COMMAND", setup, rule=of_revisions)
    data = "write the answer as data into a regular file, or to stdout (-)"
    options.take("--json", "FILE", data, output.named)
    keep = "the folder for the output of the commands, new or empty (bench/DATE)"
    options.take("--keep", "DIR", keep, output.named)


# What the value of an option is.


def share(text: str) -> float:
    """The share that `3%` or `0.03` stands for."""
    number = text.strip()
    share = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"{text} is no share below 1: 3% or 0.03 is")
    return share


def positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number above 0")
    return number


def duration(text: str) -> float:
    if (number := positive(text)) >= MAX_TIME:
        raise argparse.ArgumentTypeError(f"{text} is no time below {MAX_TIME:g}")
    return number


def joined(words: Sequence[str]) -> str:
    """Words as a shell command; {out}, which becomes a quoted path, stands outside of quotes."""
    parts = ([part and shlex.quote(part) for part in word.split(OUT)] for word in words)
    return " ".join(OUT.join(each) or "''" for each in parts)


def function_name(text: str) -> str:
    """MODULE:FUNCTION, as of --step."""
    if not re.fullmatch(r"[\w.]+:[\w.]+", text):
        allowed = "MODULE:FUNCTION does, of a module that the script imports"
        raise argparse.ArgumentTypeError(f"{text} names no function: {allowed}")
    return text


def where_score_is(text: str) -> re.Pattern[str] | str:
    """A pattern, or what names a score in the folder {out} of a run."""
    if text.startswith(OUT):
        if not text.partition(":")[2]:
            allowed = f"{OUT}/FILE.json:KEY, or {OUT}:TAG of TensorBoard, does"
            raise argparse.ArgumentTypeError(f"{text} names no score: {allowed}")
        return text
    try:
        with warnings.catch_warnings(action="ignore"):
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text[:80]} is no pattern: {error}") from None
