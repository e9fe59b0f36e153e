"""task=regression: what does not fit it is one line."""

import pytest

from tests.faults.refusals import refuses_job

REGRESSION = ["task=regression", "dataset=diabetes", "model=mlp", "batch_size=32"]


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["dataset.classes=3"], "task=regression: the model's output is [2, 3], the targets are"),
        (
            ["dataset.shape=[1,1,11]"],
            "model=mlp: it fails in evaluation mode on examples of [10]; ",
        ),
    ],
)
def test_what_does_not_fit_is_an_error_in_one_line(overrides, line):
    job = [*REGRESSION, *overrides, "epochs=1", "threads=1"]
    refuses_job(job, line)


def test_scores_by_less_are_minimized_by_a_sweeper_that_maximizes():
    from omegaconf import OmegaConf

    from ninefold.plugins import objective
    from ninefold.result import Result

    rmse = Result("ok", best_score=3.0, score_name="RMSE", score_unit="m", score_better="less")
    share = Result("ok", best_score=0.5, score_name="accuracy")
    for direction, found in (("maximize", -3.0), ("minimize", 3.0)):
        assert objective(rmse, OmegaConf.create({"direction": direction})) == found
        assert objective(share, OmegaConf.create({"direction": direction})) == 0.5
    assert objective(rmse, OmegaConf.create({})) == 3.0
