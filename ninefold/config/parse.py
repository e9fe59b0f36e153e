"""A command's overrides: as Hydra's own parser reads them, and their keys and values as typed."""

from __future__ import annotations

import copy
import functools
import re
from argparse import Namespace
from collections.abc import Iterable, Sequence

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from ninefold.words import key_and_value

SYNTAX = set("'\"[]{}(),\\$")  # of Hydra's values


def parsed(texts: Iterable[str], loader: ConfigLoader | None = None) -> list[Override]:
    """Parse overrides; each text once per process.

    loader: for `glob` of the options of a group. Raises Hydra's errors, and ValueError for a number
    of thousands of digits.
    """
    found = [copy.copy(_parse(text)) for text in texts]
    for override in found:
        override.config_loader = loader
    return found


@functools.cache
def _parse(text: str) -> Override:
    return OverridesParser.create().parse_override(text)


def likely_a_sweep(flags: Namespace) -> bool:
    """Whether a command says so itself, or chooses a study of experiments/, which says so then."""
    told = ("experiments=", "hydra.mode=")
    return flags.multirun or any(text.lstrip("+").startswith(told) for text in flags.overrides)


def value_of(override: Override) -> str:
    """The value of a parsed override as typed."""
    return key_and_value(override.input_line or "")[1]


def quoted(arguments: Iterable[str]) -> list[str]:
    """The arguments of a command, with quotes around values that Hydra's grammar cannot parse.

    It has no letters but those of ASCII outside quotes.
    """
    found = []
    for word in arguments:
        key, equals, value = word.partition("=")
        plain = bool(equals) and not word.startswith("-") and not SYNTAX & {*value}
        found.append(word if value.isascii() or not plain else f"{key}='{value}'")
    return found


def last_of_each(arguments: Sequence[str]) -> list[str]:
    """The arguments without values of keys that have another later: the last one wins."""
    kept: dict[str | int, str] = {}
    for number, word in enumerate(arguments):
        before = arguments[number - 1] if number else ""
        of_flag = before.startswith("-") and before not in ("-m", "--multirun")
        is_value = re.match(r"[\w./@]+=", word) and not of_flag
        key = word.partition("=")[0] if is_value else number
        kept.pop(key, None)
        kept[key] = word
    return list(kept.values())
