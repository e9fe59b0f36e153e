"""The configuration of a job: one tree, in which what comes from the environment is marked.

Each value that is read from the environment is noted as a secret; what is written keeps the
reference.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from ninefold import machine, secrets
from ninefold.files import flat

Tree = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A tree of references, which is read with or without the environment.

    tree: as composed.
    resolves: whether its references can be resolved. Those of an evaluation refer to each other
        through the checkpoint's configuration, so only its worker can resolve them.
    """

    tree: DictConfig
    resolves: bool = True

    @cached_property
    def resolved(self) -> Tree:
        """Plain data with the values of the environment, each of which is noted as a secret."""
        with noting_secrets():
            return self._plain()

    @cached_property
    def frozen(self) -> Tree:
        """Plain data to be written: references to the environment stay, so no secret is in it."""
        with _resolving({"oc.env": _as_written, "oc.decode": _decode_as_written}):
            return self._plain()

    def with_values(self, values: Mapping[str, Any]) -> Configuration:
        """This configuration with other values of these dotted keys, and of what refers to them."""
        if not values:
            return self
        tree: DictConfig = pickle.loads(pickle.dumps(self.tree))  # as copy(), in a third of it
        for key, value in values.items():
            OmegaConf.update(tree, key, value, merge=False, force_add=True)
        return replace(self, tree=tree)

    def completed(self, values: Mapping[str, Any] | None = None) -> Configuration:
        """Return it with these values, threads=auto resolved, and relative paths made absolute."""
        now, found = flat(self.frozen), {**(values or {})}
        if now["threads"] == "auto":
            found["threads"] = machine.cores()
        for key in ("dataset.root", "dataset.cache_dir", "init"):
            path = now.get(key)
            if isinstance(path, str) and "${" not in path:  # a run folder is used from anywhere
                found[key] = str(Path(path).expanduser().absolute())
        return self.with_values(found)

    def refers(self, field: str) -> bool:
        """Whether the value of a dotted key is a reference to that of another."""
        section, _, name = field.rpartition(".")
        node = OmegaConf.select(self.tree, section) if section else self.tree
        with suppress(OmegaConfBaseException):  # of a key that is missing
            return isinstance(node, DictConfig) and OmegaConf.is_interpolation(node, name)
        return False

    def _plain(self) -> Tree:
        found = OmegaConf.to_container(
            _resolvable(self.tree), resolve=self.resolves, throw_on_missing=self.resolves
        )
        assert isinstance(found, dict)
        return {str(key): value for key, value in found.items()}


def _resolvable(tree: DictConfig) -> DictConfig:
    """`tree`, in which references into dataset.shape stay as they are while that is null."""
    if OmegaConf.select(tree, "dataset") is None or tree.dataset.get("shape", 0) is not None:
        return tree
    found = OmegaConf.create(_escape_shape_references(OmegaConf.to_container(tree)))
    assert isinstance(found, DictConfig)
    return found


def _escape_shape_references(tree: Any) -> Any:
    """`tree` with such references as text that nothing resolves."""
    if isinstance(tree, dict):
        return {key: _escape_shape_references(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return list(map(_escape_shape_references, tree))
    inner = isinstance(tree, str) and re.search(r"(?<!\\)\${dataset\.shape[.\[]", tree)
    return tree.replace("${dataset.shape", r"\${dataset.shape") if inner else tree


# Environment variables

_resolvers: dict[str, Callable[..., Any]] = {"oc.env": oc.env, "oc.decode": oc.decode}


def noting_secrets() -> AbstractContextManager[None]:
    """Record each value that is read from the environment as a secret, while the block runs."""
    return _resolving({"oc.env": _read})


@contextmanager
def _resolving(resolvers: dict[str, Callable[..., Any]]) -> Iterator[None]:
    before = dict(_resolvers)
    _force(resolvers)
    try:
        yield
    finally:
        _force(before)


def _force(resolvers: dict[str, Callable[..., Any]]) -> None:
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)
    _resolvers.update(resolvers)


def _read(name: str, *default: Any) -> str | None:
    if name in os.environ:
        secrets.note(name, os.environ[name])  # a default is in the configuration anyway
    return oc.env(name, *default)


def _as_written(name: str, *default: Any) -> str:
    return "${oc.env:" + ",".join([name, *map(_literal, default)]) + "}"


def _decode_as_written(text: str | None, _parent_: Any, _node_: Any) -> Any:
    if isinstance(text, str) and "${oc.env:" in text:
        return "${oc.decode:" + text + "}"
    return oc.decode(text, _parent_, _node_)


def _literal(default: Any) -> str:
    """`default` in OmegaConf's grammar: quoted, because it may hold commas and braces."""
    if default is None:
        return "null"
    text = str(default).replace("\\", "\\\\") if str(default).endswith("\\") else str(default)
    return "'" + text.replace("'", "\\'") + "'"
