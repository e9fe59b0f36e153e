"""Start runs in worker processes. Public: `ready.ready`, `run.run`, `run.follow`, and these.

Imports only plain data, because the forkserver's first import imports this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ninefold.errors import Failure, Interrupted, Preempted
from ninefold.result import Result

if TYPE_CHECKING:
    from ninefold.config.spec import RunSpec


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    code: the exit code of a command with this run alone.
    failures: why it failed; empty if it did not.
    result: its result.json; None for an evaluation and for a run that failed.
    """

    code: int
    failures: tuple[Failure, ...] = ()
    result: Result | None = None

    @property
    def stopped(self) -> bool:
        """Whether a signal ended it, which ends a sweep too."""
        return any(isinstance(failure, Interrupted | Preempted) for failure in self.failures)


class Launcher:
    """Base class of launchers, which start the processes of a run: elastic, inline, per_rank.

    settings: the section `launch` of the job.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    @staticmethod
    def applies(settings: Mapping[str, Any]) -> bool:
        """Whether to use this launcher here. launch.run asks all in a fixed order."""
        raise NotImplementedError

    def run(self, spec: RunSpec, processes: int) -> None:
        """Run `spec` in `processes` workers and wait. Raises the failure of the first to fail."""
        raise NotImplementedError

    def follow(self) -> int:
        """On a rank other than 0: wait for the job and run it. Returns an exit code.

        Only for launchers that start the command once per rank. Raises Failure.
        """
        raise NotImplementedError
