"""Hydra's and OmegaConf's errors, in one line of ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hydra.errors import MissingConfigException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ninefold.check import suggestion
from ninefold.errors import ConfigError, Failure


def of_composition(error: Exception, conf: Path) -> ConfigError:
    """What a configuration that could not be composed is told; `conf` holds the known keys."""
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        options = sorted(error.options)
        return ConfigError(
            group or "config", option, "no such option", f"{', '.join(options)} are allowed",
            suggestion(option, options) if options else "see conf/",
        )  # fmt: skip
    text = " ".join(str(error).split())
    if match := re.search(r"Could not override '([^']+)'", text):
        key = match.group(1)
        value = re.search(rf"\+{re.escape(key)}=(\S+)", text)
        return ConfigError(
            key, value.group(1) if value else "?", "no such key",
            suggestion(key, _keys(conf)), f"+{key}=... adds one that a target takes",
        )  # fmt: skip
    if match := re.search(r"parsing override '([^']*)'", text):
        key, _, given = match.group(1).partition("=")
        return ConfigError(
            key, given or "?", "not an override", "key=value is allowed, values may be quoted",
            "see the override grammar of Hydra",
        )  # fmt: skip
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = getattr(cause, "full_key", None) or "config"
    return ConfigError(key, "?", str(cause).partition("\n")[0], "see conf/", "correct the override")


def unresolved(config: Any, prefix: str = "") -> list[Failure]:
    """Every key of an OmegaConf container that has no value, or refers to what is not there."""
    found: list[Failure] = []
    for key in range(len(config)) if isinstance(config, ListConfig) else list(config):
        name = f"{prefix}{key}"
        try:
            value = config[key]
        except OmegaConfBaseException as error:
            raw = OmegaConf.to_container(config, resolve=False)[key]  # type: ignore[index]
            what = str(error).partition("\n")[0]
            found.append(ConfigError(name, raw, what, "see conf/", f"set {name}=..."))
            continue
        if isinstance(value, DictConfig | ListConfig):
            found += unresolved(value, f"{name}.")
    return found


def _keys(conf: Path) -> set[str]:
    """Every key that can be overridden: at the top, in sections, in the groups' files."""
    found: set[str] = set()
    for path in sorted(conf.rglob("*.yaml")):
        tree = OmegaConf.to_container(OmegaConf.load(path))
        assert isinstance(tree, dict)
        group = "" if path.parent == conf else f"{path.parent.name}."
        found.add(group.rstrip("."))
        for key, value in tree.items():
            if key in ("defaults", "hydra") or str(key).startswith("_"):
                continue
            found.add(group + str(key))
            if isinstance(value, dict):
                found.update(f"{group}{key!s}.{inner!s}" for inner in value)
    return found - {""}
