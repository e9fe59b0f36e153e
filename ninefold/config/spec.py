"""The description of a run that a launcher hands to its worker processes: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ninefold.files import write_durably

OVERRIDES = ".hydra/overrides.yaml"  # in a run folder


@dataclass(frozen=True)
class RunSpec:
    """One run of a frozen job.

    command: `train`, `evaluate`, `time`, or a function of an extension, `MODULE:NAME`.
    job_yaml: the frozen job.
    folder: the run folder.
    started: time.time() at launch.
    resume: whether to resume from the folder's last checkpoint.
    mailbox: folder in which a worker leaves its failure; None if no launcher reads it.
    launcher: the pipe through which a worker of a run that takes turns is told when it may train.
    overrides: the overrides of the command line that result.json lists.
    overrides_yaml: all of them, as OVERRIDES has them.
    notes: sentences for result.json.
    grace: seconds from a signal to the end of the process.
    shares_process: whether other runs of a sweep use the same process.
    cache: where the decoded examples are, see dataset.cache: the path of each file by name.
    quiet: whether what it prints goes to its log only.
    arguments: of an extension's function.
    evaluates: of `time`, whether an evaluation is tried first, as scores are asked for, too.
    timeout: seconds that a process waits for its peers.
    hosts: of a run on several hosts, what result.json says of each; empty: this host alone.
    """

    command: str
    job_yaml: str
    folder: Path
    started: float
    resume: bool = False
    mailbox: Path | None = None
    launcher: Connection | None = None
    overrides: list[str] = field(default_factory=list)
    overrides_yaml: str = ""
    notes: list[str] = field(default_factory=list)
    grace: float = 30
    shares_process: bool = False
    cache: dict[str, str] | None = None
    quiet: bool = False
    arguments: tuple[Any, ...] = ()
    evaluates: bool = False
    timeout: float = 1800
    hosts: list[dict[str, Any]] = field(default_factory=list)

    def write_job(self) -> None:
        """Write the job and its overrides into the folder, whose lock this process has."""
        write_durably(self.folder / "config.yaml", self.job_yaml.encode())
        if (self.folder / OVERRIDES).parent.is_dir():  # the run was not moved without it
            write_durably(self.folder / OVERRIDES, self.overrides_yaml.encode())
