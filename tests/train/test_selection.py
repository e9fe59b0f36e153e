"""What best.pt, patience and plateau follow: the task's score, in its own direction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import ours
from ninefold.engine.loop import train
from ninefold.engine.task import Score
from ninefold.errors import ConfigError, NumericsError
from ninefold.task import Scores, Task
from ninefold.train.training_run import TrainingRun
from tests.train.test_schedule import SMALL

LOSS = Score("ELBO", "nats", "more")
RMSE = Score("RMSE", "m", "less")
TENSORS: Any = {"MAE": torch.tensor(1.0)}
NAMES: Any = ["MAE"]
SAVED = ["checkpoint.every=0", "patience=2", "epochs=6"]


@dataclass(frozen=True)
class Scripted:
    """A task whose evaluations give these scores, one after the other."""

    task: Task
    score: Score | str
    left: list[float]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.task.loss(output, target)

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        return self.task.measure(output, target)

    def scores(self, sums: Tensor, names: Sequence[str]) -> Scores:
        found: Any = self.left.pop(0)
        return found if isinstance(found, Scores) else Scores(found)


class Growing(Scripted):
    """A task whose sums have one row fewer from batch to batch."""

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        return torch.ones(len(self.left), int(self.left.pop()))


def script(
    run: TrainingRun, score: Score | str, values: Sequence[float], kind: type[Scripted] = Scripted
) -> None:
    task = run.objective.task
    del run.objective.task  # which may be a submodule
    run.objective.task = kind(task, score, list(values))


def test_sums_of_another_shape_are_an_error_of_the_task_in_one_line():
    with ours.training(*SMALL, "epochs=1") as run:
        script(run, "accuracy", [1] * 99, Growing)
        line = "^error: task=Growing: its `measure` failed in an evaluation; .*equal size"
        with pytest.raises(ConfigError, match=line):
            train(run)


@pytest.mark.parametrize(
    ("score", "values", "best", "epochs"),
    [
        (LOSS, [-502.0, -480.5, -480.0, -470.0, -465.0, -460.0], -460.0, 6),
        (LOSS, [-502.0, -480.5, -481.0, -490.0, 1.0, 2.0], -480.5, 4),
        (RMSE, [70.0, 60.0, 55.0, 54.0, 53.0, 52.0], 52.0, 6),
        (RMSE, [70.0, 75.0, 71.0, 1.0, 1.0, 1.0], 70.0, 3),
        (RMSE, [0.0, 0.5, 0.5, 0.1, 0.1, 0.1], 0.0, 3),
        ("accuracy", [0.0, 0.5, 0.5, 0.5, 0.9, 0.9], 0.5, 4),
    ],
)
def test_best_pt_and_patience_follow_the_direction_of_the_score(score, values, best, epochs):
    with ours.training(*SMALL, *SAVED) as run:
        script(run, score, values)
        train(run)
        per_epoch = run.batches.steps_per_epoch
        assert (run.state.step / per_epoch, run.state.best_score) == (epochs, best)
        assert run.state.best_step == (values.index(best) + 1) * per_epoch
        run.writer.wait()
        assert (run.writer.checkpoints.folder / "best.pt").is_file()


@pytest.mark.parametrize(
    ("score", "value", "line"),
    [
        ("negative ELBO", -502.0, r"task\.scores=-502: the negative ELBO is no share; .*declare"),
        (RMSE, float("nan"), r"task\.scores=nan: the RMSE is not finite; "),
        (RMSE, Scores(1.0, TENSORS), r"task\.scores=tensor.*the MAE is no n"),
        (RMSE, Scores(1.0, NAMES), r"task=Scripted: its `scores` failed .*'str' object has no"),
        (RMSE, Scores(10**400), r"task\.scores=10\S+: the RMSE is not finite; "),
        (RMSE, Scores(1.0, {"n": 10**400}), r"task\.scores=10\S+: the n is not finite; "),
        (RMSE, Scores(10**5000), r"task\.scores=<str\(\) of a int failed>: the RMSE is not fini"),
        ("accuracy", True, r"task\.scores=True: the accuracy is no number; "),
        (Score("RMSE", better="sideways"), 1.0, r"task\.score=.*'sideways'.*: its direction is no"),
    ],
)  # fmt: skip
def test_a_score_that_cannot_be_is_an_error_in_one_line(score, value, line):
    with ours.training(*SMALL, "epochs=1") as run:
        script(run, score, [value])
        with pytest.raises((ConfigError, NumericsError), match=f"^error: {line}"):
            train(run)
