"""Parts of a model that are not trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ninefold.errors import ConfigError, suggestion


def freeze(model: nn.Module, prefixes: Sequence[str] | None) -> list[str]:
    """Take the gradients from the parameters under `prefixes`; return a note about it.

    prefixes: names of parameters or modules: `layer1` is layer1 and all below it, not layer10.
    Raises ConfigError if there is none under a prefix, or none would be left to train.
    """
    names = [name for name, _ in model.named_parameters()]
    frozen = below(names, prefixes, "freeze")
    if frozen and len(frozen) == len(names):
        wrong = "no parameter would be trained"
        allowed = f"the model has {', '.join((name for name, _ in model.named_children()))}"
        do = "leave some of them out"
        raise ConfigError("freeze", f"[{','.join(prefixes or ())}]", wrong, allowed, do)
    if not frozen:
        return []
    count = 0
    for name in frozen:
        count += model.get_parameter(name).requires_grad_(False).numel()
    every = sum(parameter.numel() for parameter in model.parameters())
    return [f"freeze: {count:,} of {every:,} parameters are not trained."]


def below(names: Sequence[str], prefixes: Sequence[str] | None, field: str) -> list[str]:
    """Return the `names` that are under one of `prefixes`; see `freeze`.

    field: the key that holds the prefixes. Raises ConfigError if there is none under a prefix.
    """
    for prefix in prefixes or ():
        if not any(under(name, prefix) for name in names):
            allowed = suggestion(prefix, beginnings(names))
            do = "name the beginning of parameters, or leave it out"
            raise ConfigError(field, f"[{prefix}]", "no parameter begins so", allowed, do)
    return [name for name in names if any(under(name, prefix) for prefix in prefixes or ())]


def kept_frozen(model: nn.Module, prefixes: Sequence[str] | None) -> nn.Module:
    """`model` to train, without what is under `prefixes`."""
    return PartlyFrozen(model, prefixes) if prefixes else model


def under(name: str, prefix: str) -> bool:
    """Return whether `name` is `prefix` or below it."""
    return f"{name}.".startswith(f"{prefix.rstrip('.')}.")


def beginnings(names: Sequence[str]) -> list[str]:
    """List what names of parameters begin with: `a`, `a.b` and `a.b.weight`."""
    parts = [name.split(".") for name in names]
    return list(dict.fromkeys(".".join(p[: end + 1]) for p in parts for end in range(len(p))))


class PartlyFrozen(nn.Module):
    """The network, whose batch normalization under `prefixes` never learns from a batch.

    It normalizes by its running statistics, as in evaluations, and leaves them as they are. The
    modules are looked up each time, as a strategy may replace them.
    """

    def __init__(self, network: nn.Module, prefixes: Sequence[str]) -> None:
        super().__init__()
        self.network = network
        self.prefixes = tuple(prefixes)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.network(*inputs, **named)

    def train(self, mode: bool = True) -> PartlyFrozen:
        super().train(mode)
        for name, module in self.network.named_modules():
            if isinstance(module, _BatchNorm) and any(under(name, p) for p in self.prefixes):
                module.eval()
        return self
