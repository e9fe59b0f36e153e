"""numerics.npz: losses, gradients and updates of the first steps, to compare runs with."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ninefold.engine.parallel import gather, whole
from ninefold.engine.training import Training
from ninefold.files import write_durably
from ninefold.result import NUMERICS
from ninefold.tree import Tree

TRIES = 32  # halvings of a loss scale: from its default to below where training gives up
BRANCHES = ("StochasticDepth", "DropPath")  # names of torchvision's and timm's layers
MAX_ELEMENTS = 1 << 18  # elements of the parameters that are kept: 1 MB for each array and step


class Numerics:
    """Records the first `steps` steps to numerics.npz in `folder`.

    Of all trainable parameters, flattened in their order, n elements are kept: all, or
    MAX_ELEMENTS at even distances. The arrays of the file:
    loss: float64 [steps], the mean over the processes.
    weights: float32 [steps, n], before the step.
    gradients: float32 [steps, n], without the loss scale, after clipping.
    updates: float32 [steps, n], weights after the step less those before it.
    skipped: bool [steps], whether the GradScaler skipped the step. It was then repeated until it
    was not skipped, at most TRIES times; if it always was, its gradients are not finite.
    batch_norm: bool, whether the network normalizes by statistics of a process's share of a batch.
    """

    def __init__(self, steps: int, folder: Path) -> None:
        self.steps = steps
        self._path = folder / NUMERICS

    def record(
        self,
        run: Training,
        batches: Iterator[tuple[Tree, Tree]],
        step: Callable[[Tree, Tree], object],
    ) -> None:
        """Take the steps; rank 0 writes the file. Every process must call it.

        Dropout is off in them, as each process would drop other elements.
        """
        state, context = run.state, run.context
        sample = Sample(state.model)
        seen: dict[str, Any] = {}

        def see(optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
            # Set by a GradScaler that leaves unscaling and skipping to a fused optimizer.
            scale = getattr(optimizer, "grad_scale", None)
            found = getattr(optimizer, "found_inf", None)
            gradients = sample.of([p.grad for p in sample.parameters])
            seen["gradients"] = gradients / (1.0 if scale is None else float(scale))
            seen["skipped"] = found is not None and bool(found)

        def take(inputs: Tree, targets: Tree) -> dict[str, Any]:
            before = sample.of(sample.parameters)
            seen.update(gradients=np.full_like(before, math.nan), skipped=True)
            step(inputs, targets)
            state.losses.read()
            both = [state.losses.last, seen["skipped"]]
            here = torch.tensor(both, dtype=torch.float64, device=context.device)
            loss, skipped = gather(here, run.parallel, context).mean(dim=0).tolist()
            updates = sample.of(sample.parameters) - before
            row = {"loss": loss, "skipped": skipped > 0, "weights": before, "updates": updates}
            return {**seen, **row}

        rows: list[dict[str, Any]] = []
        tries = TRIES if state.scaler.is_enabled() else 1
        hook = state.optimizer.register_step_pre_hook(see)
        try:
            with without_dropout(state.model):
                for _ in range(self.steps):
                    batch = next(batches)
                    first = row = take(*batch)
                    with state.schedule.standing():
                        for _ in range(tries - 1):
                            if row["skipped"]:
                                row = take(*batch)
                    if context.rank == 0:
                        rows.append({**row, "skipped": first["skipped"]})
        finally:
            hook.remove()
        if context.rank == 0:
            content = io.BytesIO()
            columns: Any = {name: np.array([row[name] for row in rows]) for name in rows[0]}
            np.savez(content, batch_norm=normalizes_batches(state.model), **columns)
            write_durably(self._path, content.getbuffer())


def normalizes_batches(model: nn.Module) -> bool:
    """Return whether `model` has batch normalization that is not synchronized across processes."""
    return any(
        isinstance(m, _BatchNorm) and not isinstance(m, nn.SyncBatchNorm) for m in model.modules()
    )


class Sample:
    """At most MAX_ELEMENTS elements of all trainable parameters of a model, at even distances."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        total = sum(p.numel() for p in self.parameters)
        count = min(total, MAX_ELEMENTS)
        places = torch.arange(count) * total // count
        self._places: list[Tensor] = []
        first = 0
        for parameter in self.parameters:
            inside = places[(places >= first) & (places < first + parameter.numel())]
            self._places.append((inside - first).to(parameter.device))
            first += parameter.numel()

    def of(self, tensors: list[Any]) -> npt.NDArray[np.float32]:
        """The sampled elements of `tensors` (one per parameter; None means zeros): float32 [n]."""
        kept = [
            torch.zeros(len(places))
            if tensor is None
            else whole(tensor.detach()).flatten()[places].float().cpu()
            for tensor, places in zip(tensors, self._places, strict=True)
        ]
        return torch.cat(kept).numpy()


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """A context in which `model` drops no elements, no attention and no residual branches."""
    modules: list[Any] = [m for m in model.modules() if m.training]
    layers = [m for m in modules if isinstance(m, _DropoutNd) or type(m).__name__ in BRANCHES]
    rates = [(m, m.dropout) for m in modules if isinstance(getattr(m, "dropout", None), float)]
    for layer in layers:
        layer.eval()
    for module, _ in rates:  # attention and recurrent layers
        module.dropout = 0.0
    try:
        yield
    finally:
        for layer in layers:
            layer.train()
        for module, rate in rates:
            module.dropout = rate
