"""Runs on one host with torch elastic: forked workers that meet in a store on the loopback.

Imported late, because it imports torch: see ninefold.launch.run.
"""

from __future__ import annotations

import logging
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore
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
from ninefold.launch import Launcher, forkserver, mailbox, worker
from ninefold.launch.run_folder import stopped
from ninefold.launch.supervisor import Supervisor
from ninefold.launch.workers import LOOPBACK, ended_by_itself, first_failure, loopback_store
from ninefold.process import scratch


class Left(Exception):
    """A worker has ended without a word, and with exit code 0."""


class Loopback(RendezvousHandler):
    """The rendezvous of a one-host job: one agent, and a store that only this host can reach."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._run_id = parameters.run_id
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
        self._store = loopback_store()
        store = PrefixStore(self._run_id, self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(LOOPBACK, self._store.port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        return None

    def num_nodes_waiting(self) -> int:
        """Detect workers that exited with code 0 without finishing; else return 0: no node waits.

        Elastic calls this at each poll of its monitor loop in which no worker has failed and not
        all are done. It would wait for ever for the return value of a worker that left through
        os._exit: that worker's failure is written here in its place, and Left is raised.
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
            config = launch_config(processes, folder / "elastic", self.settings["max_restarts"])
            with Supervisor(folder, spec.grace) as supervisor:
                try:
                    elastic_launch(config, worker.work)(replace(spec, mailbox=folder))
                except (ChildFailedError, Left) as error:
                    failures = error.failures if isinstance(error, ChildFailedError) else {}
                    # Elastic's error knows less: an exit code.
                    raise first_failure(
                        mailbox.latest(folder, worker.FINAL),
                        {rank: failure.exitcode for rank, failure in failures.items()},
                        supervisor.hung,
                        spec,
                        supervisor.signal,
                    ) from None
            if supervisor.signal is not None:  # it came as the run ended; it ends the sweep
                raise stopped(supervisor.signal, spec.folder)


def launch_config(processes: int, logs: Path, max_restarts: int) -> LaunchConfig:
    """All settings of elastic: its defaults restart workers and trust the network."""
    settings: dict[str, Any] = {
        "min_nodes": 1,
        "max_nodes": 1,
        "nproc_per_node": processes,
        "run_id": uuid.uuid4().hex,
        "role": "worker",
        "rdzv_backend": "loopback",
        "rdzv_endpoint": LOOPBACK,
        "rdzv_configs": {"mailbox": str(logs.parent)},
        "max_restarts": max_restarts,
        "monitor_interval": 0.02,  # seconds; each run waits half of it on average
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


@contextmanager
def quiet() -> Iterator[None]:
    """Disable elastic's log, which repeats failures that are already in run.log."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
