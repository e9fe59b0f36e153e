"""Check a command line, and turn errors of Hydra and OmegaConf into one-line failures."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence, Set
from traceback import walk_tb
from typing import Any, NoReturn

import yaml
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from ninefold.config import search_path
from ninefold.config.conf_files import STUDIES, groups_of, read_tree
from ninefold.config.hydra_internal import get_args_parser
from ninefold.config.options import option_keys
from ninefold.config.parse import key_and_value, key_of, likely_a_sweep, parsed, quoted, value_of
from ninefold.config.rules import breach
from ninefold.config.schema import KEYS, OPTIONS
from ninefold.errors import (
    ConfigError,
    Failure,
    ResourceError,
    nearest,
    not_installed,
    suggestion,
)
from ninefold.places import CONF, see, typed_as
from ninefold.types import spelled

NOT_EMPTY = ("hydra.run.dir", "hydra.sweep.dir", "ckpt", "resume", "study.resume")
SEVERAL = ("logger",)  # groups of which a command may choose a list of options
EXTRAS = {  # of plugins
    "hydra/sweeper/optuna": "sweepers",
    "hydra/launcher/joblib": "sweepers",
    "hydra/launcher/submitit_local": "slurm",
    "hydra/launcher/submitit_slurm": "slurm",
}


def of_arguments(arguments: Sequence[str], command: str) -> list[Failure]:
    """All problems of a command line that can be found before the configuration is composed.

    Hydra stops at the first mistake. `command` is the name of a configuration in conf/.
    """
    if odd := unreadable(arguments):
        return odd
    try:
        flags = _parser(command).parse_args(quoted(arguments))
    except ConfigError as failure:
        return [failure]
    found = [] if flags.config_path else search_path.problems(flags)
    if flags.config_path or (flags.config_name or command) != command:
        command = ""  # a configuration folder of the user, whose keys are unknown
    elif search_path.of_users(flags):
        command = ""  # options may be in those folders too
    if flags.shell_completion:
        return []
    given: dict[str, Override] = {}
    looks = bool(command and flags.overrides)
    groups = groups_of(command) if looks else {}
    sections = (
        read_tree(CONF / f"{command}.yaml").keys() - {"defaults", "hydra"} if looks else set()
    )
    for text in flags.overrides:
        try:
            (override,) = parsed([text])
        except Exception:  # those of ANTLR, of Hydra, and ValueError for a number of 5,000 digits
            override = None
        if override is None or not override.key_or_group:
            found.append(_not_an_override(text))
            continue
        key = override.get_key_element().lstrip("+~")
        given[key] = override
        found += _wrong_value(override, key, likely_a_sweep(flags), known=bool(command))
        if looks:
            found += _wrong_key(override, key, groups, sections)
    return [*found, *_two_folders(given)]


def _not_an_override(text: str) -> ConfigError:
    key, _, value = text.partition("=")
    is_key = re.fullmatch(r"\s*[^\s=]+\s*", key)
    return ConfigError(
        key.strip() if is_key else "override",
        value if is_key else repr(text),
        "not an override; key=value is allowed, the value in quotes where it holds , "
        f": = or brackets{'' if text.isascii() else ', or letters such as é'}; "
        "correct it, and quote it for your shell",
    )


def _two_folders(given: Mapping[str, Override]) -> list[Failure]:
    """A failure of a command, its overrides by key, that says twice where to write."""
    return [
        ConfigError(
            folder,
            _value(given[folder]),
            f"{what}; {key}={_value(given[key])} says which; leave {folder} out",
        )
        for folder, key, what in (
            ("hydra.run.dir", "resume", "a resumed run goes on in its folder"),
            ("hydra.sweep.dir", "study.resume", "a study that goes on does so in its folder"),
        )
        if folder in given and key in given and given[key].value() not in (None, "auto")
    ]


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
    return reference_in("directory", here)


def reference_in(field: str, path: str) -> list[Failure]:
    """A failure if a `path`, fully resolved, would be taken for a reference of OmegaConf's."""
    if "${" not in path:
        return []
    return [
        ConfigError(
            field,
            path,
            "its name holds ${; Hydra takes that for a reference, also in the path of a folder; "
            "choose or rename a folder so that it does not",
        )
    ]


def unknown_key(key: str, value: str, known: Set[str]) -> ConfigError:
    """The failure of an argument whose key, or the section that it is in, is not `known`."""
    first = re.split(r"[./@]", key.lstrip("+~"))[0]
    return ConfigError(
        key, value, f"no such key; {suggestion(first, known)}; correct its name, or leave it out"
    )


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


def _value(override: Override) -> str:
    """The value of an override as typed."""
    return "~" if override.is_delete() else value_of(override)


def _wrong_value(override: Override, key: str, multirun: bool, known: bool) -> list[Failure]:
    """The failure of an override whose value is not accepted.

    known: whether all options are ours; one of the user's own may accept other values.
    """
    if override.is_sweep_override():
        takes = "one run takes one of each"
        do = "add -m for a sweep over them, or put a list into brackets"
        if key == STUDIES:
            takes, do = "a command runs one study", "give them one after the other"
        elif multirun:
            return []
        return [ConfigError(key, _value(override), f"it has several values; {takes}; {do}")]
    value = _plain(override.value())
    if override.is_delete() or value == "???":
        return []
    nothing = not (isinstance(value, str) and value.strip())
    if key in NOT_EMPTY and nothing and not (key.endswith("resume") and value is None):
        return [
            ConfigError(
                key,
                spelled(value),
                f"it names nothing; a folder or a file is allowed; set {key}=PATH or leave it out",
            )
        ]
    # A mapping is merged into the existing one, and checked once it is composed.
    later = isinstance(value, dict) or (key in OPTIONS and not known)
    return [] if later else breach(key, value)


