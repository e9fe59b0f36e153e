"""A command's overrides: as Hydra's own parser reads them, and their keys and values as typed."""

from __future__ import annotations

import copy
import functools
from argparse import Namespace
from collections.abc import Iterable

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override


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


def key_and_value(text: str) -> tuple[str, str]:
    """The key of an override, without the +, ++ or ~ before it, and its value as typed."""
    key, _, value = text.lstrip("+~").partition("=")
    return key, value


def key_of(text: str) -> str:
    """The key of an override, without the +, ++ or ~ before it."""
    return key_and_value(text)[0]


def value_of(override: Override) -> str:
    """The value of a parsed override as typed."""
    return key_and_value(override.input_line or "")[1]
