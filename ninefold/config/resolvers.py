"""What conf/ refers to: the keys of a command, and resolvers for the names of run folders."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf

from ninefold.config import resume, rules, schema, search_path

MAX_VALUES = 64  # characters of values in the name of a folder


def register() -> None:
    """Register the resolvers with OmegaConf, and with Hydra the keys and where options are.

    To be called before either composes anything.
    """
    Plugins.instance().register(search_path.Ours)
    for command in ("train", "evaluate"):
        # A file of the user's would come before it: no other has this name.
        ConfigStore.instance().store(f"ninefold_{command}_keys", schema.defaults(command))
    resolvers: dict[str, Callable[..., Any]] = {
        "sweep_folder": lambda resumed, study, time: (
            resumed or f"outputs/{file_name(study or 'sweep')}/{time}"
        ),
        "cell_name": lambda *parts: run_name(*parts),
        "run_folder": _run_folder,
        "hydra_folder": lambda resumed: None if _resumes(resumed) else ".hydra",
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def file_name(text: str) -> str:
    """`text` as the name of a single folder, without separators or a leading dot."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", text)[:64]
    return name if rules.NAME.fullmatch(name) else f"_{name[1:]}"


def run_name(*parts: object, values: str = "") -> str:
    """The name of a run's folder in a sweep; values: what it has of what was swept besides."""
    name = file_name("_".join(map(str, parts)))
    plain = re.sub(r"[^A-Za-z0-9.-]+", "_", values)[:MAX_VALUES]
    if not plain:
        return name
    before, _, seed = name.rpartition("_")
    return f"{before}_{plain}_{seed}"


def _run_folder(resumed: str | None) -> str:
    if _resumes(resumed):
        return str(resumed)  # in place
    return time.strftime("outputs/runs/%Y-%m-%d_%H-%M-%S_") + f"{time.time_ns() // 1000 % 10**6:06}"


def _resumes(resumed: str | None) -> bool:
    """Whether `resumed` is a run folder; AUTO is replaced by one once it is found."""
    return bool(resumed) and resumed != resume.AUTO
