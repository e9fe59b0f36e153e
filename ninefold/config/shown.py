"""`ninefold conf` and `ninefold keys`: print the options that there are, and the keys they take."""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Callable, Sequence

from ninefold.config.conf_files import STUDIES, groups_of
from ninefold.config.options import option_keys
from ninefold.config.reference import COMMANDS, about, entry, spelled
from ninefold.config.schema import BY_OPTION, COMMAND, SWEEP, own_keys
from ninefold.config.spelling import nearest, suggestion
from ninefold.errors import ConfigError, Failure, require_configuration
from ninefold.files import read_text
from ninefold.places import CONF, EXPERIMENTS
from ninefold.types import words


def conf(arguments: Sequence[str]) -> int:
    """Print the groups, the options of one, or the file of an option; returns the exit code."""
    return _printed(_conf, arguments, "GROUP/OPTION, GROUP, train, evaluate or nothing")


def keys(arguments: Sequence[str]) -> int:
    """Print the keys whose names a pattern matches, and what they take; returns the exit code."""
    return _printed(_keys, arguments, "a pattern such as dataset.* or nothing")


def _printed(text: Callable[[str], str], arguments: Sequence[str], allowed: str) -> int:
    try:
        require_configuration()
        if len(arguments) > 1:
            said = " ".join(arguments)
            raise ConfigError("arguments", said, f"too many; {allowed} is allowed; leave some out")
        sys.stdout.write(text("".join(arguments)))
    except Failure as failure:
        print(failure, file=sys.stderr)
        return failure.code
    return 0


def _conf(name: str) -> str:
    """The text for GROUP, GROUP/OPTION, a command's name, or "": all groups. Raises Failure."""
    groups = groups_of("train")
    if not name:
        return "".join(f"{group}: {', '.join(options)}\n" for group, options in groups.items())
    if name in COMMANDS:
        return read_text(CONF / f"{name}.yaml")
    group, _, option = name.removesuffix(".yaml").partition("/")
    if group not in groups:
        known = f"{', '.join(groups)} are groups"
        raise ConfigError("conf", name, f"no such group; {known}; {nearest(group, groups)}")
    folder = EXPERIMENTS if group == STUDIES else CONF / group
    if not option:
        return "\n".join(entry(each, about(folder, each)) for each in groups[group]) + "\n"
    if option not in groups[group]:
        known = f"{', '.join(groups[group])} are options"
        raise ConfigError(
            "conf", name, f"no such option; {known}; {nearest(option, groups[group])}"
        )
    text = read_text(folder / f"{option}.yaml")
    # Users may save the text anywhere, so the editor's $schema path is made absolute.
    return re.sub(r"\$schema=\S*schema/", lambda _: f"$schema={CONF / 'schema'}/", text)


def _keys(pattern: str) -> str:
    """A paragraph for each key that `pattern` matches, or is a part of. Raises Failure."""
    known = {**own_keys(True), **own_keys(False), **COMMAND, **SWEEP, **option_keys()}
    wanted = pattern if "*" in pattern else f"*{pattern}*"
    lines = []
    for name, key in known.items():
        if key.is_section or not fnmatch.fnmatchcase(name, wanted):
            continue
        default = "" if key.default is BY_OPTION else f"={spelled(key.default)}"
        lines.append(entry(f"{name}{default}", f"{words(key.kind)}. {key.meaning}"))
    if not lines:
        near = suggestion(pattern, {name.partition(".")[0] for name in known})
        raise ConfigError("keys", pattern, f"no key has such a name; {near}; correct it")
    return "\n".join(lines) + "\n"
