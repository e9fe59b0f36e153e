"""Check a command line, and turn errors of Hydra and OmegaConf into one-line failures."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser
from collections.abc import Sequence
from traceback import walk_tb
from typing import NoReturn

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from ninefold.config import search_path
from ninefold.config.conf_files import fits, groups_of, options_of
from ninefold.config.hydra_parts import get_args_parser
from ninefold.config.options import option_keys
from ninefold.config.schema import of_command
from ninefold.errors import (
    ConfigError,
    Failure,
    ResourceError,
    error_text,
    nearest,
    not_installed,
    suggestion,
)
from ninefold.places import see, typed_as
from ninefold.words import key_and_value, key_of, quoted

EXTRAS = {  # of plugins
    "hydra/sweeper/optuna": "sweepers",
    "hydra/launcher/submitit_local": "slurm",
    "hydra/launcher/submitit_slurm": "slurm",
}
OPEN = ("optimizer", "scheduler", "logger")  # groups whose targets may take any key


def of_arguments(arguments: Sequence[str], command: str) -> list[Failure]:
    """Problems of a command line that Hydra would not refuse, or with a page.

    command: train or evaluate.
    """
    if odd := unreadable(arguments):
        return odd
    try:
        flags = _parser(command).parse_args(quoted(arguments))
    except ConfigError as failure:
        return [failure]
    return search_path.problems(flags)


def unreadable(arguments: Sequence[str]) -> list[Failure]:
    """What Hydra or the files of a run cannot hold: in the arguments or the directory's name."""
    try:
        here = os.getcwd()
    except OSError as error:
        gone = "the working directory is gone"
        return [ResourceError("directory", "?", gone, error.strerror or "", "cd to another")]
    for field, text in (("directory", here), *(("arguments", word) for word in arguments)):
        try:
            text.encode()
        except UnicodeEncodeError:
            named = os.fsencode(text).decode(errors="replace")
            do = "rename it, or set LC_ALL=C.UTF-8 or PYTHONUTF8=1"
            wrong, allowed = "it is not UTF-8, or this locale is not", "the files of a run are"
            return [ConfigError(field, named, wrong, allowed, do)]
    return []


def _parser(command: str) -> ArgumentParser:
    """Hydra's parser of flags, whose errors are raised as ConfigError."""
    parser = get_args_parser()

    def error(message: str) -> NoReturn:
        wrong = message.rpartition("arguments: ")[2].removeprefix("argument ").partition(": ")[0]
        allowed = "flags are allowed before all key=value or behind them"
        do = f"correct or move it ({typed_as(command)} --hydra-help lists flags)"
        raise ConfigError("arguments", wrong, message, allowed, do)

    parser.error = error  # type: ignore[method-assign]
    return parser


def of_hydra(error: Exception, given: Sequence[str], command: str = "train") -> Failure | None:
    """The failure if `error` came from Hydra, OmegaConf or a plugin; None if it did not.

    given: the arguments of `command`, train or evaluate.
    """
    if isinstance(error, HydraException | OmegaConfBaseException | yaml.YAMLError):
        return _of_composition(error, given, command)
    if isinstance(error, OSError):
        return None  # what the system refused to a plugin is told as it is to others
    modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    if plugins := [name.split(".")[1] for name in modules if name.startswith("hydra_plugins.")]:
        given_wrong = isinstance(error, ValueError | TypeError | KeyError)
        kind, wrong = ConfigError if given_wrong else ResourceError, "this Hydra plugin failed"
        do = "correct what it was given (HYDRA_FULL_ERROR=1 shows where)"
        return kind("hydra", plugins[-1], error_text(error), wrong, do)
    if isinstance(error, ValueError) and modules[-1].startswith("hydra."):
        field, value, do = "arguments", " ".join(given), "correct them"
        allowed = "--hydra-help lists all flags of Hydra"
        for key, null in map(key_and_value, given):
            if null == "null" and key in groups_of("train"):
                field, value = key, null
                allowed = f"a yaml takes `override /{key}: null` beside a section {key}"
                do = "name an option"
        return ConfigError(field, value, str(error), allowed, do)
    return None


