"""Folders of the user's own options: what Hydra would leave out of them without a word."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from ninefold.config.parse import key_and_value
from ninefold.errors import ConfigError, Failure
from ninefold.files import read_bytes
from ninefold.places import CONF, ROOT

SEARCHED = "hydra.searchpath"


def problems(flags: Namespace) -> list[Failure]:
    """What is wrong with the folders that a command adds to conf/, or takes from it."""
    for text in flags.overrides:
        key, value = key_and_value(text)
        kept = "${project_root:}" in value or f"file://{ROOT}" in value
        if key == SEARCHED and not kept:
            return [
                ConfigError(
                    SEARCHED,
                    value or "~",
                    f"it takes the studies in experiments/ away; file://{ROOT} is searched "
                    "for them; use --config-dir FOLDER for options of your own",
                )
            ]
    return [
        ConfigError(
            "option",
            own,
            f"it is not used, as one of ours has its name; Hydra takes {CONF / name}; give it "
            "another name",
        )
        for own, name in _both(flags)
    ]


def _both(flags: Namespace) -> Iterator[tuple[Path, Path]]:
    """Files of the user's that are at the same place in conf/, with another content."""
    folder = Path(flags.config_dir).absolute() if flags.config_dir else None
    if folder is None or folder == CONF:
        return
    for ours in sorted(CONF.glob("*/*.yaml")) + sorted(CONF.glob("*.yaml")):
        name = ours.relative_to(CONF)
        own = folder / name
        if own.is_file() and read_bytes(own) != read_bytes(ours):
            yield own, name
