"""What ends a step of a compared command: the optimizer that leads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from multiprocessing import get_context
from signal import pause
from time import perf_counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ninefold.bench.contestant import INJECT


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Those of a process that has said who it is, in its first turn, which does not end."""
    monkeypatch.syspath_prepend(INJECT)
    hook = import_module("ninefold_bench_hook")
    others, all_of = hook.optimizers(), hook.optimizers  # those of other tests
    monkeypatch.setattr(hook, "optimizers", lambda: all_of() - others)
    made = hook.Steps()
    made.socket, made.goal, made.began = object(), sys.maxsize, perf_counter()
    handle = register_optimizer_step_post_hook(made.after_step)
    yield made
    handle.remove()
    del sys.modules["ninefold_bench_hook"]


def test_worker_processes_are_told_also_once_they_have_ended(steps: Any) -> None:
    before = steps.count_workers()
    worker = get_context("fork").Process(target=pause)
    worker.start()
    assert steps.count_workers() == before + 1
    worker.terminate()
    worker.join()
    assert steps.count_workers() == before + 1


def trained() -> nn.Linear:
    network = nn.Linear(2, 2)
    network(torch.ones(1, 2)).sum().backward()
    return network


class Twice(Optimizer):
    """An optimizer around another one of the same weights, whose step it takes in its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.inner = SGD(self.param_groups, 0.1)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_a_step_in_the_step_of_another_optimizer_is_none(steps: Any) -> None:
    optimizer = Twice(trained().parameters())
    for _ in range(10):
        optimizer.step()
    assert steps.lead is optimizer
    assert steps.steps + len(steps.stamps) - 1 == 10
    assert not steps.seen


def test_of_two_that_begin_with_the_same_weight_one_leads(steps: Any) -> None:
    first, second = trained(), trained()
    both = SGD([*first.parameters(), *second.parameters()], 0.1), SGD(first.parameters(), 0.1)
    for _ in range(10):
        for optimizer in both:
            optimizer.step()
    assert steps.steps + len(steps.stamps) - 1 == 10


def test_one_that_has_not_taken_a_step_is_waited_for_and_leads_if_it_is_rarer(steps: Any) -> None:
    critic, maker = (SGD(trained().parameters(), 0.1) for _ in range(2))
    for _ in range(4):
        for _ in range(20):
            critic.step()
        maker.step()
    assert steps.lead is maker


def test_the_only_one_leads_after_few_steps(steps: Any) -> None:
    optimizer = SGD(trained().parameters(), 0.1)
    for _ in range(6):
        optimizer.step()
    assert steps.lead is optimizer