def _of_composition(error: Exception, given: Sequence[str], command: str) -> ConfigError:
    """The failure of a configuration that could not be composed."""
    if isinstance(error, yaml.YAMLError):
        file = getattr(getattr(error, "problem_mark", None), "name", "?")
        what = " ".join(str(error).split())
        return ConfigError("config", file, "it is not YAML", what, "correct the file")
    if isinstance(error, OverrideParseException):
        return _not_an_override(error.override)
    text = " ".join(str(error).split())
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        options = sorted(error.options)
        if extra := EXTRAS.get(str(error.missing_cfg_file)):
            return not_installed(group, option, "its plugin", extra)
        allowed = f"{', '.join(options)} are allowed"
        do = nearest(option, options) if options else see()
        return ConfigError(group or "config", option, "no such option", allowed, do)
    if match := re.search(r"Could not (?:override|delete[^']*) '([^']+)'", text):
        key = match.group(1).partition("=")[0]
        group, value = key.partition(".")[0], _given(key, given)
        for word, source in (("ckpt", "checkpoint"), ("resume", "run")):
            is_key = word == "ckpt" or key in option_keys()
            named = _given(word, given) not in ("?", "auto", "null")
            if named and group in groups_of("evaluate") and is_key:
                wrong = f"{group} is taken from the {source} as a whole"
                allowed = "a command that changes a key of it names its option too"
                return ConfigError(key, value, wrong, allowed, f"add {group}=OPTION")
        do = "leave it out, or name such an option" if key in option_keys() else "correct its name"
        section = value.startswith("{")
        if group in OPEN or key.count(".") > 1 or section:
            do += f", or {'++' if section else '+'}{key}=... if the target takes it"
        wrong = "the chosen options have no such key"
        return ConfigError(key, value, wrong, _near(key, command), do)
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = getattr(cause, "full_key", None)
    if not key:  # some of Hydra's errors name it in their text only
        known = [key_of(word) for word in given if "=" in word and not word.startswith("-")]
        key = next((word for word in known if word and word in text), "config")
    if found := re.search(r"'(dataset\.shape\[\d+\])' not found", text):
        wrong = "an item's input has no such dimension"
        allowed = "a plain number has none, and an image is [channels, height, width]"
        do = "return arrays or tensors, as torch.tensor([number]) with model=mlp"
        return ConfigError(key, f"${{{found[1]}}}", wrong, allowed, do)
    # Behind that Hydra lists folders, and OmegaConf types.
    what = re.split(r" Config search path:| full_key:", " ".join(str(cause).split()))[0]
    return ConfigError(key, _given(key, given), what, see(), "correct the command")


def _not_an_override(text: str) -> ConfigError:
    key, _, value = text.partition("=")
    if not re.fullmatch(r"\s*[^\s=]+\s*", key):
        key, value = "override", repr(text)
    allowed = "key=value is allowed, the value in quotes where it holds , : = or brackets"
    allowed += "" if text.isascii() else ", or letters such as é"
    do = "correct it, and quote it for your shell"
    return ConfigError(key.strip(), value, "not an override", allowed, do)


def _near(key: str, command: str) -> str:
    """Which options have the key, or a suggestion of one in its section or group, or elsewhere.

    All that is suggested is a key of `command`.
    """
    group, groups = key.partition(".")[0], groups_of(command)
    of_groups = {name for name in option_keys() if name.partition(".")[0] in groups}
    if key in of_groups:
        having = [option for option in options_of(group) if fits(key, option)]
        return f"it is a key of {group}={', '.join(having)}"
    begin = f"{group}." if "." in key else ""
    if begin == "hydra.":
        return "--cfg hydra shows its keys"
    known = {*of_command(command), *groups, *of_groups} - {key}
    if same := sorted(name for name in known if name.rpartition(".")[2] == key):
        return f"did you mean {' or '.join(same[:3])}?"
    if begin and (near := {name for name in known if name.startswith(begin)}):
        return suggestion(key, near, begin)
    top = (name for name in known if "." not in name)  # with all of them it would be a page
    return suggestion(key, known, listed=top)


def _given(key: str, given: Sequence[str]) -> str:
    """The value that the command line gives to `key`."""
    return next((value for name, value in map(key_and_value, given) if name == key), "?")
