"""Networks that no library provides, one file and one yaml each, and what they return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ninefold.errors import ConfigError
from ninefold.numbers import counted
from ninefold.tree import leaves


@dataclass(frozen=True)
class Pretrained:
    """Pretrained weights for a network.

    name: of the weights. tensors: by the names of the network's. drawn: names of its tensors that
    they do not replace, as the head of another number of classes.
    """

    name: str
    tensors: Mapping[str, Tensor]
    drawn: Sequence[str]


class Output(nn.Module):
    """Wraps a network to return one part of its output, the prediction.

    part: its key, where the network returns a mapping (`out` for torchvision's segmentation
    models), or its index, where it returns a tuple or a list.
    """

    def __init__(self, network: nn.Module, part: str | int) -> None:
        super().__init__()
        self.network = network
        self.part = part

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        return self.network(*inputs, **named)[self.part]


def picked(output: Any, part: str | int | None, name: str) -> Any:
    """The prediction in a model's output. Raises ConfigError if there is none.

    It may be a tuple or a dict, for a loss that takes it so.
    """
    found = describe(output)
    try:
        output = output if part is None else output[part]
    except Exception as error:
        wrong = f"model={name} returns no such part"
        do = "name a part of it, or null for a model that returns a tensor"
        raise ConfigError("model.output", part, wrong, f"it returns {found}", do) from error
    if not any(isinstance(leaf, Tensor) for leaf in leaves(output)):
        raise not_a_tensor(output, part, name)
    return output


def not_a_tensor(output: Any, part: str | int | None, name: str) -> ConfigError:
    """The failure of a model that returns no tensor, for a task that takes nothing else."""
    field, value = ("model", name) if part is None else ("model.output", part)
    first: Any = 0 if isinstance(output, tuple | list) else None
    if isinstance(output, dict) and output:
        first = "logits" if "logits" in output else next(iter(output))
    return ConfigError(
        field,
        value,
        "the model's output is not a tensor",
        f"it returns {describe(output)}",
        "set model.output to the key or index of the prediction in it"
        + (f", as {first}" if first is not None else ""),
    )


def describe(output: Any) -> str:
    """Describe a model's output: its type and the keys or number of its parts."""
    kind = type(output).__name__
    if isinstance(output, dict):
        return f"{kind} with the keys {', '.join(map(str, output))}"
    if isinstance(output, tuple | list):
        return f"{kind} of {counted(output, 'part')}"
    return kind
