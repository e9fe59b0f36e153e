"""Activation checkpointing: parts of a network compute their forward pass again in the backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from ninefold.errors import ConfigError, no_part

FIELD = "checkpoint_activations"


def checkpoint_activations(model: nn.Module, names: Sequence[str] | None) -> None:
    """Save only the inputs of these submodules, and compute the rest again in the backward pass.

    Less memory for the time of another forward pass of these parts (Chen et al. 2016, "Training
    deep nets with sublinear memory cost"). Weights and their names do not change: the class of a
    part becomes one derived from it, which DataParallel's replicas keep. Random numbers are drawn
    alike both times, and statistics of normalizations are updated once.

    names: of submodules. Raises ConfigError if there is no such part, one is within another, or it
        is a ModuleList or ModuleDict.
    """
    known = [name for name, _ in model.named_modules() if name]
    for number, name in enumerate(names or ()):
        if name not in known:
            raise no_part(FIELD, name, name, known)
        outer = [other for other in names or () if name.startswith(f"{other}.")]
        if outer or name in list(names or ())[:number]:
            raise ConfigError(
                FIELD,
                name,
                f"{f'it is part of {outer[0]}' if outer else 'it is named twice'}; each part is "
                "computed again once; name one of them",
            )
        part = model.get_submodule(name)
        if isinstance(part, nn.ModuleList | nn.ModuleDict):
            parts = ", ".join(f"{name}.{child}" for child, _ in part.named_children())
            raise ConfigError(
                FIELD,
                name,
                "it is a list of parts, which are called one by one; parts with a forward pass of "
                f"their own are allowed, such as {parts}; name these",
            )
        part.__class__ = recomputing(type(part))


def recomputing(kind: type[nn.Module]) -> type[nn.Module]:
    """`kind` with a forward pass that keeps nothing, while it is trained."""

    def forward(self: nn.Module, *inputs: Any, **options: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return kind.forward(self, *inputs, **options)
        # A compiled part keeps the statistics by itself, and knows no contexts.
        compiling = torch.compiler.is_compiling()
        kept: dict[str, Any] = {} if compiling else {"context_fn": lambda: contexts(self)}
        return checkpoint(
            lambda *given: kind.forward(self, *given, **options),
            *inputs,
            use_reentrant=False,
            **kept,
        )

    return type(kind.__name__, (kind,), {"forward": forward})


def contexts(part: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the forward pass, and of computing it again."""
    return nullcontext(), statistics_kept(part)


@contextmanager
def statistics_kept(part: nn.Module) -> Iterator[None]:
    """A context after which normalizations have the running statistics of before."""
    found = [m for m in part.modules() if isinstance(m, _NormBase) and m.track_running_stats]
    buffers = [buffer for module in found for buffer in module.buffers(recurse=False)]
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)
