"""The configuration of a job: one tree, in which what comes from the environment is marked."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ninefold.config import environment

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
        with environment.noted():
            return self._plain()

    @cached_property
    def frozen(self) -> Tree:
        """Plain data to be written: references to the environment stay, so no secret is in it."""
        with environment.kept():
            return self._plain()

    def with_values(self, values: Mapping[str, Any]) -> Configuration:
        """This configuration with other values of these dotted keys, and of what refers to them."""
        if not values:
            return self
        tree: DictConfig = pickle.loads(pickle.dumps(self.tree))  # as copy(), in a third of it
        for key, value in values.items():
            OmegaConf.update(tree, key, value, merge=False, force_add=True)
        return replace(self, tree=tree)

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
