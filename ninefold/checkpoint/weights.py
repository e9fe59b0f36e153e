"""Loads the weights of any checkpoint file into a model, and reports what fitted."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ninefold.errors import CheckpointError
from ninefold.numbers import counted

WRAPPERS = ("module", "_orig_mod")
AVERAGE, RAW = "average", "raw"  # of a run with ema: its moving average, its own weights
COUNTER = "num_batches_tracked"  # of a BatchNorm
# These are converted to the model's precision. Narrower ones mean nothing without their scales.
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def weights(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The model's tensors in a checkpoint: ours, a bare state_dict, or one under a usual key."""
    for key in ("model", "state_dict", "model_state_dict"):
        if isinstance(content.get(key), Mapping):
            content = content[key]
            break
    return tensors(content)


def chosen(content: Mapping[str, Any], which: str | None) -> tuple[dict[str, Tensor], str]:
    """The tensors to load from a checkpoint, and which they are: AVERAGE or RAW.

    which: one of these; None: the average if there is one. Buffers are never averaged.
    Raises CheckpointError if there is no average to take.
    """
    found, average = weights(content), content.get("average")
    ours = "format" in content  # not a foreign file's
    averages = tensors(average) if ours and isinstance(average, Mapping) else {}
    if which == RAW or (which is None and not averages):
        return found, RAW
    if not averages:
        wrong = "this checkpoint has none"
        allowed = "it was trained without ema"
        raise CheckpointError("weights", AVERAGE, wrong, allowed, "use weights=raw")
    return found | averages, AVERAGE


@dataclass(frozen=True)
class LoadReport:
    """How a file's tensors fit a model.

    loaded, missing, unexpected: names of tensors. mismatched: names, each with its mismatch.
    """

    loaded: list[str]
    missing: list[str]
    unexpected: list[str]
    mismatched: list[str]

    @property
    def complete(self) -> bool:
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        counts = [f"{counted(self.loaded, 'tensor')} loaded"]
        for name in ("missing", "unexpected", "mismatched"):
            keys = getattr(self, name)
            more = ", ..." if len(keys) > 4 else ""
            counts.append(f"{len(keys)} {name}" + (f" ({', '.join(keys[:4])}{more})" * bool(keys)))
        return ", ".join(counts)


def load_weights(model: nn.Module, found: Mapping[str, Tensor]) -> LoadReport:
    """Copy every tensor of `found` that fits into `model`; report which did not.

    Floats of 16 to 64 bits are converted to the model's precision, integers to its width; of other
    dtypes only the same fits. Quantized, sparse and meta tensors never fit.
    `module.` (DataParallel, DDP) and `_orig_mod.` (torch.compile) are removed anywhere in a name,
    unless the model has a tensor of exactly that name. Files from before torch 0.4.1 do not count
    batches; that does not make them incomplete.
    """
    own = model.state_dict()
    renamed: dict[str, Tensor] = {}
    for key, value in sorted(found.items(), key=lambda item: item[0] not in own):
        name = own_name(key, own)
        # Exact names came first; a second tensor for one name is unexpected.
        renamed[key if name in renamed else name] = value
    fitting = {k: v for k, v in renamed.items() if k in own and mismatch(v, own[k]) is None}
    counted = any(key.endswith(COUNTER) for key in renamed)
    report = LoadReport(
        loaded=sorted(fitting),
        missing=sorted(
            key for key in own.keys() - renamed.keys() if counted or not key.endswith(COUNTER)
        ),
        unexpected=sorted(renamed.keys() - own.keys()),
        mismatched=[
            f"{key}: {mismatch(renamed[key], own[key])}"
            for key in sorted((renamed.keys() & own.keys()) - fitting.keys())
        ],
    )
    state = OrderedDict(fitting)
    # Versions of modules: torchvision's MNASNet refuses a state_dict without them.
    state._metadata = own._metadata  # type: ignore[attr-defined]
    model.load_state_dict(state, strict=False)
    return report


def aligned(found: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """`found` with the prefix removed from all its names, or added, that makes most of them fit.

    names: of the model's tensors. A file may be of a module that holds the model (`net.`), or the
    model may hold the module of the file (`backbone.`).
    """
    fits = Counter({("", ""): sum(key in names for key in found)})
    for key in found:
        for prefix in _prefixes(key):
            fits[prefix, ""] += key.removeprefix(prefix) in names
    for name in names:
        for prefix in _prefixes(name):
            fits["", prefix] += name.removeprefix(prefix) in found
    (remove, add), _ = fits.most_common(1)[0]  # of equal ones the first: none, then the shortest
    return {add + key.removeprefix(remove): value for key, value in found.items()}


def _prefixes(name: str) -> list[str]:
    """The beginnings of a dotted name, each with its dot, the shortest first."""
    parts = name.split(".")[:-1]
    return [".".join(parts[: end + 1]) + "." for end in range(len(parts))]


def tensors(content: Mapping[Any, Any]) -> dict[str, Tensor]:
    return {str(key): value for key, value in content.items() if isinstance(value, Tensor)}


def mismatch(value: Tensor, own: Tensor) -> str | None:
    """Why `value` cannot be copied into `own`, as `theirs for ours`; None if it can."""
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


def own_name(key: str, own: Container[str]) -> str:
    """The model's name for `key`, without the wrappers' prefixes."""
    inner = key
    while inner not in own and inner.partition(".")[0] in WRAPPERS:
        inner = inner.partition(".")[2]
    if inner in own:
        return inner
    return ".".join(part for part in key.split(".") if part not in WRAPPERS)
