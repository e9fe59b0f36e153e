"""The commands that the options of a command line make: their texts, names, folders, variables."""

from __future__ import annotations

import os
import re
import string
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ninefold.bench import output
from ninefold.bench.command import Command, folder_name
from ninefold.bench.guardian import guarded
from ninefold.bench.options import without_effect
from ninefold.bench.revisions import check_out, checkout, cleanup_commands, set_up
from ninefold.errors import ConfigError, one_line
from ninefold.numbers import counted
from ninefold.process import scratch
from ninefold.ranks import started_by

REVISIONS = "revisions"  # the folder of their copies
OF_ONE = ("revisions", "try", "precisions", "strategies")  # options that make several of one


@contextmanager
def prepared(asked: Namespace) -> Iterator[tuple[Path, list[Command]]]:
    """The folder for the output of the commands, and these, while the block runs.

    asked: the options of `add_shared`. Raises ConfigError.
    """
    require_possible()
    given, names = with_values(asked), asked.revisions or []
    original = checkout(names) if names else Path()
    with (
        output.own_folder(asked.keep) as keep,
        guarded(scratch(), cleanup_commands(names, original, keep / REVISIONS) if names else []),
    ):
        if names:
            given = [
                replace(given[0], name=c.name, folder=c.folder, variables=c.variables, copy=c)
                for c in check_out(names, original, keep / REVISIONS, asked.link)
            ]
        if asked.strategies:
            from ninefold.bench.strategies import in_strategies  # here, as nothing else needs it

            given = in_strategies(given[0], asked.strategies.split(","))
        if asked.precisions:
            from ninefold.bench.precisions import in_precisions  # likewise

            precisions = asked.precisions.split(",")
            given = [made for each in given for made in in_precisions(each, precisions)]
        yield keep, finished(given, asked)


def set_up_copies(commands: Sequence[Command], setup: str | None) -> None:
    """Set up the copies of commands, which may take minutes: when all else is known to be right."""
    for command in commands:
        if command.copy:
            set_up(command.copy, command.variables, setup)
            require_folder(command.folder)  # that it may have made


def require_possible() -> None:
    if sys.platform != "linux":
        wrong = "it holds commands by SIGSTOP and /proc"
        raise ConfigError("platform", sys.platform, wrong, "Linux has these", "use it, or WSL")
    if (launcher := started_by()) == "torchrun":
        wrong = "each of its processes would compare all commands"
        do = "have torchrun in the commands"
        raise ConfigError("launcher", launcher, wrong, "one process does", do)


def with_values(asked: Namespace) -> list[Command]:
    """The commands, one for each value of --each, which names those of one command."""
    texts: list[str] = asked.commands
    if not texts:
        allowed = "two, or one and an option that makes more"
        raise ConfigError("arguments", "none", "no command was given", allowed, "add --help")
    given = [(text, "") for text in texts]
    keys = [each.partition("=")[0] for each in asked.each]
    if len({*keys}) < len(keys):
        wrong, allowed = "a name is given twice", "each name once is allowed"
        raise ConfigError("--each", ", ".join(keys), wrong, allowed, "put its values into one")
    for each in asked.each:
        key, _, values = each.partition("=")
        if not values or any(f"{{{key}}}" not in text for text in texts):
            allowed = f"K=V,V and {{{key}}} in the command do"
            raise ConfigError("--each", each, "it changes nothing", allowed, "write both")
        given = [
            (text.replace(f"{{{key}}}", value), ", ".join(filter(None, (name, f"{key}={value}"))))
            for text, name in given
            for value in values.split(",")
        ]
    for text, name in given:
        if not text.strip():
            wrong, needed = "there is nothing in it", "a line for a shell is needed"
            raise ConfigError("command", "''", wrong, needed, "write one")
        try:
            f"{text}{name}".encode()
        except UnicodeEncodeError as error:
            wrong, do = "it is not UTF-8", "write it so, or name the file by a link"
            raise ConfigError("command", repr(text), wrong, str(error), do) from None
    for option in OF_ONE:
        if getattr(asked, option) and len(given) != 1:
            wrong = "so many commands were given"
            raise ConfigError(f"--{option}", len(given), wrong, "it takes one", "give one")
    named = len(texts) == 1
    return [Command(text, name=name if named else "", step=asked.step) for text, name in given]


def finished(given: list[Command], asked: Namespace) -> list[Command]:
    """The commands with their own names, folders and environments. What is given once is for all.

    Raises ConfigError.
    """
    options = {"cwd": asked.cwd, "env": asked.env, "name": asked.name}
    count = max(map(len, (given, *options.values()))) if len(given) == 1 else len(given)
    given = given * (count // len(given))
    for option, values in options.items():
        if len(values) not in ({0, count} if option == "name" else {0, 1, count}):
            wrong = f"{len(values)} for {counted(count, 'command')}"
            allowed = "one for each is allowed"
            raise ConfigError(f"--{option}", ", ".join(values), wrong, allowed, "give these")
        if getattr(asked, "try") and len(values) > 1:
            raise without_effect(option, values[1], "with --try, which takes one")
        options[option] = values * count if len(values) == 1 else values or [None] * count
    commands, taken = list[Command](), {output.DETAILS, REVISIONS}
    for number, (command, cwd, env, name) in enumerate(zip(given, *options.values(), strict=True)):
        letter = string.ascii_uppercase[number] if number < 26 else f"C{number + 1}"
        name = one_line(name or command.name) or letter
        while folder_name(name) in taken:
            name = f"{name} ({letter})"
        taken.add(folder_name(name))
        folder = folder_of(command, cwd)
        variables = {**command.variables, **({} if env is None else environment(command, env))}
        commands.append(replace(command, name=name, folder=folder, variables=variables))
    return commands


def folder_of(command: Command, cwd: str | None) -> Path:
    """The folder that a command runs in. Raises ConfigError."""
    folder, copy = command.folder / (cwd or ""), command.copy
    if not copy:
        require_folder(folder)
    if cwd and copy and not folder.resolve().is_relative_to(copy.root.resolve()):
        wrong, allowed = "all revisions would run in it", "a folder of the repository is allowed"
        raise ConfigError("--cwd", cwd, wrong, allowed, "name it from the working folder")
    return folder


def require_folder(folder: Path) -> None:
    if not folder.is_dir():
        wrong, needed = "there is no such folder", "one that is there is needed"
        raise ConfigError("--cwd", folder, wrong, needed, "make it, or correct it")


def environment(command: Command, venv: str) -> dict[str, str]:
    """The variables of a command that runs in a virtual environment. Raises ConfigError."""
    words = (word for word in command.text.split() if not re.match(r"\w+=", word))
    folders, _, program = next(words, "").rpartition("/")
    if folders and re.fullmatch(r"python[\d.]*|torchrun", program):
        wrong = f"the command names its Python, {folders}/{program}"
        allowed = "python alone is that of the environment"
        raise ConfigError("--env", venv, wrong, allowed, "write that")
    folder = Path(venv).absolute()
    python = folder / "bin" / "python"
    if not (python.is_file() and os.access(python, os.X_OK)) or os.pathsep in str(folder):
        allowed = "a virtual environment, and no :, does"
        raise ConfigError("--env", venv, "it has no bin/python", allowed, "name one")
    path = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"PATH": path, "VIRTUAL_ENV": str(folder), "PYTHONHOME": ""}
