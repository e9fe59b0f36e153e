"""Loggers name the score of the run's task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ninefold.logger import Run
from ninefold.logger.console import Console
from ninefold.logger.jsonl import JSONLines
from ninefold.logger.tensorboard import TensorBoard

VALUES = {"epoch": 1.0, "test_loss": 0.5, "test_accuracy": 0.25, "val_loss": 0.4,
          "val_accuracy": 0.75, "seconds": 2.0}  # fmt: skip


def run(folder: Path, score: str) -> Run:
    return Run(folder, 0, 0, 8, 2, {"seed": 0}, score)


def test_the_console_names_the_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = Console(run(tmp_path, "mean IoU"))
    logger.log(4, VALUES)
    logger.close(None)
    assert "test mean IoU 0.2500" in (out := capsys.readouterr().out)
    assert "val mean IoU 0.7500" in out
    assert "accuracy" not in out


@pytest.mark.parametrize(
    ("score", "tag"), [("accuracy", "accuracy"), ("mean IoU", "mean_IoU"), ("<4 mm", "_4_mm")]
)
def test_tensorboard_names_the_score(tmp_path: Path, score: str, tag: str) -> None:
    logger = TensorBoard(run(tmp_path, score))
    logger.log(4, VALUES)
    logger.close(None)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    tags = set(found.Tags()["scalars"])
    assert {f"test/{tag}", "test/loss", f"train/val_{tag}", f"final/test_{tag}"} <= tags
    assert ("test/accuracy" in tags) == (score == "accuracy")


def test_metrics_jsonl_keeps_one_key_for_the_score_of_any_task(tmp_path: Path) -> None:
    logger = JSONLines(run(tmp_path, "mean IoU"))
    logger.log(4, VALUES)
    logger.close(None)
    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["test_accuracy"] == 0.25
