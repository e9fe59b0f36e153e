"""Runs on one host with torch elastic: forked workers that meet in a store on the loopback.

Imported late, because it imports torch: see ninefold.launch.run.
"""

from __future__ import annotations

import logging
import signal
import socket
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ninefold.config.spec import RunSpec
from ninefold.errors import KILLED, Failure, PeerError, ResourceError
from ninefold.launch import Launcher, forkserver, mailbox, worker
from ninefold.launch.run_folder import stopped
from ninefold.launch.supervisor import Supervisor
from ninefold.process import scratch
from ninefold.signals import SIGNALS

LOOPBACK = "127.0.0.1"
LOST = 255  # multiprocessing's exit code for a worker whose end was not seen


class Left(Exception):
    """A worker has ended without a word, and with exit code 0."""


class Loopback(RendezvousHandler):
    """The rendezvous of a one-host job: one agent, and a store that only this host can reach.

    Elastic's own handlers listen on all interfaces, even when they are given 127.0.0.1.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._run_id = parameters.run_id
        self._timeout = timedelta(seconds=parameters.get_as_int("timeout") or 60)
        self._mailbox = Path(parameters.get("mailbox"))
        self._attempt = -1
        self._gone: set[int] = set()

    def get_backend(self) -> str:
        return "loopback"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """A new store each time: restarted workers must not find their predecessors' addresses."""
        self._attempt, self._gone = self._attempt + 1, set()
        listener = socket.create_server((LOOPBACK, 0))
        port = listener.getsockname()[1]
        self._store = TCPStore(
            LOOPBACK,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=self._timeout,
            master_listen_fd=listener.detach(),  # the store owns it from here on
        )
        store = PrefixStore(self._run_id, self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(LOOPBACK, port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        return None

    def num_nodes_waiting(self) -> int:
        """0. Elastic asks at each look that finds no worker which has failed, or all done.

        It waits for ever for what a worker returns that has left with exit code 0, by os._exit or
        a library's exit: such a one is found here, reported in its place, and raises Left.
        """
        gone = mailbox.gone(self._mailbox, self._attempt)
        if left := gone & self._gone:  # at two looks: between them elastic has seen its exit code
            rank = min(left)
            mailbox.write(self._mailbox, rank, self._attempt, ended_by_itself(rank, 0))
            raise Left
        self._gone = gone
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


rendezvous_handler_registry.register("loopback", Loopback)


class Elastic(Launcher):
    """Launcher for worker processes on this host, forked from the forkserver."""

    @staticmethod
    def applies(settings: Mapping[str, Any], in_allocation: bool) -> bool:
        return True

    def run(self, spec: RunSpec, processes: int) -> None:
        """Run `spec` in `processes` worker processes and wait for them.

        Raises the Failure of the worker that failed first; Preempted or Interrupted if the launcher
        received a signal.
        """
        forkserver.require_semaphores()
        with tempfile.TemporaryDirectory(dir=scratch()) as name, quiet():
            folder = Path(name)
            config = launch_config(processes, folder / "elastic", self.settings["max_restarts"])
            with Supervisor(folder, spec.grace) as supervisor:
                try:
                    elastic_launch(config, worker.work)(replace(spec, mailbox=folder))
                except (ChildFailedError, Left) as error:
                    failure = first_failure(supervisor, folder, error, spec)
                    raise failure from None  # elastic's error knows less: an exit code
            if supervisor.signal is not None:  # it came as the run ended; it ends the sweep
                raise stopped(supervisor.signal, spec.folder)


def launch_config(
    processes: int, logs: Path, max_restarts: int, look: float = 0.02
) -> LaunchConfig:
    """All settings of elastic: its defaults restart workers and trust the network.

    look: seconds between its looks at the workers; each run waits half of it on average.
    """
    settings: dict[str, Any] = {
        "min_nodes": 1,
        "max_nodes": 1,
        "nproc_per_node": processes,
        "run_id": uuid.uuid4().hex,
        "role": "worker",
        "rdzv_backend": "loopback",
        "rdzv_endpoint": LOOPBACK,
        "rdzv_configs": {"timeout": 60, "mailbox": str(logs.parent)},
        "max_restarts": max_restarts,
        "monitor_interval": look,
        "start_method": "forkserver",
        "logs_specs": DefaultLogsSpecs(log_dir=str(logs)),
        "log_line_prefix_template": None,
        "metrics_cfg": {},
        "local_addr": LOOPBACK,
        "event_log_handler": "null",
        "signals_to_handle": "",  # the supervisor does
        "duplicate_stdout_filters": None,
        "duplicate_stderr_filters": None,
        "virtual_local_rank": False,
        "shutdown_timeout": 30,
    }
    known = {field.name for field in fields(LaunchConfig)}  # torch 2.10 lacks the last few
    config = LaunchConfig(**{key: value for key, value in settings.items() if key in known})
    # By default it may pin workers to the cores next to their GPU, which would give the cells of a
    # study different cores.
    config.numa_options = None
    return config


def first_failure(
    supervisor: Supervisor, folder: Path, error: ChildFailedError | Left, spec: RunSpec
) -> Failure:
    """The failure to show: the earliest error, else the signal, else that a peer was lost."""
    failures = error.failures if isinstance(error, ChildFailedError) else {}
    exits = {rank: failure.exitcode for rank, failure in failures.items()}
    found = mailbox.latest(folder, worker.FINAL)
    causes = [report for report in found if report.kind != PeerError.__name__]
    if causes:
        return causes[0].failure
    if supervisor.signal is not None:
        return stopped(supervisor.signal, spec.folder)
    for rank in sorted(supervisor.hung):
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
        if rank not in {report.rank for report in found}:
            return ended_by_itself(rank, code)
    return found[0].failure


def ended_by_itself(rank: int, code: int) -> Failure:
    """The failure of a worker that has left without a word, as by os._exit."""
    return Failure(
        "rank",
        rank,
        f"its process left with exit code {code} before the run had ended; code that a run calls "
        "may raise, not exit; see what calls exit or os._exit, or a library that does",
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Disable elastic's log, which repeats failures that are already in run.log."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