def _plain(value: Any) -> Any:
    """A value of Hydra's grammar without quotes."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.text if isinstance(value, QuotedString) else value


def _wrong_key(
    override: Override, key: str, groups: Mapping[str, list[str]], sections: Set[Any]
) -> list[Failure]:
    first = re.split(r"[./@]", key)[0]
    if first not in {*groups, *sections, "hydra"}:
        return [unknown_key(key, _value(override), {*groups, *sections})]
    if key not in groups:
        return []
    options = ", ".join(groups[key]) + (" are allowed" if len(groups[key]) > 1 else " is allowed")
    if override.is_delete():
        return [ConfigError(key, "~", f"it cannot be taken away; {options}; name one of them")]
    if override.is_sweep_override():
        return []
    option = _plain(override.value())
    several = option if key in SEVERAL and isinstance(option, list) else [option]
    names = [each.removesuffix(".yaml") for each in several if isinstance(each, str)]
    if names and len(names) == len(several) and set(names) <= set(groups[key]):
        return []
    if isinstance(option, dict) or (isinstance(option, str) and "${" in option):
        return []  # values for the group's keys, or a reference
    return [
        ConfigError(
            key, _value(override), f"no such option; {options}; {nearest(str(option), groups[key])}"
        )
    ]


def of_hydra(error: Exception, given: Sequence[str]) -> Failure | None:
    """The failure if `error` came from Hydra, OmegaConf or a plugin; None if it did not.

    given: the command's arguments.
    """
    if isinstance(error, HydraException | OmegaConfBaseException | yaml.YAMLError):
        return _of_composition(error, given)
    if isinstance(error, OSError):
        return None  # what the system refused to a plugin is told as it is to others
    modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    if plugins := [name.split(".")[1] for name in modules if name.startswith("hydra_plugins.")]:
        given_wrong = isinstance(error, ValueError | TypeError | KeyError)
        return (ConfigError if given_wrong else ResourceError)(
            "hydra",
            plugins[-1],
            f"{type(error).__name__}: {error}; this Hydra plugin failed; correct what it was "
            "given; HYDRA_FULL_ERROR=1 shows where",
        )
    if isinstance(error, ValueError) and modules[-1].startswith("hydra."):
        flags = " ".join(word for word in given if word.startswith("-"))
        return ConfigError(
            "arguments",
            flags or "?",
            f"{error!s}; Hydra does not accept them; correct them; --hydra-help lists all flags",
        )
    return None


def _of_composition(error: Exception, given: Sequence[str]) -> ConfigError:
    """The failure of a configuration that could not be composed."""
    if isinstance(error, yaml.YAMLError):
        file = getattr(getattr(error, "problem_mark", None), "name", "?")
        what = " ".join(str(error).split())
        return ConfigError("config", file, f"it is not YAML; {what}; correct the file")
    text = " ".join(str(error).split())
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        options = sorted(error.options)
        if extra := EXTRAS.get(str(error.missing_cfg_file)):
            return not_installed(group, option, "its plugin", extra)
        return ConfigError(
            group or "config",
            option,
            f"no such option; {', '.join(options)} are allowed; "
            f"{nearest(option, options) if options else see()}",
        )
    if match := re.search(r"Could not (?:override|delete[^']*) '([^']+)'", text):
        key = match.group(1).partition("=")[0]
        group, value = key.partition(".")[0], _given(key, given)
        if _given("ckpt", given) != "?" and group in groups_of("evaluate"):
            return ConfigError(
                key,
                value,
                f"{group} is taken from the checkpoint as a whole; a command that changes a key of "
                f"it names its option too; add {group}=OPTION",
            )
        adds = "++" if value.startswith("{") else "+"
        return ConfigError(
            key,
            value,
            f"the chosen options have no such key; {_near(key)}; correct its name, or "
            f"{adds}{key}=... if the target takes it",
        )
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = getattr(cause, "full_key", None)
    if not key:  # some of Hydra's errors name it in their text only
        known = [key_of(word) for word in given if "=" in word and not word.startswith("-")]
        key = next((word for word in known if word and word in text), "config")
    what = str(cause).partition("\n")[0]
    return ConfigError(key, _given(key, given), f"{what}; {see()}; correct the command")


def _near(key: str) -> str:
    """A suggestion of another key in the section or group of `key`."""
    section, dot, _ = key.partition(".")
    if section == "hydra":
        return "--cfg hydra shows its keys"
    known = {**KEYS, **option_keys()}.keys() - {key}
    return suggestion(key, {name for name in known if not dot or name.startswith(f"{section}.")})


def _given(key: str, given: Sequence[str]) -> str:
    """The value that the command line gives to `key`."""
    for word in given:
        name, value = key_and_value(word)
        if name == key:
            return value
    return "?"
