"""An optimizer is one whose step takes the gradients of a batch, with options that it has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ninefold.errors import ConfigError
from ninefold.train.optimizer import require_options


class WithLoss(torch.optim.SGD):
    """One of a user's, whose step wants the loss."""

    def step(self, loss: Any, closure: Any = None) -> Any:
        return super().step(closure)


@pytest.mark.parametrize(
    ("kind", "argument"), [(torch.optim.LBFGS, "closure"), (WithLoss, "loss")], ids=str
)
def test_an_optimizer_whose_step_needs_an_argument_is_refused(kind: Any, argument: str) -> None:
    optimizer = kind(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=rf"its step needs an argument \({argument}\)"):
        require_options(None, optimizer)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adadelta])
def test_an_optimizer_that_steps_alone_is_allowed(kind: Any) -> None:
    require_options(None, kind(nn.Linear(2, 2).parameters(), lr=0.1))
