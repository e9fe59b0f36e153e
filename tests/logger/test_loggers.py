"""Loggers are a list, name the score of the task and are closed with the result, once on disk."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ninefold.logger import Logger, Run
from ninefold.logger.console import Console
from ninefold.logger.jsonl import JSONLines
from ninefold.logger.tensorboard import TensorBoard
from ninefold.result import Result
from tests.conftest import ROOT, Shell, only_run, result

TOY = "+logger.toy._target_=tests.logger.test_loggers.Toy"


class Toy:
    """A logger from outside the package: writes what it is closed with."""

    def __init__(self, run: Run) -> None:
        self.folder = run.folder
        self.steps: list[int] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.steps.append(step)

    def close(self, result: Result | None) -> None:
        seen = {
            "steps": self.steps,
            "result": None if result is None else asdict(result),
            "written": (self.folder / "result.json").exists(),
        }
        (self.folder / "toy.json").write_text(json.dumps(seen))


@pytest.fixture
def here(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return shell


def test_a_logger_from_outside_sees_the_result(here, tmp_path):
    here.train("max_steps=4", "log_every=2", "logger=quiet", TOY, code=0)
    run = only_run(tmp_path)
    seen = json.loads((run / "toy.json").read_text())
    assert seen["written"]
    assert seen["steps"] == [2, 4, 4]
    for key in ("score", "steps", "status", "train_seconds"):
        assert seen["result"][key] == result(run)[key]
    assert (run / "metrics.jsonl").exists()
    assert not (run / "tensorboard").exists()


@pytest.mark.slow
def test_after_a_failure_a_logger_is_closed_with_nothing(here, tmp_path):
    here.train("max_steps=4", "optimizer.lr=1e30", "logger=quiet", TOY, "log_every=1", code=6)
    seen = json.loads((only_run(tmp_path) / "toy.json").read_text())
    assert (seen["result"], seen["written"]) == (None, False)


class Unclosable(Toy):
    """A logger whose place is gone at the end."""

    error: BaseException = OSError(28, "No space left on device")

    def close(self, result: Result | None) -> None:
        raise self.error


class UnclosableExits(Unclosable):
    """A logger whose library exits at its end."""

    error = SystemExit(3)


@pytest.mark.parametrize("name", ["Unclosable", "UnclosableExits"])
def test_a_logger_that_cannot_be_closed_is_a_warning_after_a_run_that_is_ok(here, tmp_path, name):
    done = here.train("max_steps=2", "logger=quiet", TOY.replace("Toy", name), code=0)
    assert done.stderr.count(f"warning: {name} could not be closed") == 1
    assert result(only_run(tmp_path))["status"] == "ok"


# The score

VALUES = {"epoch": 1.0, "test_loss": 0.5, "test_score": 0.25, "val_loss": 0.4,
          "val_score": 0.75, "seconds": 2.0}  # fmt: skip


def logged(logger: type[Logger], folder: Path, score: str) -> None:
    """Log an evaluation of a task with this score."""
    found = logger(Run(folder, 0, 0, 8, 2, {"seed": 0}, score))
    found.log(4, VALUES)
    found.close(None)


def test_the_console_names_the_score(tmp_path, capsys):
    logged(Console, tmp_path, "mean IoU")
    assert "test mean IoU 0.2500" in (out := capsys.readouterr().out)
    assert "val mean IoU 0.7500" in out
    assert "accuracy" not in out


@pytest.mark.parametrize(
    ("score", "tag"), [("accuracy", "accuracy"), ("mean IoU", "mean_IoU"), ("<4 mm", "_4_mm")]
)
def test_tensorboard_names_the_score_at_its_step_and_keeps_hyper_parameters(tmp_path, score, tag):
    logged(TensorBoard, tmp_path, score)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    tags = set(found.Tags()["scalars"])
    assert {f"test/{tag}", "test/loss", f"val/{tag}", f"final/test_{tag}"} <= tags
    assert ("test/accuracy" in tags) == (score == "accuracy")
    assert [point.step for point in found.Scalars(f"test/{tag}")] == [4]
    hyper = found.PluginTagToContent("hparams")
    assert b"seed" in hyper["_hparams_/session_start_info"]


def test_metrics_jsonl_keeps_one_key_for_the_score_of_any_task(tmp_path):
    logged(JSONLines, tmp_path, "mean IoU")
    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["test_score"] == 0.25


def test_a_part_of_a_run_that_logs_nothing_leaves_the_final_metrics_as_they_are(tmp_path):
    TensorBoard(Run(tmp_path, 8, 8, 8, 2, {"seed": 0})).close(None)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert found.Tags()["scalars"] == []
    with pytest.raises(KeyError):
        found.PluginTagToContent("hparams")


def test_tensorboard_shows_a_resumed_run_without_the_steps_after_its_checkpoint(tmp_path):
    for first, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        logger = TensorBoard(Run(tmp_path, first, first, 8, 2, {}))
        for step in steps:
            logger.log(step, {"loss": first + step})
        logger.close(None)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    points = [(point.step, point.value) for point in found.Scalars("train/loss")]
    assert points == [(1, 1), (2, 2), (3, 5), (4, 6)]
