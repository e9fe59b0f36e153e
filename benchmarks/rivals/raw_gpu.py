"""The simplest correct PyTorch loop on a GPU: eager, or a whole step as one CUDA graph.

On a CPU the eager one runs too, for dry runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ninefold.dataset import Examples
from ninefold.engine.batches import epoch_order

WARM_UP = 5  # steps before a capture: they choose kernels and allocate


@dataclass
class Loop:
    """A network, its optimizer and the precision that it is trained in.

    model: on the device, in `memory_format`. dtype: of autocast; None: none.
    size: pixels to resize images to; None to leave them.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    device: torch.device
    dtype: torch.dtype | None
    memory_format: torch.memory_format
    size: int | None

    def step(self, images: Tensor, targets: Tensor) -> None:
        """Train on bytes that are on the device. The gradients are kept."""
        inputs = images.float()
        if self.size is not None and inputs.shape[2] != self.size:
            inputs = F.interpolate(inputs, self.size, mode="bilinear", antialias=True)
        inputs = inputs.div_(255).contiguous(memory_format=self.memory_format)
        # A cache of casted weights would be of the capture, not of the step that replays it.
        with torch.autocast(
            self.device.type, self.dtype or torch.bfloat16, self.dtype is not None, False
        ):
            output = self.model(inputs)
        self.scaler.scale(F.cross_entropy(output.float(), targets)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


def rows_of(count: int, batch: int) -> Iterator[npt.NDArray[np.int64]]:
    """The rows of each batch, epoch after epoch without end."""
    for epoch in itertools.count():
        order = epoch_order(0, epoch, count)
        yield from order[: count // batch * batch].reshape(-1, batch)


def from_host(loop: Loop, examples: Examples, batches: Iterator[npt.NDArray[np.int64]]) -> None:
    """Train on `batches`, gathered on the host, pinned and copied without waiting."""
    pinned = loop.device.type == "cuda"
    for rows in batches:
        found = (torch.from_numpy(of[rows]) for of in (examples.inputs, examples.targets))
        images, targets = (
            (part.pin_memory() if pinned else part).to(loop.device, non_blocking=True)
            for part in found
        )
        loop.step(images, targets)
        loop.optimizer.zero_grad(set_to_none=True)


def from_device(
    loop: Loop, images: Tensor, targets: Tensor, batches: Iterator[npt.NDArray[np.int64]]
) -> None:
    """Train on `batches` of a set that is on the device."""
    for rows in batches:
        index = torch.from_numpy(rows).to(loop.device, non_blocking=True)
        loop.step(images.index_select(0, index), targets.index_select(0, index))
        loop.optimizer.zero_grad(set_to_none=True)


class Graphed:
    """A whole step, from bytes on the device to new weights, recorded once and replayed."""

    def __init__(self, loop: Loop, images: Tensor, targets: Tensor) -> None:
        """images, targets: of one batch, on the device. The optimizer has to be capturable."""
        self._images, self._targets = images.clone(), targets.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                loop.optimizer.zero_grad(set_to_none=True)
                loop.step(self._images, self._targets)
        torch.cuda.current_stream().wait_stream(stream)
        # Captured without gradients, a replay writes them: it does not add to the last ones.
        loop.optimizer.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            loop.step(self._images, self._targets)

    def train(
        self, images: Tensor, targets: Tensor, batches: Iterator[npt.NDArray[np.int64]]
    ) -> None:
        """As `from_device`."""
        for rows in batches:
            index = torch.from_numpy(rows).to(images.device, non_blocking=True)
            torch.index_select(images, 0, index, out=self._images)
            torch.index_select(targets, 0, index, out=self._targets)
            self._graph.replay()
