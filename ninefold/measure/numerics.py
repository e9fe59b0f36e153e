"""What the first steps of a run compute, kept for comparing it with other runs: numerics.npz."""

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

from ninefold.files import write_durably
from ninefold.parallel import Parallel, Place, gather
from ninefold.result import NUMERICS
from ninefold.train.state import State

TRIES = 32  # halvings of a loss scale: past where it is given up, from its default
BRANCHES = ("StochasticDepth", "DropPath")  # torchvision's and timm's, which need not be there
MOST = 1 << 18  # elements of all parameters that are kept: a megabyte for each array and step


class Numerics:
    """Keeps loss, gradients and updates of the first `steps` steps, in `folder`.

    The file holds, step by step: loss float64 [steps], the mean over the processes; weights before
    the step, unscaled gradients and updates, float32 [steps, n]; skipped bool [steps]. n elements
    of all trainable parameters, flattened in their order, are kept: all, or MOST at even distances.
    A step that the scaler skipped (`skipped`) was taken again until it was not, at most TRIES
    times; if it always was, its gradients are not finite. batch_norm, one bool, says whether the
    network takes statistics of this process's part of a batch.
    """

    def __init__(self, steps: int, folder: Path) -> None:
        self.steps = steps
        self._path = folder / NUMERICS

    def record(
        self,
        batches: Iterator[tuple[Tensor, Tensor]],
        step: Callable[[Tensor, Tensor], object],
        state: State,
        parallel: Parallel,
        place: Place,
    ) -> None:
        """Take the steps, with all processes of the run; rank 0 writes what it saw.

        Dropout is off in them, as each process would drop something else.
        """
        sample = Sample(state.model)
        seen: dict[str, Any] = {}

        def see(optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
            # What a scaler leaves to a fused optimizer to divide by, and to give up for.
            scale = getattr(optimizer, "grad_scale", None)
            found = getattr(optimizer, "found_inf", None)
            gradients = sample.of([p.grad for p in sample.parameters])
            seen["gradients"] = gradients / (1.0 if scale is None else float(scale))
            seen["skipped"] = found is not None and bool(found)

        def take(inputs: Tensor, targets: Tensor) -> dict[str, Any]:
            before = sample.of(sample.parameters)
            seen.update(gradients=np.full_like(before, math.nan), skipped=True)
            step(inputs, targets)
            state.watch.read()
            told = torch.tensor(
                [state.watch.last, seen["skipped"]], dtype=torch.float64, device=place.device
            )
            loss, skipped = gather(told, parallel, place).mean(dim=0).tolist()
            updates = sample.of(sample.parameters) - before
            return {**seen, "loss": loss, "skipped": skipped > 0, "weights": before,
                    "updates": updates}  # fmt: skip

        rows: list[dict[str, Any]] = []
        tries = TRIES if state.scaler.is_enabled() else 1
        hook = state.optimizer.register_step_pre_hook(see)
        try:
            with without_dropout(state.model):
                for _ in range(self.steps):
                    batch = next(batches)
                    first = row = take(*batch)
                    for _ in range(tries - 1):
                        if row["skipped"]:
                            row = take(*batch)
                    if place.rank == 0:
                        rows.append({**row, "skipped": first["skipped"]})
        finally:
            hook.remove()
        if place.rank == 0:
            content = io.BytesIO()
            columns: Any = {name: np.array([row[name] for row in rows]) for name in rows[0]}
            np.savez(content, batch_norm=normalizes_batches(state.model), **columns)
            write_durably(self._path, content.getbuffer())


def normalizes_batches(model: nn.Module) -> bool:
    """Whether a layer of `model` takes the mean and variance of what its process has of a batch."""
    return any(
        isinstance(m, _BatchNorm) and not isinstance(m, nn.SyncBatchNorm) for m in model.modules()
    )


class Sample:
    """At most MOST elements of all trainable parameters of a model, at even distances."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        total = sum(p.numel() for p in self.parameters)
        count = min(total, MOST)
        places = torch.arange(count) * total // count
        self._places: list[Tensor] = []
        first = 0
        for parameter in self.parameters:
            inside = places[(places >= first) & (places < first + parameter.numel())]
            self._places.append((inside - first).to(parameter.device))
            first += parameter.numel()

    def of(self, tensors: list[Any]) -> npt.NDArray[np.float32]:
        """The elements in `tensors`, one like each parameter or None for zeros: float32 [n]."""
        parts = [
            torch.zeros(len(places)) if tensor is None
            else tensor.detach().flatten()[places].float().cpu()
            for tensor, places in zip(tensors, self._places, strict=True)
        ]  # fmt: skip
        return torch.cat(parts).numpy()


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """While this lasts `model` drops nothing: neither elements nor attention nor whole branches."""
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
