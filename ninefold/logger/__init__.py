"""Loggers: where the metrics of a run go. One module and one yaml each; rank 0 only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ninefold.result import Result
from ninefold.score import IMAGES, SHARE, Counted


@dataclass(frozen=True)
class Run:
    """What a logger gets to know about the run when it is built.

    folder: the run folder.
    first_step: optimizer steps taken so far; 0 unless it resumes.
    measured: the step of the latest evaluation so far.
    steps: optimizer steps in all.
    batch_size: global.
    settings: the configuration with dotted keys.
    score, unit, better: what the task scores by, see Score.
    counted: what a throughput is shown in.
    """

    folder: Path
    first_step: int
    measured: int
    steps: int
    batch_size: int
    settings: Mapping[str, Any]
    score: str = "accuracy"
    unit: str = SHARE
    better: str = "more"
    counted: Counted = IMAGES


class Logger(Protocol):
    """Takes metrics. Its yaml names a function or class that is called with a Run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of a log point, or of an evaluation (which has test_loss)."""

    def close(self, result: Result | None) -> None:
        """Finish. result: of the run, as result.json has it; None if the run failed."""
