"""Read the files in conf/ and experiments/: groups, their options, and keys to suggest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

STUDIES = "experiments"


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads values as OmegaConf's loader does (1e-3 is a number), a tenth of a second faster."""

    yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers


def groups_of(conf: Path, command: str) -> dict[str, list[str]]:
    """The groups in the defaults list of the configuration, each with its options."""
    defaults = read_tree(conf / f"{command}.yaml").get("defaults", [])
    names = [str(key) for entry in defaults if isinstance(entry, dict) for key in entry]
    folders = {name: conf / name for name in names if " " not in name}
    if STUDIES in folders:
        folders[STUDIES] = conf.parent / STUDIES
    return {
        name: sorted(path.stem for path in folder.glob("*.yaml"))
        for name, folder in folders.items()
    }


def read_tree(path: Path) -> dict[Any, Any]:
    """Read a file of conf/; empty if it is not YAML, which composing reports."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}


def keys_near(key: str, conf: Path) -> set[str]:
    """The keys in the section or group of `key`, to suggest."""
    section = key.partition(".")[0]
    if section == "hydra":
        return {"the keys that --cfg hydra shows"}
    found = {name for name in keys_of(conf) if name.startswith(f"{section}.")}
    return found or {name for name in keys_of(conf) if "." not in name}


def keys_of(conf: Path) -> set[str]:
    """Every key in the files of conf/: at the top, in sections, in the groups' options."""
    found: set[str] = set()
    for path in sorted(conf.rglob("*.yaml")):
        group = "" if path.parent == conf else f"{path.parent.name}."
        found.add(group.rstrip("."))
        for key, value in read_tree(path).items():
            if key in ("defaults", "hydra") or str(key).startswith("_"):
                continue
            found.add(group + str(key))
            if isinstance(value, dict):
                found.update(f"{group}{key!s}.{inner!s}" for inner in value)
    return {name for name in found if name and not name.endswith("_target_")}
