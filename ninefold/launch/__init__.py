"""Starts runs in processes of their own. Public: `run.run`, `run.check`, `run.follow`, and these.

Nothing here is imported early but plain data: the forkserver's first import passes through here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ninefold.errors import Failure, Interrupted, Preempted
from ninefold.result import Result

if TYPE_CHECKING:
    from ninefold.config.job import Job
    from ninefold.config.spec import RunSpec


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    code: the exit code that it gives a command.
    failures: why it failed; empty if it did not.
    result: its result.json; None for an evaluation and for a run that failed.
    """

    code: int
    failures: tuple[Failure, ...] = ()
    result: Result | None = None

    @property
    def stopped(self) -> bool:
        """Whether a signal ended it, which also ends a sweep."""
        return any(isinstance(failure, Interrupted | Preempted) for failure in self.failures)


class Refused(SystemExit):
    """Ends a command that cannot be run. `code` is the first failure's; main prints all of them.

    It is no Exception: Hydra turns those of a callback into warnings.
    """

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__(failures[0].code)
        self.failures = tuple(failures)


class Command(Protocol):
    """What a study needs of the command that it is run by: see main.Command.

    argv: the command's arguments.
    started: time.time() at its start.
    sweep: folder of the sweep, set once it belongs to this command: the report is written there.
    study_name: the chosen option of `experiments`, if any.
    resume_command: how to resume a study that is not finished, set by it; printed at the end.
    """

    argv: list[str]
    started: float
    sweep: Path | None
    study_name: str | None
    resume_command: str | None

    def run(self, job: Job, folder: Path) -> Outcome:
        """Run `job` and print how it ended. Raises SystemExit if a signal ended it."""


class Launcher:
    """Where the processes of a run come from. One file each: elastic, inline, torchrun.

    settings: the section `launch` of the job.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    @staticmethod
    def found(settings: Mapping[str, Any]) -> bool:
        """Whether it is the one to use here; launch.run asks them in a fixed order."""
        raise NotImplementedError

    def run(self, spec: RunSpec, processes: int) -> None:
        """Run `spec` in so many processes and wait for them. Raises the Failure of the first."""
        raise NotImplementedError

    def follow(self) -> int:
        """In a process that is not to compose: wait for the job and run it. Returns an exit code.

        Only for launchers that start the command itself several times. Raises Failure.
        """
        raise NotImplementedError
