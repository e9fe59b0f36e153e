"""What a training step costs more with a tracker than with the loggers that are the default."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from benchmarks import ours
from benchmarks.measure import OURS, Bench, Row, Turns, at_most, ratio
from benchmarks.step import LOG_EVERY, MLP, MLP_STEPS
from ninefold.extensions.trackers.tracking import Tracked
from ninefold.train.training_run import TrainingRun

WANDB, DEFAULT = "W&B", "logger=default"


@contextmanager
def contestants(handicap: bool) -> Iterator[Turns]:
    """Seconds per step of the tiny MLP, one epoch per turn."""
    with tempfile.TemporaryDirectory() as name, patch.dict(os.environ, {"WANDB_MODE": "offline"}):
        uri = f"logger.mlflow.uri=sqlite:///{Path(name, 'mlflow.db')}"
        with (
            ours.training(*MLP, "logger=mlflow", uri) as mlflow,
            ours.training(*MLP, "logger=wandb") as wandb,
            ours.training(*MLP, "logger=default") as default,
        ):
            for run in (mlflow, wandb):
                wait_for_client(run)
                if handicap:
                    ours.slow_down(run, 50e-6)
            yield {
                OURS: lambda: ours.seconds_a_step(mlflow, MLP_STEPS),
                WANDB: lambda: ours.seconds_a_step(wandb, MLP_STEPS),
                DEFAULT: lambda: ours.seconds_a_step(default, MLP_STEPS),
            }


def wait_for_client(run: TrainingRun) -> None:
    """Wait until the tracker has begun its run, which takes it seconds."""
    (tracker,) = (logger for logger in run.loggers if isinstance(logger, Tracked))
    while not hasattr(tracker._client, "_run"):
        time.sleep(0.1)


BENCHES = [
    Bench(
        name="loggers",
        conditions=(
            f"A turn is {MLP_STEPS} steps as in step-mlp, with log points each {LOG_EVERY} steps "
            "and the evaluation, whose values are sent too, not counted. MLflow writes to SQLite, "
            "W&B offline; both have begun their runs before and share the machine. The handicap: "
            "50 µs more for each loss."
        ),
        contestants=contestants,
        rows=[
            Row("step of a tiny MLP with logger=mlflow", DEFAULT, ratio(OURS, DEFAULT),
                at_most(1.01)),
            Row("the same with logger=wandb, offline", DEFAULT, ratio(WANDB, DEFAULT),
                at_most(1.01)),
        ],
    )
]  # fmt: skip
