"""What a launcher hands to a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Order:
    """One run of the frozen job.

    task: `train` or `evaluate`. job: the frozen job, YAML. started: time.time() at launch.
    report: a folder for the worker's failure, if it runs in a process of its own.
    overrides: what result.json is to say of the command line. notes: what it is to note besides.
    shares: whether it runs in a process that other jobs of a sweep run in.
    grace: seconds from a signal to the end of the process.
    """

    task: str
    job: str
    folder: Path
    started: float
    resume: bool = False
    report: Path | None = None
    overrides: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    grace: float = 30
    shares: bool = False
