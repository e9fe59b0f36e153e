"""What ends a step of a compared command: the optimizer that leads."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from signal import pause
from socket import AF_UNIX, socket
from time import perf_counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from ninefold.bench.command import INJECT
from ninefold.bench.turns import MARKS


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Those of a process that has said who it is, in its first turn, which does not end."""
    monkeypatch.syspath_prepend(INJECT)
    hook = import_module("ninefold_bench_hook")
    gc.collect()  # an optimizer is known by addresses, which one that is dead would lend to another
    others, all_of = hook.optimizers(), hook.optimizers  # those of other tests
    monkeypatch.setattr(hook, "optimizers", lambda: all_of() - others)
    made = hook.Steps()
    made.socket, made.goal, made.began, made.marking = object(), sys.maxsize, perf_counter(), MARKS
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


def taken(steps: Any) -> int:
    """How many steps were counted."""
    return int(steps.steps + len(steps.stamps) - 1)


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
    assert steps.leader is optimizer
    assert taken(steps) == 10
    assert not steps.seen


class OfItsOwn(AdamW):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_a_step_that_calls_that_of_its_class_is_one_beside_another_of_that_class(
    steps: Any,
) -> None:
    plain, own = (of(trained().parameters(), 0.1) for of in (AdamW, OfItsOwn))
    for _ in range(20):
        plain.step()
        own.step()
    assert steps.leader is own
    assert taken(steps) == 20


def test_a_step_that_takes_one_group_after_another_is_one(steps: Any) -> None:
    """So DeepSpeed's ZeRO does."""
    groups = [{"params": [*trained().parameters()]} for _ in range(2)]
    optimizer = SGD(groups, 0.1)
    both = optimizer.param_groups
    for _ in range(20):
        for group in both:
            optimizer.param_groups = [group]
            optimizer.step()
        optimizer.param_groups = both
    assert taken(steps) == 20
    assert steps.seen == {id(optimizer)}


def test_one_that_is_made_anew_of_the_same_weights_leads_on(steps: Any) -> None:
    weights = [*trained().parameters()]
    for _ in range(10):
        SGD(weights, 0.1).step()
    assert taken(steps) == 10
    assert not steps.seen


def test_of_two_that_begin_with_the_same_weight_one_leads(steps: Any) -> None:
    first, second = trained(), trained()
    both = SGD([*first.parameters(), *second.parameters()], 0.1), SGD(first.parameters(), 0.1)
    for _ in range(10):
        for optimizer in both:
            optimizer.step()
    assert taken(steps) == 10


def test_one_that_has_not_taken_a_step_is_waited_for_and_leads_if_it_is_rarer(steps: Any) -> None:
    critic, maker = (SGD(trained().parameters(), 0.1) for _ in range(2))
    for _ in range(4):
        for _ in range(20):
            critic.step()
        maker.step()
    assert steps.leader is maker


def test_the_only_one_leads_after_few_steps(steps: Any) -> None:
    optimizer = SGD(trained().parameters(), 0.1)
    for _ in range(6):
        optimizer.step()
    assert steps.leader is optimizer


def test_while_other_commands_start_no_patience_is_lost_with_another_optimizer(
    steps: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook, now = sys.modules["ninefold_bench_hook"], [0.0]
    monkeypatch.setattr(hook, "perf_counter", lambda: now[0])
    monkeypatch.setattr(hook, "mark_what_is_no_step", lambda: None)
    monkeypatch.setattr(hook.os, "register_at_fork", lambda **functions: None)
    monkeypatch.setitem(hook.ENVIRONMENT, hook.SOCKET, str(tmp_path / "hook"))
    monkeypatch.setattr(steps, "wait", lambda: now.__setitem__(0, 2 * hook.PATIENCE))
    first, *_others = [SGD(trained().parameters(), 0.1) for _ in range(2)]
    steps.socket = None
    with socket(AF_UNIX) as listener:
        listener.bind(str(tmp_path / "hook"))
        listener.listen()
        for _ in range(5):
            first.step()
        steps.socket.close()
    assert steps.lead is None


@pytest.fixture
def marked(steps: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same steps, of a process in which what is no step marks the one in which it happens."""
    hook, scaler = sys.modules["ninefold_bench_hook"], torch.amp.GradScaler
    places = [(scaler, "step"), (nn.Module, "train"), (torch, "save"), (DataLoader, "__iter__")]
    for owner, name in places:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(hook, "STEPS", steps)
    hook.mark_what_is_no_step()
    return steps


def test_what_is_part_of_a_step_is_marked_no_more(marked: Any) -> None:
    network = trained()
    optimizer = SGD(network.parameters(), 0.1)
    marked.marking = ["torch.save"]
    for _ in range(6):
        network.eval()
        optimizer.step()
    assert marked.marks == {}
    marked.marking = ["an evaluation"]
    network.eval()
    assert [*marked.marks.values()] == ["an evaluation"]


def test_a_step_that_a_grad_scaler_skips_leaves_the_end_of_the_one_before(
    marked: Any,
) -> None:
    network, scaler = trained(), torch.amp.GradScaler("cpu")
    optimizer = SGD(network.parameters(), 0.1)
    for _ in range(6):
        optimizer.step()
    ends = [*marked.stamps]
    scaler.scale(network(torch.full((1, 2), float("inf"))).sum()).backward()
    scaler.step(optimizer)
    assert [*marked.marks.values()] == ["a step that a GradScaler skipped"]
    assert marked.stamps == ends
