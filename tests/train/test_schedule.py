"""Learning rates: warm-up and schedules by step, and their exact resume."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import ours
from ninefold.engine.loop import train
from ninefold.engine.schedule import Schedule
from ninefold.errors import ConfigError
from tests.conftest import metrics

SMALL = [
    "dataset=synthetic", "dataset.shape=[1,4,4]", "dataset.train_count=64", "batch_size=16",
    "model.net.width=8", "threads=1", "checkpoint.every=null", "logger=jsonl", "log_every=1",
    "epochs=3",
]  # fmt: skip
STEPS, PER_EPOCH, LR = 12, 4, 0.001


def rates(*overrides: str) -> list[float]:
    """The learning rate that each step was taken with, as metrics.jsonl has it."""
    with ours.training(*SMALL, *overrides) as run:
        train(run)
        return metrics(run.writer.checkpoints.folder.parent, "lr")


def cosine(position: float) -> float:
    return LR * (1 + math.cos(math.pi * position)) / 2


EPOCHS = [cosine(step // PER_EPOCH / 3) for step in range(STEPS)]
WARM = [min(1, step / 5) for step in range(1, STEPS + 1)]
COURSES: dict[str, tuple[list[str], list[float]]] = {
    "per epoch": (["scheduler=cosine"], EPOCHS),
    "per step": (
        ["scheduler=cosine", "scheduler.per=step"], [cosine(step / STEPS) for step in range(STEPS)]
    ),
    "per step, warmed up": (
        ["scheduler=cosine", "scheduler.per=step", "scheduler.warmup=5"],
        [*(LR * factor for factor in WARM[:5]),
         *(cosine(step / (STEPS - 5)) for step in range(STEPS - 5))],
    ),
    "per epoch, warmed up": (
        ["scheduler=cosine", "scheduler.warmup=5"],
        [rate * factor for rate, factor in zip(EPOCHS, WARM, strict=True)],
    ),
    "plateau, warmed up": (["scheduler.warmup=2", "max_steps=3"], [LR / 2, LR, LR]),
}  # fmt: skip


@pytest.mark.parametrize("name", COURSES)
def test_the_rate_of_each_step_is_the_schedulers_and_rises_to_it_in_a_warm_up(name):
    overrides, expected = COURSES[name]
    assert rates(*overrides) == pytest.approx(expected)


ONE_CYCLE = [
    "~scheduler.patience", "~scheduler.factor", "+scheduler.max_lr=0.01", "scheduler.per=step",
    "scheduler._target_=torch.optim.lr_scheduler.OneCycleLR",
]  # fmt: skip


def test_steps_that_are_undone_take_a_schedule_no_further_than_the_training_does():
    short = rates(*ONE_CYCLE, "+scheduler.total_steps=4", "max_steps=4", "clock.warmup=9")
    assert short == rates(*ONE_CYCLE, "+scheduler.total_steps=4", "max_steps=4", "clock.warmup=0")


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_a_learning_rate_that_is_none_ends_the_run_in_one_line(rate):
    with ours.training(*SMALL, "scheduler=none") as run:
        run.state.optimizer.param_groups[0]["lr"] = rate
        line = rf"^error: learning rate={rate:g}: it was set so by step 1; a number of at least 0"
        with pytest.raises(ConfigError, match=line):
            train(run)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"begun": -(10**9)}, "begun: a count is expected, it is -1000000000"),
        ({"begun": "1"}, "begun: a count is expected, it is '1'"),
        ({"last_epoch": 10**30}, "last_epoch: a count is expected, it is 1000"),
        ({"rates": []}, "rates: one of at least 0 for each group is expected"),
        ({"rates": [math.nan]}, "rates: one of at least 0 for each group is expected"),
    ],
)
def test_a_schedule_does_not_continue_from_numbers_that_none_has(changed, said):
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=LR)
    inner = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    plan = Schedule(inner, optimizer, "step", warmup=5)
    with pytest.raises(ValueError, match=said):
        plan.load_state_dict({**plan.state_dict(), **changed})


def test_a_schedule_of_numpys_numbers_is_saved_in_pythons(tmp_path):
    with ours.training(*SMALL, "scheduler=none") as run:
        group = run.state.optimizer.param_groups[0]
        group["lr"] = np.float64(LR)
        group["initial_lr"] = np.float32(1)
        torch.save(run.state.content(run.parallel, run.context), tmp_path / "saved.pt")
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)["optimizer"]["param_groups"][0]
    assert (saved["lr"], saved["initial_lr"]) == (LR, 1)


def test_a_schedule_with_a_state_that_no_checkpoint_gives_back_is_refused_before_the_first_step():
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=LR)
    inner = torch.optim.lr_scheduler.ConstantLR(optimizer)
    inner.table = np.linspace(0, 1, 3)
    with pytest.raises(ConfigError, match="error: scheduler=ConstantLR: its state has a ndarray"):
        Schedule(inner, optimizer)


def test_parameter_groups_have_their_own_options():
    groups = "optimizer.groups=[{match: '*.bias', weight_decay: 0}, {match: 'classifier*', lr: 1}]"
    with ours.training(*SMALL, groups) as run:
        first, biases, classifier = run.state.optimizer.param_groups
        names = {id(p): name for name, p in run.state.model.named_parameters()}
    assert (biases["weight_decay"], biases["lr"]) == (0, LR)
    assert all(names[id(p)].endswith(".bias") for p in biases["params"])
    assert [names[id(p)] for p in classifier["params"]] == ["classifier.weight"]
    assert (classifier["lr"], first["lr"], first["weight_decay"]) == (1, LR, 0.01)
    assert len(names) == sum(len(g["params"]) for g in (first, biases, classifier))


class Endless(torch.optim.AdamW):
    """Of a user's: no key has its learning rate."""

    def __init__(self, parameters: Any, lr: float, **options: Any) -> None:
        super().__init__(parameters, lr=math.inf, **options)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (["optimizer.groups=[{match: 'clasifier.w*', lr: 1}]"],
         r"optimizer\.groups\.0\.match=clasifier\.w\*: it matches no parameter .*did you mean cl"),
        (["optimizer.groups=[{match: '*', weight_deacy: 0}]"],
         r"optimizer\.groups\.0\.weight_deacy=0: AdamW has no such option; did you mean weight_"),
        (["optimizer.groups=[{match: '*', lr: -1}]"],
         r"optimizer\.groups\.0\.lr=-1: it cannot be used; a number of at least 0 is allowed; "),
        ([f"optimizer._target_={__name__}.Endless"],
         r"optimizer\.lr=inf: Endless is built with it; a number of at least 0 is allowed; "),
        (["optimizer=sgd", "optimizer.momentum=0"], r"optimizer=torch\.optim\.SGD: .*Nesterov"),
        (["+optimizer.foo=1"], r"optimizer=torch\.optim\.AdamW: .*'foo'"),
        (["scheduler.factor=1"], r"scheduler=\S+ReduceLROnPlateau: .*Factor should be < 1"),
        (["scheduler.per=step"], r"scheduler\.per=step: ReduceLROnPlateau takes an epoch"),
    ],
)  # fmt: skip
def test_what_an_optimizer_or_scheduler_does_not_take_is_a_configuration_error(wrong, line):
    with pytest.raises(ConfigError, match=rf"^error: {line}"), ours.training(*SMALL, *wrong):
        pass


def test_without_a_warm_up_the_state_is_the_schedulers_own():
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=LR)
    inner = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, total_iters=2)
    inner.rates = [-1.0]
    plan = Schedule(inner, optimizer)
    plan.load_state_dict(plan.state_dict())
    assert plan.state_dict() == inner.state_dict()
