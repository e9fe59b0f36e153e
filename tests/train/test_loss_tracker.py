"""The loss tracker does not wait for the device; the average is the average."""

import math

import pytest
import torch
from torch import nn

from ninefold.engine.amp import Amp
from ninefold.engine.average import Average
from ninefold.engine.loss_tracker import LossTracker

CPU = torch.device("cpu")


def tracked(
    skip: bool, fused: bool = True, reads_at_once: bool = True
) -> tuple[nn.Linear, torch.optim.Optimizer, LossTracker]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
    losses = LossTracker(optimizer, Amp("float32").grad_scaler(CPU), CPU, skip)
    assert losses.reads_at_once
    losses.reads_at_once = reads_at_once
    losses.start_epoch()
    return model, optimizer, losses


def take(
    model: nn.Linear, optimizer: torch.optim.Optimizer, losses: LossTracker, factor: float
) -> None:
    loss = model(torch.ones(2, 3)).square().mean() * factor
    loss.backward()
    losses.watch(loss.detach())
    optimizer.step()
    losses.add(loss.detach())
    optimizer.zero_grad()


@pytest.mark.parametrize("reads_at_once", [True, False])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_after_a_bad_loss_the_weights_stay_those_that_gave_it(bad, reads_at_once):
    model, optimizer, losses = tracked(skip=False, reads_at_once=reads_at_once)
    take(model, optimizer, losses, 1.0)
    before = model.weight.detach().clone()
    take(model, optimizer, losses, bad)
    take(model, optimizer, losses, 1.0)
    assert torch.equal(model.weight, before)
    losses.read()
    assert (losses.bad, losses.since_bad) == (1, 2)  # one loss, two steps ago


@pytest.mark.parametrize("reads_at_once", [True, False])
def test_the_next_epoch_counts_anew(reads_at_once):
    model, optimizer, losses = tracked(skip=False, reads_at_once=reads_at_once)
    take(model, optimizer, losses, float("nan"))
    losses.start_epoch()
    before = model.weight.detach().clone()
    take(model, optimizer, losses, 1.0)
    losses.read()
    assert (losses.bad, losses.since_bad, math.isfinite(losses.total)) == (0, 0, True)
    assert not torch.equal(model.weight, before)


def test_losses_that_are_to_be_skipped_are_left_out_of_the_sum():
    _, _, losses = tracked(skip=True)
    for loss in (2.0, float("nan"), 3.0):
        losses.add(torch.tensor(loss))
        losses.read()
    assert (losses.total, losses.bad, losses.last) == (5.0, 1, 3.0)


def test_an_optimizer_that_is_not_fused_is_left_alone():
    model, optimizer, losses = tracked(skip=False, fused=False)
    take(model, optimizer, losses, float("nan"))
    losses.read()
    assert losses.bad == 1
    assert model.weight.isnan().all()


def test_the_average_moves_towards_the_weights_by_one_minus_its_decay():
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(0.0)
        average = Average(model, 0.9)
        model.weight.fill_(1.0)
        average.update(0)
        average.update(1)
    expected = 0.1 + 0.9 * 0.1
    assert average.named()["weight"].flatten().tolist() == pytest.approx([expected] * 2)
    with average.in_place():
        assert model.weight.flatten().tolist() == pytest.approx([expected] * 2)
    assert model.weight.flatten().tolist() == [1.0, 1.0]


def test_the_decay_is_warmed_up_and_goes_on_where_it_was():
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
        average = Average(model, 0.5, warmup=True)
        model.weight.fill_(1.0)
        average.update(0)  # decay 1 / 10
        assert average.named()["weight"].item() == pytest.approx(0.9)
        average.update(7)  # decay 8 / 17
        assert average.named()["weight"].item() == pytest.approx(0.9 + 0.1 * 9 / 17)
        average.update(8)  # 9 / 18, and from then on 0.5
        before = average.named()["weight"].item()
        average.update(10**6)
    assert average.named()["weight"].item() == pytest.approx(before + (1 - before) / 2)
