"""Runs as steps of a Slurm allocation: the command stays where it is, srun starts the processes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ninefold.config.spec import RunSpec
from ninefold.errors import KILLED, KINDS, ConfigError, Failure, PeerError, Preempted, ResourceError
from ninefold.files import opener
from ninefold.launch import Launcher, mailbox
from ninefold.launch.run_folder import stopped
from ninefold.process import importable, safe_path
from ninefold.ranks import slurm
from ninefold.signals import failure as ending
from ninefold.signals import follow_parent, handled, later

TO_END = 10.0  # seconds that srun has to end its tasks
LOG = "srun.log"  # in the run folder: what srun and the processes write to stderr
# srun takes its defaults from these, which were meant for the whole allocation or its shell. With
# a number of CPUs for each task it would also give a step of fewer tasks fewer CPUs.
OF_THE_ALLOCATION = (
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "SLURM_CPUS_PER_GPU",
    "SLURM_TRES_PER_TASK",
    "SLURM_EXACT",
    "SLURM_DISTRIBUTION",
    "SLURM_PTY_PORT",
)

Take = Callable[[subprocess.Popen[bytes]], None]


class Srun(Launcher):
    """Launcher for processes on the nodes of the allocation that the command runs in."""

    @staticmethod
    def applies(settings: Mapping[str, Any], in_allocation: bool) -> bool:
        return in_allocation

    def run(self, spec: RunSpec, processes: int) -> None:
        """Run `spec` in a step of `processes` tasks and wait for them.

        Raises the Failure of the task that failed first; Preempted or Interrupted if this process
        received a signal. ConfigError if there is no program srun.
        """
        if shutil.which("srun") is None:
            raise ConfigError(
                "launch.engine",
                "srun",
                "there is no program srun; it starts the processes of a run in an allocation of "
                "Slurm; add the folder of Slurm's commands to PATH",
            )
        allocation = slurm.allocation(os.environ)
        assert allocation is not None
        folder = Path(tempfile.mkdtemp(prefix=".step-", dir=spec.folder))  # all hosts see it
        try:
            (folder / mailbox.ORDER).write_text(json.dumps(spec.plain()))
            command = [
                *("srun", f"--ntasks={processes}", f"--nodes={min(processes, allocation.nodes)}"),
                # All runs have all CPUs of their nodes: without --exact, and not bound to some.
                *("--cpu-bind=none", "--kill-on-bad-exit=0", "--export=ALL", "--input=none"),
                *(sys.executable, "-m", "ninefold.launch.step", str(folder)),
            ]
            code, number = waited_for(command, spec.folder / LOG, spec.grace)
            if number is not None and code == 0:  # it came as the run ended; it ends the sweep
                raise stopped(number, spec.folder)
            if code != 0:
                raise first_failure(folder, code, number, spec)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def waited_for(command: list[str], log: Path, grace: float) -> tuple[int, int | None]:
    """Run srun; returns its exit code and the first signal that this process received, if any.

    It is handed on as SIGUSR1, which srun sends to each task. srun ends the tasks `grace` seconds
    later, or at once after a second SIGINT.
    """
    parent = os.getpid()
    with importable(), safe_path():
        env = {key: text for key, text in os.environ.items() if key not in OF_THE_ALLOCATION}
    with open(log, "ab", opener=opener) as errors, handed_on(grace) as (take, received):
        process = subprocess.Popen(
            command,
            env=env,
            stderr=errors,
            start_new_session=True,  # a Ctrl-C in a terminal comes to this process alone
            preexec_fn=lambda: follow_parent(parent, signal.SIGTERM),
        )
        take(process)
        code = process.wait()
    if log.stat().st_size == 0:
        log.unlink()
    return code, received()


@contextmanager
def handed_on(grace: float) -> Iterator[tuple[Take, Callable[[], int | None]]]:
    """Hand on signals to a process; yields what takes it, and what returns the first signal."""
    processes: list[subprocess.Popen[bytes]] = []
    signals: list[int] = []
    order = itertools.count()

    def end() -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                process.terminate()  # srun then ends its tasks
                later(TO_END, process.kill)

    def receive(number: int, first: bool) -> None:
        signals.append(number)
        if next(order) == 0:  # a second one may have come meanwhile
            for process in processes:
                process.send_signal(signal.SIGUSR1)
            later(grace, end)
        elif number == signal.SIGINT:
            end()

    def take(process: subprocess.Popen[bytes]) -> None:
        processes.append(process)
        if signals:
            process.send_signal(signal.SIGUSR1)

    with handled(receive):
        yield take, lambda: signals[0] if signals else None


def first_failure(folder: Path, code: int, number: int | None, spec: RunSpec) -> Failure:
    """The failure to show: the earliest cause, else the signal, else what srun's code says."""
    found = mailbox.read(folder)
    causes = [report for report in found if report.kind != PeerError.__name__]
    if causes and number is not None and isinstance(causes[0].failure, Preempted):
        return ending(number)("signal", signal.Signals(number).name, *causes[0].parts[2:])
    if causes:
        return causes[0].failure
    if number is not None:
        return stopped(number, spec.folder)
    if code == 128 + signal.SIGKILL:  # of which the peers only miss one
        return ResourceError(
            "srun",
            code,
            f"{KILLED}; most often the kernel, or Slurm, was short of memory; see "
            f"{spec.folder / LOG}, then resume",
        )
    if found:
        return found[0].failure
    kinds = {kind.code: kind for kind in KINDS.values() if kind.code != Failure.code}
    return kinds.get(code, Failure)(
        "srun", code, "the step ended with this code", "no report was left", f"see {spec.folder}"
    )
