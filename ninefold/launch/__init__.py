"""Start runs in worker processes. Public: `ready.ready`, `run.run_job`, `run.follow`, and these.

Imports only plain data, because the forkserver's first import imports this package.
"""

from __future__ import annotations

from dataclasses import dataclass

from ninefold.errors import Failure, Interrupted, Preempted
from ninefold.result import Result


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
