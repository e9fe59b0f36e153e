"""What a training step costs more because gradients could be clipped in it, and are not."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks import ours
from benchmarks.measure import OURS, Array, Bench, Figures, Row, Turns, at_most
from benchmarks.step import MLP, MLP_STEPS
from ninefold.engine import loop
from ninefold.train.training_run import TrainingRun

CALL = "        run.clip()\n"  # in the training step
WITHOUT, CLIPPED = "without the call", "clip_grad_norm=1"


@contextmanager
def contestants(handicap: bool) -> Iterator[Turns]:
    """Seconds per step of the tiny MLP, one epoch per turn."""
    with (
        ours.training(*MLP) as run,
        ours.training(*MLP) as other,
        ours.training(*MLP, CLIPPED) as clipped,
    ):
        if handicap:
            ours.slow_down(run, 50e-6)
        shorter = loop_without(CALL)
        yield {
            OURS: lambda: ours.seconds_a_step(run, MLP_STEPS),
            WITHOUT: lambda: ours.seconds_a_step(other, MLP_STEPS, shorter),
            CLIPPED: lambda: ours.seconds_a_step(clipped, MLP_STEPS),
        }


def loop_without(line: str) -> Callable[[TrainingRun], object]:
    """`train` of the training loop without a line of its source."""
    source = inspect.getsource(loop)
    assert source.count(line) == 1
    module = types.ModuleType("loop_without_a_line")
    exec(compile(source.replace(line, ""), module.__name__, "exec"), vars(module))
    train: Callable[[TrainingRun], object] = module.train
    return train


def more(name: str) -> Callable[[Figures], Array]:
    """Microseconds per step more than without the call."""
    return lambda figures: (figures[name] - figures[WITHOUT]) * 1e6


BENCHES = [
    Bench(
        name="clipping",
        conditions=(
            f"A turn is {MLP_STEPS} steps as in step-mlp. The rival is the source of the training "
            "loop without the line that clips; by default that line calls a function that does "
            "nothing. The handicap: 50 µs more for each loss."
        ),
        contestants=contestants,
        rows=[
            Row("step of a tiny MLP, no clipping", "a loop that cannot clip", more(OURS),
                at_most(1), "µs"),
            Row("the same with clip_grad_norm=1", "a loop that cannot clip", more(CLIPPED),
                unit="µs"),
        ],
    )
]  # fmt: skip
