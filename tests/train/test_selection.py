"""What best.pt, patience and plateau follow: the task's score, in its own direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from torch import Tensor

from benchmarks import ours
from ninefold.engine.loop import train
from ninefold.engine.task import Score, Scores, Task
from ninefold.errors import ConfigError, NumericsError
from ninefold.train.training_run import TrainingRun
from tests.train.test_schedule import LR, SMALL

LOSS = Score("ELBO", "nats", "more")
RMSE = Score("RMSE", "m", "less")
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
        return Scores(self.left.pop(0))


def script(run: TrainingRun, score: Score | str, values: Sequence[float]) -> None:
    task = run.objective.task
    del run.objective.task  # which may be a submodule
    run.objective.task = Scripted(task, score, list(values))


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
def test_best_pt_and_patience_follow_the_direction_of_the_score(
    score: Score | str, values: list[float], best: float, epochs: int
) -> None:
    with ours.training(*SMALL, *SAVED) as run:
        script(run, score, values)
        train(run)
        per_epoch = run.batches.steps_per_epoch
        assert (run.state.step / per_epoch, run.state.best_accuracy) == (epochs, best)
        assert run.state.best_step == (values.index(best) + 1) * per_epoch
        run.writer.wait()
        assert (run.writer.checkpoints.folder / "best.pt").is_file()


@pytest.mark.parametrize(
    ("score", "values", "lowered"),
    [
        (
            LOSS,
            [-100.0, -100.005, -90.0, -95.0],
            [2, 4],
        ),  # a relative threshold: -100.005 is better
        (RMSE, [3.0, 2.0, 2.5, 1.0], [3]),
        ("accuracy", [0.2, 0.3, 0.4, 0.4], [4]),
    ],
)
def test_plateau_watches_the_score_in_its_direction(
    score: Score | str, values: list[float], lowered: list[int]
) -> None:
    # The built task tells the direction when the scheduler is built.
    plateau = ["scheduler.metric=score", "scheduler.patience=0", "epochs=4"]
    kind = Score(score) if isinstance(score, str) else score
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ninefold.task.classification.Classification.score", kind)
        with ours.training(*SMALL, *plateau) as run:
            script(run, kind, values)
            rates = []
            for epoch in range(4):
                run.last_step = (epoch + 1) * run.batches.steps_per_epoch
                train(run)
                rates.append(run.state.optimizer.param_groups[0]["lr"])
    expected = [LR * 0.1 ** sum(at <= epoch for at in lowered) for epoch in range(1, 5)]
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["scheduler=cosine", "+scheduler.metric=score"],
            r"scheduler\.metric=score: Cosine\w+ takes",
        ),
        (
            ["scheduler.metric=score", "+scheduler.mode=min"],
            r"scheduler\.mode=min: of accuracy more is better; max is allowed",
        ),
        (["scheduler.metric=accuracy"], r"scheduler\.metric=accuracy: .*loss, score are allowed"),
    ],
)
def test_what_plateau_cannot_watch_is_refused(overrides: list[str], line: str) -> None:
    with pytest.raises(ConfigError, match=f"^error: {line}"), ours.training(*SMALL, *overrides):
        pass


@pytest.mark.parametrize(
    ("score", "value", "line"),
    [
        ("negative ELBO", -502.0, r"task\.scores=-502: the negative ELBO is no share; .*declare"),
        (RMSE, float("nan"), r"task\.scores=nan: the RMSE is not finite; "),
        ("accuracy", True, r"task\.scores=True: the accuracy is no number; "),
        (Score("RMSE", better="sideways"), 1.0, r"task\.score=.*better='sideways'.*: no score; "),
        (Score("RMSE", "m\n"), 1.0, r"task\.score=.*unit='m\\n'.*: no score; "),
        (Score("RMSE", "m", margin=-1.0), 1.0, r"task\.score=.*margin=-1\.0.: no score; "),
        (Score("IoU", margin=100.0), 0.5, r"task\.score=.*margin=100\.0.: no score; "),
        (None, 0.5, r"task\.score=.*name=None.*: no score; "),
    ],
)  # fmt: skip
def test_a_score_that_cannot_be_is_an_error_in_one_line(
    score: Score, value: float, line: str
) -> None:
    with ours.training(*SMALL, "epochs=1") as run:
        script(run, score, [value])
        with pytest.raises((ConfigError, NumericsError), match=f"^error: {line}"):
            train(run)
