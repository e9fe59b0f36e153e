"""Networks that no library provides, one file and one yaml each, and the check of a model."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ninefold.errors import ConfigError, Failure, located, memory_failure
from ninefold.tree import Tree, call, each, leaves, shapes


@dataclass(frozen=True)
class Input:
    """The images that a network takes, or that its weights were trained on.

    mean, std: per channel, what pixels from 0 to 1 are normalized with; None: they are not.
    size: height and width; None: not known.
    """

    mean: Sequence[float] | None
    std: Sequence[float] | None
    size: tuple[int, int] | None


@dataclass(frozen=True)
class Pretrained:
    """Pretrained weights for a network.

    name: of the weights. tensors: by the names of the network's. drawn: names of its tensors that
    they do not replace, as the head of another number of classes. input: what they were trained on.
    """

    name: str
    tensors: Mapping[str, Tensor]
    drawn: Sequence[str]
    input: Input


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


def check(
    model: nn.Module,
    part: str | int | None,
    loss: Callable[[Any, Any], Tensor],
    inputs: Tree,
    targets: Tree,
    name: str,
) -> None:
    """Raise ConfigError if `model` fails on these inputs or the task's loss on its output.

    inputs, targets: of an example or two; a network is called with a tensor, with the values of a
    tuple, or with those of a dict by keyword. name: the model's in the configuration. Takes
    milliseconds, as it runs on the meta device, where tensors have shapes only. If that fails it
    is repeated with real tensors, as a model may read values.
    """
    was_training, output = model.training, None
    model.eval()
    first = leaves(inputs)[0]
    try:
        with torch.no_grad(), torch.random.fork_rng([first.device] if first.is_cuda else []):
            try:
                some, their = each(lambda value: value.to("meta"), (inputs, targets))
                loss(picked(call(on_meta(model), some), part, name), their)
            except Failure:
                raise
            except Exception:
                require_taken(model, inputs, name)
                output = picked(call(model, inputs), part, name)
                loss(output, targets)
    except Failure:
        raise
    except Exception as error:
        if exhausted := memory_failure(error, "the model was being checked"):
            raise exhausted from error
        if output is not None and not isinstance(output, Tensor):
            raise not_a_tensor(output, part, name) from error
        raise ConfigError(
            "model",
            name,
            f"it fails in evaluation mode on examples of {shapes(inputs)}; "
            f"{located(error, str(error).strip() or type(error).__name__)}; choose another model, "
            "dataset or task, or set model.input_size",
        ) from error
    finally:
        model.train(was_training)


def on_meta(model: nn.Module) -> nn.Module:
    """A copy of `model` on the meta device: it takes no memory, and may keep what it computes."""
    parameters = {id(p): nn.Parameter(p.to("meta"), p.requires_grad) for p in model.parameters()}
    memo = {**parameters, **{id(buffer): buffer.to("meta") for buffer in model.buffers()}}
    copied: nn.Module = copy.deepcopy(model, memo)
    return copied


def require_taken(model: nn.Module, inputs: Tree, name: str) -> None:
    """Raise ConfigError if the network does not take so many inputs, or inputs of these names."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
        call(inspect.signature(model.forward).bind, inputs)
    except ValueError:  # of a function in C
        return
    except TypeError as error:
        given = list(inputs) if isinstance(inputs, dict) else len(leaves(inputs))
        names = ", ".join(each.name for each in parameters) or "nothing"
        raise ConfigError(
            "model",
            name,
            f"it does not take what an item has ({error}); the item's inputs are {given}, the "
            f"network takes {names}; return a dict with these names, or a tuple in their order, "
            "from the dataset",
        ) from error


def picked(output: Any, part: str | int | None, name: str) -> Any:
    """The prediction in a model's output. Raises ConfigError if there is none.

    It may be a tuple or a dict, for a loss that takes it so.
    """
    found = describe(output)
    try:
        output = output if part is None else output[part]
    except Exception as error:
        raise ConfigError(
            "model.output",
            part,
            f"model={name} returns no such part; it returns {found}; name a part of it, or null "
            "for a model that returns a tensor",
        ) from error
    if not any(isinstance(leaf, Tensor) for leaf in leaves(output)):
        raise not_a_tensor(output, part, name)
    return output


def not_a_tensor(output: Any, part: str | int | None, name: str) -> ConfigError:
    """The failure of a model that returns no tensor, for a task that takes nothing else."""
    field, value = ("model", name) if part is None else ("model.output", part)
    return ConfigError(
        field,
        value,
        f"the model's output is not a tensor; it returns {describe(output)}; set model.output to "
        "the key or index of the prediction in it",
    )


def describe(output: Any) -> str:
    """Describe a model's output: its type and the keys or number of its parts."""
    kind = type(output).__name__
    if isinstance(output, dict):
        return f"{kind} with the keys {', '.join(map(str, output))}"
    if isinstance(output, tuple | list):
        return f"{kind} of {len(output)} parts"
    return kind
