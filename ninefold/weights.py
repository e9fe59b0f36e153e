"""Weights from anybody's file into a model, and an account of what fitted."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

WRAPPERS = ("module", "_orig_mod")


def weights(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The model's tensors in a checkpoint: ours, a bare state_dict, or one under a usual key."""
    for key in ("model", "state_dict", "model_state_dict"):
        if isinstance(content.get(key), Mapping):
            content = content[key]
            break
    return {str(key): value for key, value in content.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class LoadReport:
    """How a file's tensors fit a model, by name."""

    loaded: list[str]
    missing: list[str]
    unexpected: list[str]
    mismatched: list[str]

    @property
    def complete(self) -> bool:
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        for name in ("missing", "unexpected", "mismatched"):
            keys = getattr(self, name)
            more = ", ..." if len(keys) > 4 else ""
            parts.append(f"{len(keys)} {name}" + (f" ({', '.join(keys[:4])}{more})" * bool(keys)))
        return ", ".join(parts)


def load_weights(model: nn.Module, found: Mapping[str, Tensor]) -> LoadReport:
    """Copy into `model` every tensor of `found` that fits it, and tell which did not.

    `module.` (DataParallel, DDP) and `_orig_mod.` (torch.compile) are dropped wherever they
    stand in a name, unless the model has that very name.
    """
    own = model.state_dict()
    renamed = {_own_name(key, own): value for key, value in found.items()}
    fitting = {k: v for k, v in renamed.items() if k in own and v.shape == own[k].shape}
    model.load_state_dict(fitting, strict=False)
    return LoadReport(
        loaded=sorted(fitting),
        missing=sorted(own.keys() - renamed.keys()),
        unexpected=sorted(renamed.keys() - own.keys()),
        mismatched=[
            f"{key}: {list(renamed[key].shape)} for {list(own[key].shape)}"
            for key in sorted((renamed.keys() & own.keys()) - fitting.keys())
        ],
    )


def _own_name(key: str, own: Container[str]) -> str:
    """`key` as the model calls it, if it does under any of the wrappers' prefixes."""
    inner = key
    while inner not in own and inner.partition(".")[0] in WRAPPERS:
        inner = inner.partition(".")[2]
    if inner in own:
        return inner
    return ".".join(part for part in key.split(".") if part not in WRAPPERS)
