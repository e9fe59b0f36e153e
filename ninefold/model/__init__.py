"""Models: one file and one yaml each for those that are not a class of a library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ninefold.errors import ConfigError, Failure, memory_failure


class Output(nn.Module):
    """A network of which one part of the output is the prediction.

    part: its key, where the network returns a mapping (`out` for torchvision's segmentation
    models), or its index, where it returns a tuple or a list.
    """

    def __init__(self, network: nn.Module, part: str | int) -> None:
        super().__init__()
        self.network = network
        self.part = part

    def forward(self, inputs: Tensor) -> Any:
        return self.network(inputs)[self.part]


def check(
    model: nn.Module, part: str | int | None, loss: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor, targets: Tensor, name: str,
) -> None:  # fmt: skip
    """Raise ConfigError if `model` cannot take these inputs, or the task not what it returns.

    inputs, targets: of one example. name: the model's in the configuration. Costs milliseconds, as
    nothing is computed: parameters and inputs have shapes only (the meta device). What fails so is
    computed once, as a model may do what has no meaning without numbers.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng([inputs.device] if inputs.is_cuda else []):
            try:
                state = {key: value.to("meta") for key, value in tensors(model)}
                output = functional_call(model, state, (inputs.to("meta"),))
                loss(picked(output, part, name), targets.to("meta"))
            except Failure:
                raise
            except Exception:
                loss(picked(model(inputs), part, name), targets)
    except Failure:
        raise
    except Exception as error:
        if exhausted := memory_failure(error, "the model was being checked"):
            raise exhausted from error
        raise ConfigError(
            "model", name, f"it cannot be trained on examples of {list(inputs.shape[1:])}",
            str(error).strip() or type(error).__name__,
            "choose another model, dataset or task, or set model.input_size",
        ) from error  # fmt: skip
    finally:
        model.train(was_training)


def tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """The parameters and buffers of `model` by name."""
    return [*model.named_parameters(), *model.named_buffers()]


def picked(output: Any, part: str | int | None, name: str) -> Tensor:
    """The prediction in what a model returns. Raises ConfigError if it is no tensor."""
    found = describe(output)
    try:
        output = output if part is None else output[part]
    except Exception as error:
        raise ConfigError(
            "model.output", part, f"model={name} returns no such part",
            f"it returns {found}", "name a part of it, or null for a model that returns a tensor",
        ) from error  # fmt: skip
    if isinstance(output, Tensor):
        return output
    field, value = ("model", name) if part is None else ("model.output", part)
    raise ConfigError(
        field, value, "the model's output is not a tensor", f"it returns {found}",
        "set model.output to the key or index of the prediction in it",
    )  # fmt: skip


def describe(output: Any) -> str:
    """What a model returned, in a few words: its type and the keys or number of its parts."""
    kind = type(output).__name__
    if isinstance(output, dict):
        return f"{kind} with the keys {', '.join(map(str, output))}"
    if isinstance(output, tuple | list):
        return f"{kind} of {len(output)} parts"
    return kind
