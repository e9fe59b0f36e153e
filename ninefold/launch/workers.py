"""Starts the worker processes of a run that trains in turns, and picks the failure to report.

launch.turns uses Workers, which talks to each process by a pipe. Other runs are started by
launch.elastic, which shares the store and first_failure.

Imported late, because it imports torch: see ninefold.launch.run.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore

from ninefold.config.spec import RunSpec
from ninefold.errors import KILLED, Failure, FailureReport, PeerError, ResourceError
from ninefold.launch import worker
from ninefold.launch.run_folder import stopped
from ninefold.process import Child, ready, until
from ninefold.signals import SIGNALS, held_back

LOOPBACK = "127.0.0.1"
LOST = 255  # multiprocessing's exit code for a worker whose end was not seen
TO_EXIT = 2.0  # seconds that workers have to exit after one of them has failed


def loopback_store() -> TCPStore:
    """A store in which the processes of a run meet, and that only this host can reach.

    TCPStore and elastic's own handlers listen on all interfaces, even when given 127.0.0.1.
    """
    listener = socket.create_server((LOOPBACK, 0))
    return TCPStore(
        LOOPBACK,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
        master_listen_fd=listener.detach(),  # the store owns it from here on
    )


def variables(rank: int, count: int, port: int, attempt: int = 0) -> dict[str, str]:
    """The variables that torchrun sets, for one of `count` processes on this host.

    port: of their store. attempt: how often they were started before.
    """
    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(count)),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "ninefold",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


class Workers:
    """The worker processes of a run that take turns."""

    def __init__(self, spec: RunSpec, count: int) -> None:
        self._spec = spec
        self._store = loopback_store()
        self._processes: list[Child] = []
        try:
            with held_back():  # a signal would else end this between a start and its `append`
                for rank in range(count):
                    environment = variables(rank, count, self._store.port)
                    self._processes.append(Child(worker.begin, spec, environment))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._processes]

    def send(self, message: Any) -> None:
        """Send a message to each."""
        for child in self._processes:
            child.send(message)

    def receive(self, ranks: Collection[int], seconds: float) -> dict[int, Any]:
        """Wait until one of `ranks` has sent a message: messages by rank, {} after `seconds`.

        Raises the first failure of the run if one has failed or ended.
        """
        whose = {self._processes[rank]: rank for rank in ranks}
        found = {whose[child]: child.receive() for child in ready(whose, seconds)}
        if any(said is None or isinstance(said, FailureReport) for said in found.values()):
            raise self._failure(
                [said for said in found.values() if isinstance(said, FailureReport)]
            )
        return found

    def signal(self, number: int, groups: bool = False) -> None:
        """Send a signal to each that is alive. groups: and to those in the group that it leads."""
        for child in self._processes:
            child.signal(number, groups)

    def close(self) -> None:
        """Kill those that are left, and wait for their end."""
        self.signal(signal.SIGKILL)
        for child in self._processes:
            child.close()

    def _failure(self, reports: list[FailureReport]) -> Failure:
        """The run's failure: waits up to TO_EXIT seconds for reports, then kills what is left."""
        left = set(self._processes)

        def ended() -> bool:
            for child in ready(left, 0):
                said = child.receive()
                if said is None:
                    left.remove(child)
                elif isinstance(said, FailureReport):
                    reports.append(said)
            return not left

        until(ended, TO_EXIT)
        codes = {rank: child.exit_code for rank, child in enumerate(self._processes)}
        exits = {rank: code for rank, code in codes.items() if code is not None}
        said = {report.rank for report in reports}
        # It hung only if all that ended have reported: its peers timed out waiting for it.
        hung = codes.keys() - exits.keys() if exits.keys() <= said else set()
        self.close()
        reports.sort(key=lambda report: report.time)
        return first_failure(reports, exits, hung, self._spec)


def first_failure(
    reports: Sequence[FailureReport],
    exits: Mapping[int, int],
    hung: Collection[int],
    spec: RunSpec,
    number: int | None = None,
) -> Failure:
    """The failure to show: the earliest error, else the signal, else that a peer was lost.

    reports: what the processes said, the earliest first.
    exits: exit codes of those that ended by themselves, by rank.
    hung: ranks that neither said anything nor ended.
    number: the first signal that the launcher received.
    """
    causes = [report for report in reports if report.kind != PeerError.__name__]
    if causes:
        return causes[0].failure
    if number is not None:
        return stopped(number, spec.folder)
    for rank in sorted(hung):
        return PeerError(
            "rank",
            rank,
            "its process hung: the others timed out waiting for it; launch.timeout is how long "
            f"they wait; logs are in {spec.folder}; see what it was doing, and resume",
        )
    for rank, code in exits.items():
        if code == -signal.SIGKILL:
            return ResourceError(
                "rank",
                rank,
                f"{KILLED}; most often the kernel was short of memory; lower batch_size, see dmesg",
            )
        if code == LOST:
            return ResourceError(
                "forkserver",
                "killed",
                "the process that workers are forked from was killed; the workers end with it; "
                "see dmesg, then resume",
            )
        if code == -signal.SIGABRT:
            return PeerError(
                "rank",
                rank,
                "its process aborted; as NCCL does when a peer does not answer; see the logs in "
                f"{spec.folder}; launch.timeout is how long one waits",
            )
        if -code in SIGNALS:
            return stopped(-code, spec.folder)
        if code < 0:
            name = signal.Signals(-code).name
            return Failure(
                "rank",
                rank,
                f"its process died of {name}; no report was left; see the logs in {spec.folder}",
            )
        if rank not in {report.rank for report in reports}:
            return ended_by_itself(rank, code)
    return reports[0].failure


def ended_by_itself(rank: int, code: int) -> Failure:
    """The failure of a worker that exited without a report, as through os._exit."""
    return Failure(
        "rank",
        rank,
        f"its process left with exit code {code} before the run had ended; code that a run calls "
        "may raise, not exit; see what calls exit or os._exit, or a library that does",
    )
