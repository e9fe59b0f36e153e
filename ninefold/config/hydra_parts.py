"""The parts of Hydra that its public `main` is made of, which ninefold calls one by one.

`main` composes, makes the folder and runs in one call. Here a job is checked between the first and
the second, and a study composes each of its cells: that takes Hydra's loader, parsers and
callbacks. hydra._internal, which Hydra may change with any version, is imported here alone.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Sequence

from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_automatic_config_search_path, get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

__all__ = [
    "Callbacks",
    "ConfigLoaderImpl",
    "Hydra",
    "create_automatic_config_search_path",
    "get_args_parser",
    "get_overrides_dirname",
    "parsed",
    "split",
]


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


def split(given: Sequence[Override]) -> list[list[str]]:
    """The overrides of each job of a sweep, in the order of Hydra's own sweeper."""
    (jobs,) = BasicSweeper.split_arguments([*given], None)
    return [list(job) for job in jobs]
