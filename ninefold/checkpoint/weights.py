"""Weights from anybody's file into a model, and an account of what fitted."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

WRAPPERS = ("module", "_orig_mod")
# What is rounded to the model's precision. Narrower ones mean nothing without their scales.
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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

    Floats of 16 to 64 bits take the model's precision, integers the model's width; one for the
    other, or a complex, quantized, sparse or empty shell of a tensor does not fit.
    `module.` (DataParallel, DDP) and `_orig_mod.` (torch.compile) are dropped wherever they
    stand in a name, unless the model has that very name.
    """
    own = model.state_dict()
    renamed: dict[str, Tensor] = {}
    for key, value in found.items():
        name = _own_name(key, own)
        renamed[key if name in renamed else name] = value  # a second tensor for one name is extra
    fitting = {k: v for k, v in renamed.items() if k in own and _mismatch(v, own[k]) is None}
    model.load_state_dict(fitting, strict=False)
    return LoadReport(
        loaded=sorted(fitting),
        missing=sorted(own.keys() - renamed.keys()),
        unexpected=sorted(renamed.keys() - own.keys()),
        mismatched=[
            f"{key}: {_mismatch(renamed[key], own[key])}"
            for key in sorted((renamed.keys() & own.keys()) - fitting.keys())
        ],
    )


def _mismatch(value: Tensor, own: Tensor) -> str | None:
    """What keeps `value` from being copied into `own`, as `theirs for ours`; or nothing."""
    if value.shape != own.shape:
        return f"{list(value.shape)} for {list(own.shape)}"
    for kind in ("is_quantized", "is_sparse", "is_meta"):
        if getattr(value, kind):
            return f"{kind.removeprefix('is_')} for plain"
    if value.layout != torch.strided:
        return f"{value.layout} for {own.layout}".replace("torch.", "")
    theirs, ours = ((t.dtype in FLOATS, _whole(t.dtype)) for t in (value, own))
    same = value.dtype == own.dtype or (theirs == ours and any(theirs))
    return None if same else f"{value.dtype} for {own.dtype}".replace("torch.", "")


def _whole(dtype: torch.dtype) -> bool:
    """Whether `dtype` holds integers; bool does not."""
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def _own_name(key: str, own: Container[str]) -> str:
    """`key` as the model calls it, if it does under any of the wrappers' prefixes."""
    inner = key
    while inner not in own and inner.partition(".")[0] in WRAPPERS:
        inner = inner.partition(".")[2]
    if inner in own:
        return inner
    return ".".join(part for part in key.split(".") if part not in WRAPPERS)
