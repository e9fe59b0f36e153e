"""Read the files in conf/ and experiments/: groups and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from ninefold.places import CONF, EXPERIMENTS, option_files

STUDIES = "experiments"


def _loader() -> Any:
    """OmegaConf's loader (1e-3 is a number, a key is given once), a tenth of a second faster."""
    theirs: Any = get_yaml_loader()
    if not yaml.__with_libyaml__:
        return theirs
    from yaml.cyaml import CParser

    class Loader(CParser, theirs):  # type: ignore[misc]
        def __init__(self, stream: object) -> None:
            CParser.__init__(self, stream)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)

    return Loader


Loader = _loader()


def groups_of(command: str) -> dict[str, list[str]]:
    """The groups in the defaults list of the configuration, each with its options."""
    names = [name for name in defaults_of(command) if " " not in name]
    return {name: [path.stem for path in files_of(name)] for name in names}


def defaults_of(command: str) -> dict[str, Any]:
    """The defaults list of the configuration: the option of each group."""
    found = read_tree(CONF / f"{command}.yaml").get("defaults", [])
    return {
        str(k): option for entry in found if isinstance(entry, dict) for k, option in entry.items()
    }


def files_of(group: str) -> list[Path]:
    """The files of a group's options, or the studies, by their names."""
    return sorted(EXPERIMENTS.glob("*.yaml")) if group == STUDIES else option_files(group)


def option_file(group: str, option: str) -> Path:
    """The file of an option of ours, or where it would be."""
    files = {path.stem: path for path in files_of(group)}
    return files.get(option, CONF / group / f"{option}.yaml")


def read_tree(path: Path) -> dict[Any, Any]:
    """Read a file of conf/; empty if it is not YAML, which composing reports."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}
