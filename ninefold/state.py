"""Where a training run stands: everything that going on exactly needs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ninefold.amp import CountingScaler
from ninefold.parallel import Parallel, Place


class Stateful(Protocol):
    """What has a state_dict."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass
class State:
    """Where a training run stands. `step` counts optimizer steps and is the position in the data.

    loss_sum: this process's summed training losses of the running epoch, a float64 scalar.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Stateful
    scaler: CountingScaler
    loss_sum: Tensor
    step: int = 0
    best_accuracy: float = -1.0
    train_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    epoch_seconds: list[float] = field(default_factory=list)

    def capture(self, parallel: Parallel, place: Place) -> dict[str, Any]:
        """A copy on the CPU, in tensors and plain containers. Every process must call it."""
        return {
            "model": _copy(self.model.state_dict()),
            "optimizer": _copy(self.optimizer.state_dict()),
            "scheduler": _copy(self.scheduler.state_dict()),
            "scaler": self.scaler.state_dict(),
            "skipped": int(self.scaler.skipped),
            "rng": [_gather(rng, parallel, place) for rng in _rng(place)],
            "loss_sum": _gather(self.loss_sum, parallel, place),
            "step": self.step,
            "best_accuracy": self.best_accuracy,
            "train_seconds": self.train_seconds,
            "evaluate_seconds": self.evaluate_seconds,
            "epoch_seconds": list(self.epoch_seconds),
        }

    def restore(self, saved: Mapping[str, Any], place: Place) -> None:
        """Take up what `capture` gave. On another number of processes the RNG starts afresh."""
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
        self.scheduler.load_state_dict(saved["scheduler"])
        if saved["scaler"]:
            self.scaler.load_state_dict(saved["scaler"])
        self.scaler.skipped.fill_(saved["skipped"])
        if len(saved["loss_sum"]) == place.world_size:
            self.loss_sum.copy_(saved["loss_sum"][place.rank])
            # set_rng_state reads a view of a larger tensor from the wrong place: it wants its own
            cpu, *cuda = (rows[place.rank].clone() for rows in saved["rng"])
            torch.set_rng_state(cpu)
            for device, state in zip(place.gpus, cuda, strict=False):
                torch.cuda.set_rng_state(state, device)
        else:  # the mean over processes is what counts
            self.loss_sum.copy_(saved["loss_sum"].mean())
        self.step = saved["step"]
        self.best_accuracy = saved["best_accuracy"]
        self.train_seconds = saved["train_seconds"]
        self.evaluate_seconds = saved["evaluate_seconds"]
        self.epoch_seconds = list(saved["epoch_seconds"])


def _copy(tree: Any) -> Any:
    """`tree` with its tensors cloned to the CPU."""
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, Mapping):
        return {key: _copy(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_copy(value) for value in tree]
    return tree


def _rng(place: Place) -> list[Tensor]:
    """The generators that training may draw from: torch's, and those of this process's GPUs."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(index) for index in place.gpus)]


def _gather(values: Tensor, parallel: Parallel, place: Place) -> Tensor:
    """[world_size, ...] on the CPU: the `values` of every process, on every process."""
    rows = torch.zeros((place.world_size, *values.shape), dtype=values.dtype, device=place.device)
    rows[place.rank] = values
    return parallel.total(rows).cpu()
