"""The folders in which Hydra looks for options besides conf/: studies, extensions, the user's."""

from __future__ import annotations

import importlib.resources
import os
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from ninefold.config.hydra_parts import parsed
from ninefold.errors import ConfigError, Failure
from ninefold.places import CONF, EXPERIMENTS, OPTIONS, ROOT
from ninefold.words import key_of

SEARCHED = "hydra.searchpath"
VARIABLE = "NINEFOLD_CONFIG_DIR"  # folders or pkg://PACKAGE, separated as in PATH


class Ours(SearchPathPlugin):
    """Has Hydra find the studies, the options of extensions, and what NINEFOLD_CONFIG_DIR names.

    In our commands alone: `resolvers.register` registers it in a process.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        main = [each.path for each in search_path.get_path() if each.provider == "main"]
        if str(main[0] if main else "").removeprefix("file://") != str(CONF):
            return  # a configuration of the user's, or another program
        search_path.append("ninefold", f"file://{ROOT}")  # experiments/ is a group in it
        for folder in OPTIONS[1:]:
            search_path.append("ninefold", f"file://{folder}")
        for place in of_environment():
            search_path.append(VARIABLE, place)


def of_environment() -> list[str]:
    """The places that NINEFOLD_CONFIG_DIR names, as Hydra's search path has them."""
    # The colon of pkg:// separates nothing.
    names = filter(None, re.split(f"{os.pathsep}(?!//)", os.environ.get(VARIABLE, "")))
    return [n if n.startswith("pkg://") else f"file://{os.path.abspath(n)}" for n in names]


def of_users(flags: Namespace) -> list[str]:
    """The places in which a command looks for the user's own options."""
    found = of_environment()
    if flags.config_dir:
        found.append(f"file://{os.path.abspath(flags.config_dir)}")
    return [*found, *listed(flags.overrides)]


def listed(overrides: Sequence[str]) -> list[str]:
    """The places that overrides of the search path name."""
    texts = [text for text in overrides if key_of(text) == SEARCHED]
    return [place for text in texts for place in _listed(text)]


def _listed(text: str) -> list[str]:
    """The places in an override of the search path, without references; Hydra tells mistakes."""
    try:
        (override,) = parsed([text])
        value: Any = override.value()
    except Exception:  # which composing reports
        return []
    places = [str(getattr(each, "text", each)) for each in value or ()]
    return [place for place in places if "${" not in place]


def problems(flags: Namespace) -> list[Failure]:
    """The user's options that Hydra would not use, as they have names of built-in ones."""
    if flags.config_path:  # nothing is built in there
        return []
    wrong, do = "it is not used, as a built-in one has its name", "give it another name"
    return [
        ConfigError("option", own, wrong, f"Hydra takes {ours}", do)
        for root in map(_root_of, of_users(flags))
        for own, ours in _both(root)
    ]


def _root_of(place: str) -> Any:
    """The folder that a place names: a Path, or what stands for one in an installed package."""
    if not place.startswith("pkg://"):
        return Path(place.removeprefix("file://"))
    try:
        return importlib.resources.files(place.removeprefix("pkg://"))
    except Exception:  # importing a package of the user's may raise any
        return Path(os.devnull)  # Hydra warns that it is not available


def _both(root: Any) -> Iterator[tuple[Any, Path]]:
    """Pairs (file below `root`, ours) of the same name and different content."""
    ours = {path: path.relative_to(each) for each in OPTIONS for path in each.rglob("*.yaml")}
    ours |= {path: path.relative_to(ROOT) for path in sorted(EXPERIMENTS.glob("*.yaml"))}
    for path, name in ours.items():
        own = root
        for part in name.parts:
            own = own.joinpath(part)
        if own.is_file() and own.read_bytes() != path.read_bytes():
            yield own, path
