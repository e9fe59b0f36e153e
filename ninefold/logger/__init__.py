"""Where a run's numbers go: one file each, all of them on rank 0 only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Run:
    """What a logger may need to know of the run before its first number.

    first_step: where the run stands; measured: up to where it is evaluated. steps: optimizer steps
    in all; settings: the flat configuration.
    """

    folder: Path
    first_step: int
    measured: int
    steps: int
    batch_size: int
    settings: Mapping[str, Any]


class Logger(Protocol):
    """Built with a Run; takes the values of a log point or of an evaluation."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...
