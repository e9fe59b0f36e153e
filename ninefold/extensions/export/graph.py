"""The network that is exported, with the preparation of its input in it where asked for."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ninefold.dataset.preparation import normalizing
from ninefold.engine.batches import Preparation
from ninefold.errors import ConfigError
from ninefold.extensions.export.resize import Resize
from ninefold.tree import Tree, call, each, filled, leaves, named, rows

VARIADIC = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
INPUT, OUTPUT = "input", "output"  # the names of a single one


class Prepare(nn.Module):
    """What a preparation does with inputs of one shape in an evaluation.

    dtype, shape: of the inputs as the dataset has them, without the batch. channels: repeated to
    so many. size: in pixels, that images of bytes are resized to; None: not. mean, std: per
    channel, of values in 0..1.
    """

    scale: Tensor | None
    shift: Tensor | None
    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self,
        dtype: torch.dtype,
        shape: torch.Size,
        channels: int,
        size: int | None,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
    ) -> None:
        super().__init__()
        self.whole = not dtype.is_floating_point
        self.largest = torch.iinfo(dtype).max if self.whole else 1
        self.repeats = (-1, channels, *[-1] * (len(shape) - 1)) if shape[0] != channels else None
        self.resize = None if size is None else Resize(shape[1], shape[2], size)
        for name in ("scale", "shift", "mean", "std"):
            self.register_buffer(name, None)
        if mean is None or std is None:
            return
        if self.whole and len(shape) == 3:  # of images, as ImagePreparation computes it
            cpu, layout = torch.device("cpu"), torch.contiguous_format
            scale, shift = normalizing(mean, std, channels, 1, layout, cpu)
            self.register_buffer("scale", scale.clone())
            self.register_buffer("shift", shift.clone())
        else:
            each = (-1, *[1] * (len(shape) - 1))
            self.register_buffer("mean", torch.tensor(mean).view(each))
            self.register_buffer("std", torch.tensor(std).view(each))

    def forward(self, inputs: Tensor) -> Tensor:
        floats = inputs.to(torch.float32) if self.resize is None else self.resize(inputs)
        if self.repeats is not None:
            floats = floats.expand(self.repeats)
        if self.scale is not None and self.shift is not None:
            return floats * self.scale + self.shift
        if self.whole:
            floats = floats / self.largest
        if self.mean is not None and self.std is not None:
            floats = (floats - self.mean) / self.std
        return floats


class Flat(nn.Module):
    """A network that takes its several inputs one after the other, and returns outputs so.

    inputs: a tree like its inputs, of anything.
    """

    def __init__(self, network: nn.Module, inputs: Tree) -> None:
        super().__init__()
        self.network = network
        self._inputs = each(lambda leaf: None, inputs)

    def forward(self, *inputs: Tensor) -> Any:
        output = call(self.network, filled(self._inputs, inputs))
        return output if isinstance(output, Tensor) else tuple(tensors_of(output))


@dataclass(frozen=True)
class Exported:
    """What is exported, and what it is compared with.

    model: the plain network with its weights, on the CPU, in evaluation mode.
    graph: from `inputs` to the prediction, its tensors contiguous.
    expected: from `prepared`, what the network gets in an evaluation, to the prediction.
    inputs, prepared, targets: of the same examples, trees where these have several. Several inputs
        are taken one after the other by `graph`, `expected` and what a file holds, see Flat.
    prepares: whether the graph prepares its input.
    """

    model: nn.Module
    graph: nn.Module
    expected: nn.Module
    inputs: Tree
    prepared: Tree
    targets: Tree
    prepares: bool

    def __len__(self) -> int:
        return rows(self.inputs)

    @property
    def example(self) -> tuple[Tensor, ...]:
        """Inputs of two examples: of one, a batch of one could be taken for what is always so."""
        places = torch.arange(2) % len(self)
        return tuple(leaf[places].clone() for leaf in leaves(self.inputs))

    @property
    def names(self) -> list[str]:
        """What its inputs are called: as in an item's dict, or as the network's arguments."""
        if not isinstance(self.inputs, tuple | list):
            return [name for name, _ in named(self.inputs, INPUT)]
        named_ones = inspect.signature(self.model.forward).parameters.values()
        arguments = [one.name for one in named_ones if one.kind not in VARIADIC]
        count = len(leaves(self.inputs))
        return (
            arguments[:count]
            if len(arguments) >= count == len(self.inputs)
            else [f"{INPUT}_{number}" for number in range(count)]
        )

    def outputs(self, output: Any) -> dict[str, Tensor]:
        """What the network returned, by name: its own keys, or `output_0`, `output_1`, ..."""
        if isinstance(output, Tensor):
            return {OUTPUT: output}
        return {f"{OUTPUT}_{number}": value for number, value in enumerate(output)}


def tensors_of(output: Any) -> list[Tensor]:
    """The tensors in what a network returned."""
    return [leaf for leaf in leaves(output) if isinstance(leaf, Tensor)]


def source(
    model: nn.Module,
    predicting: nn.Module,
    raw: Tree,
    targets: Tree,
    prepare: Preparation,
    prepares: bool,
) -> Exported:
    """What to export of `model`, and examples to compare with.

    predicting: the model, or what returns a part of its output. raw, targets: examples as the
    dataset has them. prepares: whether to have `prepare` in the graph. Raises ConfigError if that
    cannot be done exactly.
    """
    predicting.eval().requires_grad_(False)
    some, their = each(lambda leaf: leaf.clone(), (raw, targets))
    prepared, targets = prepare(some, their, None)
    network = copy.deepcopy(predicting).to(memory_format=torch.contiguous_format)
    with torch.no_grad():
        output = call(predicting, each(lambda leaf: leaf[:1], prepared))
    if isinstance(raw, tuple | list | dict) or not isinstance(output, Tensor):
        network, predicting = Flat(network, raw).eval(), Flat(predicting, raw).eval()
    if not prepares or same(raw, prepared):
        inputs = each(lambda leaf: leaf.contiguous(), prepared)
        return Exported(model, network, predicting, inputs, prepared, targets, prepares)
    if not isinstance(raw, Tensor):
        raise refusal("images among several inputs are prepared outside of a graph")
    own = own_preparation(raw, prepared, prepare)
    graph = nn.Sequential(own, network).eval()
    return Exported(model, graph, predicting, raw, prepared, targets, True)


def same(raw: Tree, prepared: Tree) -> bool:
    """Whether the preparation changes nothing, as of tokens and tables."""
    return all(
        one.dtype == other.dtype and torch.equal(one, other)
        for one, other in zip(leaves(raw), leaves(prepared), strict=True)
    )


def own_preparation(raw: Tensor, prepared: Tensor, prepare: Preparation) -> Prepare:
    """The module that does with `raw` what `prepare` did, bitwise. Raises ConfigError."""
    resizes = raw.shape[2:] != prepared.shape[2:]
    if resizes and (raw.ndim != 4 or raw.dtype != torch.uint8):
        raise refusal("only images of bytes are resized in a graph as they are in an evaluation")
    mean, std = (getattr(prepare, name, None) for name in ("mean", "std"))
    own = Prepare(
        raw.dtype,
        raw.shape[1:],
        prepared.shape[1],
        prepared.shape[2] if resizes else None,
        None if mean is None else tuple(mean),
        None if std is None else tuple(std),
    )
    if not torch.equal(own(raw), prepared):
        raise refusal("the dataset prepares its inputs in a way of its own")
    return own


def refusal(why: str) -> ConfigError:
    return ConfigError(
        "prepare",
        "true",
        why,
        "repeated channels, resizing of bytes, mean and std can be in the graph",
        "use prepare=false, and prepare inputs as export.json says",
    )
