"""Where a training run stands: everything that going on exactly needs."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ninefold.amp import CountingScaler
from ninefold.checkpoint.writer import copied
from ninefold.parallel import Parallel, Place, gather
from ninefold.train.average import Average
from ninefold.train.watch import Watch


class Stateful(Protocol):
    """What has a state_dict."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass
class State:
    """Where a training run stands. `step` counts optimizer steps and is the position in the data.

    watch: this process's training losses of the running epoch. measured: the step at which the
    model was last evaluated; best_step: at which with the best accuracy.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Stateful
    scaler: CountingScaler
    average: Average
    watch: Watch
    step: int = 0
    measured: int = 0
    best_step: int = 0
    best_accuracy: float = -1.0
    train_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    epoch_seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._parameters = list(self.model.parameters())

    def capture(self, parallel: Parallel, place: Place) -> dict[str, Any]:
        """A copy on the CPU, in tensors and plain containers. Every process must call it."""
        captured: dict[str, Any] = copied(
            self.content(parallel, place), lambda tensor: tensor.to("cpu", copy=True)
        )
        return captured

    def content(self, parallel: Parallel, place: Place) -> dict[str, Any]:
        """All of it as it stands, the live tensors themselves. Every process must call it."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "skipped": int(self.scaler.skipped),
            "average": self.average.state_dict(),
            "rng": [gather(rng, parallel, place) for rng in _rng(place)],
            "losses": gather(self._losses(place), parallel, place),
            "step": self.step,
            "measured": self.measured,
            "best_step": self.best_step,
            "best_accuracy": self.best_accuracy,
            "train_seconds": self.train_seconds,
            "evaluate_seconds": self.evaluate_seconds,
            "epoch_seconds": self.epoch_seconds,
        }

    def _losses(self, place: Place) -> Tensor:
        self.watch.read()
        values = [self.watch.total, self.watch.held]
        return torch.tensor(values, dtype=torch.float64, device=place.device)

    def drop_gradients(self) -> None:
        """As `optimizer.zero_grad()`, whose accounts take longer than a small layer."""
        for parameter in self._parameters:
            parameter.grad = None

    def restore(self, saved: Mapping[str, Any], place: Place) -> None:
        """Take up what `capture` gave. On another number of processes the RNG starts afresh."""
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
        self.scheduler.load_state_dict(saved["scheduler"])
        if saved["scaler"]:
            self.scaler.load_state_dict(saved["scaler"])
        self.scaler.skipped.fill_(saved["skipped"])
        self.average.load_state_dict(saved["average"])
        losses = saved["losses"]
        same = len(losses) == place.world_size
        if same:
            _set_rng([rows[place.rank] for rows in saved["rng"]], place)
        # what counts in the end is their mean over the processes
        total, held = (losses[place.rank] if same else losses.mean(dim=0)).tolist()
        self.watch.start_epoch(total, held)
        self.step, self.measured = saved["step"], saved["measured"]
        self.best_step = saved["best_step"]
        self.best_accuracy = saved["best_accuracy"]
        self.train_seconds = saved["train_seconds"]
        self.evaluate_seconds = saved["evaluate_seconds"]
        self.epoch_seconds = list(saved["epoch_seconds"])


def _rng(place: Place) -> list[Tensor]:
    """The generators that training may draw from: Python's, NumPy's, torch's, its GPUs'."""
    _, integers, gauss = random.getstate()
    array = np.random.get_state(legacy=False)
    keys, position = array["state"]["key"], array["state"]["pos"]
    return [
        torch.tensor([*integers, gauss is not None, gauss or 0.0], dtype=torch.float64),
        torch.tensor([*keys, position, array["has_gauss"], array["gauss"]], dtype=torch.float64),
        torch.get_rng_state(),
        *(torch.cuda.get_rng_state(index) for index in place.gpus),
    ]


def _set_rng(states: list[Tensor], place: Place) -> None:
    """Put the generators where `_rng` found them."""
    python, array, cpu, *cuda = states
    *integers, has_gauss, gauss = python.tolist()
    random.setstate((3, tuple(map(int, integers)), gauss if has_gauss else None))
    *keys, position, has_gauss, gauss = array.tolist()
    np.random.set_state(
        ("MT19937", np.array(keys, np.uint32), int(position), int(has_gauss), gauss)
    )
    # set_rng_state reads a view of a larger tensor from the wrong place: it wants its own
    torch.set_rng_state(cpu.clone())
    for device, state in zip(place.gpus, cuda, strict=False):
        torch.cuda.set_rng_state(state.clone(), device)
