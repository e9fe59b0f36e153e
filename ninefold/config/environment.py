"""Environment variables in a configuration: recorded as secrets when read, or left unresolved."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import OmegaConf
from omegaconf.resolvers import oc

from ninefold import secrets

_IN_FORCE: dict[str, Callable[..., Any]] = {"oc.env": oc.env, "oc.decode": oc.decode}


@contextmanager
def noted() -> Iterator[None]:
    """Record each value that is read from the environment as a secret, while the block runs."""
    with _resolving({"oc.env": _read}):
        yield


@contextmanager
def kept() -> Iterator[None]:
    """Keep references to the environment as written, so that no value is stored."""
    with _resolving({"oc.env": _as_written, "oc.decode": _decode_as_written}):
        yield


@contextmanager
def _resolving(resolvers: dict[str, Callable[..., Any]]) -> Iterator[None]:
    before = dict(_IN_FORCE)
    _force(resolvers)
    try:
        yield
    finally:
        _force(before)


def _force(resolvers: dict[str, Callable[..., Any]]) -> None:
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)
    _IN_FORCE.update(resolvers)


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
