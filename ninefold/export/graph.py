"""The network that is exported, with the preparation of its input in it where asked for."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ninefold.dataset.preparation import Preparation, normalizing
from ninefold.errors import ConfigError
from ninefold.export.resize import Resize


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


@dataclass(frozen=True)
class Exported:
    """What is exported, and what it is compared with.

    model: the plain network with its weights, on the CPU, in evaluation mode.
    graph: from `inputs` to the prediction, its tensors contiguous.
    expected: from `prepared`, what the network gets in an evaluation, to the prediction.
    inputs, prepared, targets: of the same examples. prepares: whether the graph prepares its input.
    """

    model: nn.Module
    graph: nn.Module
    expected: nn.Module
    inputs: Tensor
    prepared: Tensor
    targets: Tensor
    prepares: bool

    @property
    def example(self) -> Tensor:
        """Inputs of two examples: of one, a batch of one could be taken for what is always so."""
        count = len(self.inputs)
        return self.inputs[torch.arange(2) % count].clone()


def source(
    model: nn.Module,
    predicting: nn.Module,
    raw: Tensor,
    targets: Tensor,
    prepare: Preparation,
    prepares: bool,
) -> Exported:
    """What to export of `model`, and examples to compare with.

    predicting: the model, or what returns a part of its output. raw, targets: examples as the
    dataset has them. prepares: whether to have `prepare` in the graph. Raises ConfigError if that
    cannot be done exactly.
    """
    predicting.eval().requires_grad_(False)
    prepared, targets = prepare(raw.clone(), targets.clone(), None)
    network = copy.deepcopy(predicting).to(memory_format=torch.contiguous_format)
    if not prepares:
        inputs = prepared.contiguous()
        return Exported(model, network, predicting, inputs, prepared, targets, False)
    own = own_preparation(raw, prepared, prepare)
    graph = nn.Sequential(own, network).eval()
    return Exported(model, graph, predicting, raw, prepared, targets, True)


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
        f"{why}; repeated channels, resizing of bytes, mean and std can be in the graph; use "
        "prepare=false, and prepare inputs as export.json says",
    )
