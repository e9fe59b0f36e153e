"""Runs on one host in the processes of torch elastic, forked, that meet in a store on the loopback.

Imported late, because it imports torch: see ninefold.launch.run.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    RunProcsResult,
    start_processes,
)

from ninefold.config.spec import RunSpec
from ninefold.launch import Launcher, forkserver, mailbox, worker
from ninefold.launch.run_folder import stopped
from ninefold.launch.supervisor import Supervisor
from ninefold.launch.workers import (
    ended_by_itself,
    first_failure,
    loopback_store,
    variables,
)
from ninefold.process import replaced, scratch, until

LOOK_SECONDS = 0.02  # between looks at the workers; each run waits half of it on average


class Elastic(Launcher):
    """Launcher for worker processes on this host, forked from the forkserver."""

    @staticmethod
    def applies(settings: Mapping[str, Any]) -> bool:
        return True

    def run(self, spec: RunSpec, processes: int) -> None:
        """Run `spec` in `processes` worker processes and wait for them.

        Raises the Failure of the worker that failed first; Preempted or Interrupted if the launcher
        received a signal.
        """
        forkserver.require_semaphores()
        with tempfile.TemporaryDirectory(dir=scratch()) as name, quiet():
            folder = Path(name)
            spec = replace(spec, mailbox=folder)
            with Supervisor(folder, spec.grace) as supervisor:
                for attempt in range(self.settings["max_restarts"] + 1):
                    codes = exit_codes(spec, processes, attempt, supervisor)
                    if codes is None or mailbox.final(folder, worker.FINAL) is not None:
                        break
                if codes is not None:
                    reports = mailbox.latest(folder, attempt, worker.FINAL)
                    raise first_failure(reports, codes, supervisor.hung, spec, supervisor.signal)
            if supervisor.signal is not None:  # it came as the run ended; it ends the sweep
                raise stopped(supervisor.signal, spec.folder)


def exit_codes(
    spec: RunSpec, processes: int, attempt: int, supervisor: Supervisor
) -> dict[int, int] | None:
    """Run `spec` in worker processes; None if all finished, else the codes of those that failed.

    attempt: how often they were started before. Those that are left after a failure are ended.
    """
    folder, ranks, gone = spec.mailbox, range(processes), set[int]()
    assert folder is not None
    store = loopback_store()  # a new one: predecessors have left their addresses in theirs
    with replaced("TORCHELASTIC_SIGNALS_TO_HANDLE", ""):  # the supervisor does
        context = start_processes(
            "worker",
            worker.work,
            args=dict.fromkeys(ranks, (spec,)),
            envs={rank: variables(rank, processes, store.port, attempt) for rank in ranks},
            logs_specs=DefaultLogsSpecs(log_dir=str(folder / "elastic")),
            start_method="forkserver",
        )

    pids = context.pids()
    supervisor.supervise(pids, attempt)

    def ended() -> RunProcsResult | bool:
        """Torch would wait for ever for the result of a worker that left through os._exit(0)."""
        nonlocal gone
        if (found := context.wait(0)) is not None:
            return found
        before, gone = gone, {rank for rank, pid in pids.items() if not lives(pid)}
        for rank in before & gone:  # at two looks: between them torch has seen its exit code
            mailbox.write(folder, rank, attempt, ended_by_itself(rank, 0))
        return bool(before & gone)

    try:
        found = until(ended, look=LOOK_SECONDS)
    finally:
        context.close()
    if not isinstance(found, RunProcsResult):
        return {}
    codes = {rank: failure.exitcode for rank, failure in found.failures.items()}
    return codes if found.is_failed() else None


def lives(pid: int) -> bool:
    """Whether this process has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def quiet() -> Iterator[None]:
    """Disable elastic's log, which repeats failures that are already in run.log."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
