"""The worker processes of a run on this host, which torch elastic forks, and why they ended.

Imported late, because it imports torch: see ninefold.launch.run.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, start_processes

from ninefold import signals
from ninefold.checkpoint.manifest import NEW
from ninefold.config.spec import RunSpec
from ninefold.errors import (
    KILLED,
    CheckpointError,
    ConfigError,
    DataError,
    Failure,
    FailureReport,
    Interrupted,
    NumericsError,
    PeerError,
    Preempted,
    ResourceError,
    one_line,
)
from ninefold.exits import OWN_END
from ninefold.launch import worker
from ninefold.launch.run_folder import stopped
from ninefold.process import replaced, scratch
from ninefold.signals import SIGNALS
from ninefold.waits import poll_until

LOOK_SECONDS = 0.02  # between looks at the workers; each run waits half of it on average
LOOPBACK = "127.0.0.1"
# Of processes that are stopped between turns: their launcher sees to it that they do not hang, and
# to what else watches for that in NCCL's threads a long pause may look like a hang.
PAUSED = {"TORCH_NCCL_ENABLE_MONITORING": "0", "NCCL_RAS_ENABLE": "0"}
LOST = 255  # multiprocessing's exit code for a worker whose end was not seen
TO_EXIT = 2.0  # seconds that workers have to exit after one of them has failed
HUNG_SECONDS = 3.0  # seconds in which all peers of a hung process must report that it is missing
STOPS = {Preempted.__name__, Interrupted.__name__}
# Failures that would recur if the workers were restarted.
FINAL = (ConfigError, CheckpointError, DataError, NumericsError, Preempted, Interrupted)

logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # run.log has it already


def run_workers(spec: RunSpec, processes: int, restarts: int) -> None:
    """Run `spec` in worker processes and wait for them.

    restarts: how often they are started again after a failure. Raises the failure of the worker
    that failed first; Preempted or Interrupted if this process received a signal.
    """
    with closing(Workers(spec, processes)) as workers, signals.handled(workers.receive_signal):
        for attempt in range(restarts + 1):
            workers.start(attempt)
            try:
                poll_until(workers.finished, interval=LOOK_SECONDS)
                break
            except Failure as failure:
                if attempt == restarts or workers.stopped_by or isinstance(failure, FINAL):
                    raise
                count = f"{attempt + 1} of launch.max_restarts={restarts}"
                said = str(failure).removeprefix("error: ")
                print(f"warning: {said}; restart {count}", file=sys.stderr, flush=True)
        if workers.stopped_by is not None:  # it came as the run ended; it ends the sweep
            raise stopped(workers.stopped_by, spec.folder)


def loopback_store() -> TCPStore:
    """A store in which the processes of a run meet, and that only this host can reach.

    TCPStore and elastic's own handlers listen on all interfaces, even when given 127.0.0.1.
    Raises ResourceError.
    """
    listener = socket.create_server((LOOPBACK, 0))
    try:
        return TCPStore(
            LOOPBACK,
            listener.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=60),
            master_listen_fd=listener.detach(),  # the store owns it from here on
        )
    except RuntimeError as error:
        wrong = f"the launcher does not reach its own store there ({one_line(str(error))[:160]})"
        needed = "a run of several processes meets in it"
        do = "give this host, or container, its loopback (ip link set lo up), or use parallel=none"
        raise ResourceError("interface", "lo", wrong, needed, do) from error


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
    """The worker processes of a run. A run that trains in turns is told so by `send`.

    pids: their process ids, by rank.
    stopped_by: the first signal that this process received, or None. It is forwarded to the
        workers, which are killed launch.grace seconds later, or at once by a second SIGINT. One
        that was ignored stays ignored (nohup ignores SIGHUP).
    """

    def __init__(self, spec: RunSpec, count: int) -> None:
        self.pids: list[int] = []
        self.stopped_by: int | None = None
        self._spec, self._ranks = spec, range(count)
        self._context: PContext | None = None
        self._store: TCPStore | None = None
        self._pipes: list[Connection] = []

    def start(self, attempt: int = 0) -> None:
        """Start them. attempt: how often they were started before."""
        self._folder = tempfile.TemporaryDirectory(dir=scratch())
        self._store = loopback_store()  # a new one: predecessors have left addresses in theirs
        self._since: dict[bool, float] = {}  # True: that one has failed; False: that one is done
        pipes = [Pipe() for _ in self._ranks] if self._spec.command == "time" else []
        self._pipes = [ours for ours, _ in pipes]
        spec = replace(self._spec, mailbox=Path(self._folder.name))
        specs = [replace(spec, launcher=theirs) for _, theirs in pipes] or [spec] * len(self._ranks)
        count, port = len(self._ranks), self._store.port
        # A signal would else end this between the start of the processes and the note of their ids.
        with replaced("TORCHELASTIC_SIGNALS_TO_HANDLE", ""), signals.held_back():
            self._context = start_processes(
                "worker",
                worker.main,
                args={rank: (own,) for rank, own in enumerate(specs)},
                envs={
                    rank: variables(rank, count, port, attempt) | (PAUSED if pipes else {})
                    for rank in self._ranks
                },
                logs_specs=DefaultLogsSpecs(log_dir=str(Path(self._folder.name, "elastic"))),
                start_method="forkserver",
            )
            self.pids = list(self._context.pids().values())
            # Elastic has each wait until all are done, which one that hangs never is.
            self._context._worker_finished_event.set()  # type: ignore[attr-defined]
        for _, theirs in pipes:
            theirs.close()
        if self.stopped_by is not None:  # it came while they were being started
            self.signal(self.stopped_by)

    def finished(self) -> bool:
        """Whether all have done their work and have ended.

        Once one has failed, the others have TO_EXIT seconds to end, or launch.grace while a
        checkpoint is being written; then they are killed, as one may wait for it in a kernel of
        NCCL for ever, and the run's failure is raised. A run that was told to stop has until
        launch.grace is over. Once one is done, the others have launch.timeout.
        """
        codes, reports = self._exit_codes(), self._reports()
        values = self._context._ret_vals  # type: ignore[union-attr]  # empty: it has not returned
        failed = {rank: code for rank, code in codes.items() if code or values[rank].empty()}
        left, wrong = {*self._ranks} - codes.keys(), bool(failed or reports)
        if not wrong and (not codes or not left):
            return not left
        since = self._since.setdefault(wrong, time.monotonic())
        said = {report.rank for report in reports}
        # Of a hung worker all its peers report that it is missing or are done, and no other ends.
        hangs = failed.keys() <= said and all(r.kind == PeerError.__name__ for r in reports)
        patience = HUNG_SECONDS + (0 if wrong else self._spec.timeout) if hangs else TO_EXIT
        if 0 in left and (self._spec.folder / "checkpoints" / NEW).exists():  # it writes one
            patience = max(patience, self._spec.grace)
        hung = left - said if hangs else ()
        stops = any(report.kind in STOPS for report in reports)
        if left and (stops or time.monotonic() < since + patience):
            return False
        self.close()
        raise first_failure(reports, failed, hung, self._spec, self.stopped_by)

    def send(self, message: Any) -> None:
        """Send a message to each; one to a process that has ended is lost."""
        for pipe in self._pipes:
            with suppress(BrokenPipeError, ConnectionResetError):
                pipe.send(message)

    def receive(self, ranks: Collection[int], seconds: float) -> dict[int, Any]:
        """Wait until one of `ranks` has sent a message: messages by rank, {} after `seconds`.

        Raises the first failure of the run if one has failed or ended.
        """
        pipes = {self._pipes[rank]: rank for rank in ranks}
        messages: dict[int, Any] = {}
        ends = False
        for pipe in wait(pipes, seconds):
            assert isinstance(pipe, Connection)
            try:
                messages[pipes[pipe]] = pipe.recv()
            except (EOFError, ConnectionResetError):
                ends = True
        if not messages:
            ends = ends or bool(self._exit_codes() or self._reports())
            poll_until(self.finished, OWN_END if ends else 0, interval=LOOK_SECONDS)
        return messages

    def receive_signal(self, number: int, first: bool) -> None:
        """Forward a signal to the workers: the first one, and a second Ctrl-C as SIGKILL."""
        if self.stopped_by is None:
            self.stopped_by = number
            signals.later(self._spec.grace, lambda: self.signal(signal.SIGKILL))
            self.signal(number)
        elif number == signal.SIGINT:
            self.signal(signal.SIGKILL)

    def signal(self, number: int, groups: bool = False) -> None:
        """Send a signal to each that is alive. groups: and to those in the group that it leads."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                (os.killpg if groups else os.kill)(pid, number)

    def close(self) -> None:
        """Kill those that are left, and wait for their end."""
        self.signal(signal.SIGKILL)
        if self._context is not None:
            self._context.close()
            self._folder.cleanup()
        for pipe in self._pipes:
            pipe.close()
        self._context, self.pids, self._pipes = None, [], []
        self._store = None  # ends its thread, and closes its port

    def _exit_codes(self) -> dict[int, int]:
        """The exit codes of those that have ended, by rank. -N: signal N ended it."""
        processes = self._context._pc.processes  # type: ignore[union-attr]
        codes = {rank: process.exitcode for rank, process in enumerate(processes)}
        return {rank: code for rank, code in codes.items() if code is not None}

    def _reports(self) -> list[FailureReport]:
        """What workers have said of why they end, the earliest first."""
        files = Path(self._folder.name).glob("rank*.json")
        return sorted(map(FailureReport.read, map(Path.read_text, files)), key=lambda r: r.time)


