"""What a function keeps and a run would not train is found, whichever way it is kept."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ninefold
from ninefold.errors import ConfigError
from ninefold.task.trained import trained_in

HEAD = nn.Linear(2, 2)
FROZEN = nn.Linear(2, 2).requires_grad_(False)
WARMTH = nn.Parameter(torch.ones(()))


def by_global(output: Tensor, target: Tensor) -> Tensor:
    return HEAD(output).sum() * WARMTH


def by_helper(output: Tensor, target: Tensor) -> Tensor:
    return by_global(output, target)


def by_default(output: Tensor, target: Tensor, *, head: nn.Module = HEAD) -> Tensor:
    return head(output).sum()


def in_closure(head: Any) -> Callable[..., Tensor]:
    return lambda output, target: head(output).sum()


class Training:
    def __init__(self, head: nn.Module) -> None:
        self.head = head

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.head(output).sum()

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return self.head(output).sum()


def plain(output: Tensor, target: Tensor) -> Tensor:
    return FROZEN(output).HEAD + nn.functional.mse_loss(output, target)  # an attribute of its name


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (by_global, ["HEAD.weight", "HEAD.bias", "WARMTH"]),
        (by_helper, ["by_global.HEAD.weight", "by_global.HEAD.bias", "by_global.WARMTH"]),
        (by_default, ["head.weight", "head.bias"]),
        (in_closure(HEAD), ["head.weight", "head.bias"]),
        (in_closure(lambda x: WARMTH * x), ["head.WARMTH"]),
        (in_closure([nn.ReLU(), HEAD]), ["head.1.weight", "head.1.bias"]),
        (partial(plain, extra=HEAD), ["extra.weight", "extra.bias"]),
        (Training(HEAD).loss, ["self.head.weight", "self.head.bias"]),
        (Training(HEAD), ["head.weight", "head.bias"]),
        (in_closure(Training(HEAD)), ["head.head.weight", "head.head.bias"]),
        (HEAD, ["weight", "bias"]),
        (torch.ones((), requires_grad=True), [""]),
        (plain, []),
        (in_closure(FROZEN), []),
        (Training(FROZEN), []),
        (nn.functional.cross_entropy, []),
        (nn.Linear, []),
    ],
)  # fmt: skip
def test_trained_parameters_that_a_function_keeps_are_named(function, names):
    assert trained_in(function) == names


ROWS = torch.randn(20, 2), torch.randn(20, 2)


@pytest.mark.parametrize(
    "given",
    [
        {"loss": None, "forward": lambda model, batch: HEAD(model(batch[0])).sum()},
        {"loss": by_global},
        {"loss": nn.functional.mse_loss, "metric": by_default},
    ],
    ids=["forward", "loss", "metric"],
)
def test_compare_refuses_a_function_whose_parameters_no_run_would_train(given):
    *_, name = given
    line = f"^error: {name}=.*: its parameters would not be trained; it has [Hh].*; move them into"
    with pytest.raises(ConfigError, match=line):
        ninefold.compare(lambda: nn.Linear(2, 2), ROWS, **given)
