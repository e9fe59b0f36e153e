"""Loggers are a list; each is closed with the result, after it is on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from ninefold.logger import Run
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


def test_a_logger_from_outside_sees_the_result(here: Shell, tmp_path: Path) -> None:
    done = here.train("max_steps=4", "log_every=2", "logger=quiet", TOY)
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)
    seen = json.loads((run / "toy.json").read_text())
    assert seen["written"]
    assert seen["steps"] == [2, 4, 4]
    for key in ("accuracy", "steps", "status", "train_seconds"):
        assert seen["result"][key] == result(run)[key]
    assert (run / "metrics.jsonl").exists()
    assert not (run / "tensorboard").exists()


@pytest.mark.slow
def test_after_a_failure_a_logger_is_closed_with_nothing(here: Shell, tmp_path: Path) -> None:
    done = here.train("max_steps=4", "optimizer.lr=1e30", "logger=quiet", TOY, "log_every=1")
    assert done.returncode == 6, done.stderr
    seen = json.loads((only_run(tmp_path) / "toy.json").read_text())
    assert (seen["result"], seen["written"]) == (None, False)


class Unclosable(Toy):
    """A logger whose place is gone at the end."""

    def close(self, result: Result | None) -> None:
        raise OSError(28, "No space left on device")


def test_a_logger_that_cannot_be_closed_is_a_warning_after_a_run_that_is_ok(
    here: Shell, tmp_path: Path
) -> None:
    done = here.train("max_steps=2", "logger=quiet", TOY.replace("Toy", "Unclosable"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: Unclosable could not be closed") == 1
    assert result(only_run(tmp_path))["status"] == "ok"