def first_failure(
    reports: Sequence[FailureReport],
    exits: Mapping[int, int],
    hung: Collection[int],
    spec: RunSpec,
    number: int | None = None,
) -> Failure:
    """The failure to show: the earliest error, else the signal, else that a peer was lost.

    reports: what the processes said, the earliest first.
    exits: exit codes of those that ended before they were done, by rank.
    hung: ranks that neither said anything nor ended.
    number: the first signal that the launcher received.
    """
    causes = [report for report in reports if report.kind != PeerError.__name__]
    if causes:
        return causes[0].failure
    if number is not None:
        return stopped(number, spec.folder)
    for rank in sorted(hung):
        wrong = "its process hung: the others have ended, or timed out"
        wrong += "; launch.timeout is how long they wait"
        do = "see what it was doing, and resume"
        return PeerError("rank", rank, wrong, f"logs are in {spec.folder}", do)
    for rank, code in exits.items():
        if code == -signal.SIGKILL:
            allowed = "most often the kernel was short of memory"
            return ResourceError("rank", rank, KILLED, allowed, "lower batch_size, see dmesg")
        if code == LOST:
            wrong = "the process that workers are forked from was killed"
            allowed = "the workers end with it"
            return ResourceError("forkserver", "killed", wrong, allowed, "see dmesg, then resume")
        if code == -signal.SIGABRT:
            wrong = "its process aborted; as NCCL does when a peer does not answer"
            do = "launch.timeout is how long one waits"
            return PeerError("rank", rank, wrong, f"see the logs in {spec.folder}", do)
        if -code in SIGNALS:
            return stopped(-code, spec.folder)
        if code < 0:
            name, logs = signals.name_of(-code), f"see the logs in {spec.folder}"
            return Failure("rank", rank, f"its process died of {name}", "no report was left", logs)
        if rank not in {report.rank for report in reports}:
            return ended_by_itself(rank, code)
    return reports[0].failure


def ended_by_itself(rank: int, code: int) -> Failure:
    """The failure of a worker that exited without a report, as through os._exit."""
    wrong = f"its process left with exit code {code} before the run had ended"
    do = "see what calls exit or os._exit, or a library that does"
    return Failure("rank", rank, wrong, "code that a run calls may raise, not exit", do)
