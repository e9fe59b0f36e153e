"""A command of train.py or evaluate.py, from its arguments to its exit code.

Nothing here imports torch before a job has passed every check that works without torch.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from ninefold import machine, ranks, signals
from ninefold.config import letters, overrides, resolvers
from ninefold.config.job import ROOT, Job, TrainJob, job_of
from ninefold.errors import Failure, Interrupted, NoReader, Preempted, left_by
from ninefold.launch import Outcome, Refused, concurrent
from ninefold.launch.run import (
    exit_process,
    failure_of,
    first_to_report,
    follow,
    require_environment,
    run,
    settled,
)
from ninefold.launch.run_folder import record
from ninefold.process import OWN_END, OutputClosed, hurry, interrupted, no_reader, open_streams
from ninefold.ranks import started_by
from ninefold.result import FILE
from ninefold.secrets import redact
from ninefold.study import dry, find
from ninefold.study import sweep as study

RESUME = "resume the study"  # what to do after a signal; the command is printed last


def main(name: str) -> NoReturn:
    """Run the command `name` (train or evaluate) and exit with its documented code."""
    sys.argv[1:] = letters.quoted(sys.argv[1:])
    command = Command(name, sys.argv[1:])
    open_streams()
    resolvers.register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and the error is one line here
    for variable in (concurrent.VARIABLE, ranks.INIT_METHOD, machine.CORES):
        os.environ.pop(variable, None)  # of a run that starts a command
    if started_by() != "torchrun":
        command.handle_signals()
    else:  # its agent handles signals to the ranks
        signals.by_default()
    try:
        code = command.execute()
        if started_by():
            from ninefold.launch import per_rank

            with suppress(Failure):  # it has been printed
                per_rank.dismiss(code)
        code = command.finish(code)
        sys.stdout.flush()
    except OutputClosed:
        code = no_reader().code
    except KeyboardInterrupt as interrupt:  # it came between the lines above
        code = interrupted(interrupt, "", "", "").code
    exit_process(code, command.patience)


class Command:
    """One command while it runs.

    argv: its arguments.
    started: time.time() at its start.
    outcomes: of its runs, those in other processes last.
    job: the job that Hydra's callback has checked, to be run next.
    sweep: folder of the sweep, once it belongs to this command: the report is written there.
    study_name: the chosen option of `experiments`, if any.
    resume_command: how to resume a study that is not finished.
    quiet: whether what a run prints goes to its log only: a study shows how its runs end.
    aside: a context manager, inside of which lines may be printed.
    patience: seconds that what the user's code has left in this process may take to end.
    """

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self.name, self.argv = name, list(argv)
        self.started = time.time()
        self.outcomes: list[Outcome] = []
        self.job: Job | None = None
        self.sweep: Path | None = None
        self.study_name: str | None = None
        self.resume_command: str | None = None
        self.quiet = False
        self.aside: Callable[[], AbstractContextManager[None]] = nullcontext
        self.patience = OWN_END
        self._told: set[str] = set()  # lines of failures of runs
        self._debug = bool(os.environ.get("HYDRA_FULL_ERROR"))
        self._process = os.getpid()
        self._signal: int | None = None  # the last one received
        self._waits_for_runs = False  # which save after a signal
        self._notified = 0  # runs in other processes that were sent a signal

    def execute(self) -> int:
        """Run the command and print its failures. Returns its exit code, before any report."""
        try:
            require_environment()
            if started_by():
                self._meet()
            if problems := overrides.of_arguments(self.argv, self.name, ROOT / "conf"):
                raise Refused(problems)
            try:
                self._hydra()
            finally:
                self._collect_concurrent()
            return self._code
        except KeyboardInterrupt as interrupt:
            signaled = "its runs were signaled to save and have ended"
            left = signaled if self._notified else "nothing runs now"
            do = "start again" if self.resume_command is None else RESUME
            stopped = interrupted(interrupt, "interrupted", left, do)
            if first_to_report(stopped):
                self._print([stopped])
            return stopped.code
        except Refused as refused:
            if first_to_report(refused.failures[0]):
                self._print(refused.failures)
            return refused.failures[0].code
        except OutputClosed:
            raise
        except Exception as error:
            failure = failure_of(error, self.argv)
            if first_to_report(failure):
                self._print([failure])
            return self._code or failure.code
        except BaseException as leaving:  # of the user's code, or a SystemExit of ours or Hydra's
            if (unasked := left_by(leaving)) is not None:
                self._print([unasked])
                return self._code or unasked.code
            if not isinstance(leaving, SystemExit):
                raise
            return leaving.code if isinstance(leaving.code, int) else 1

    def _hydra(self) -> None:
        """Have Hydra compose the configuration and call the task, once for each run."""

        def task(config: DictConfig) -> float | None:
            if self._process == os.getpid():
                return self.task(config)
            with self._in_another_process():
                return self._as_a_rank(config) if started_by() else self.task(config)

        task.__module__ = self.name  # after which Hydra names the job
        task.command = self  # type: ignore[attr-defined]  # for the callback and the sweeper
        conf = str(ROOT / "conf")
        hydra.main(version_base="1.3", config_path=conf, config_name=self.name)(task)()

    def task(self, config: DictConfig) -> float | None:
        """Hydra's task function: one run. Returns its best score.

        A failure is printed at once and gives None, so that the other runs of a sweep follow. (NaN
        would end an Optuna study: its plugin for Hydra 1.3 fails over it, see hydra#2237.)
        """
        started, settings = time.time(), HydraConfig.get()
        folder = Path(settings.runtime.output_dir)
        job, self.job = self.job, None
        try:
            self.require_undisturbed()
            job = job or job_of(config, settings)
        except Exception as error:
            self.require_undisturbed()
            failures = [failure_of(error, self.argv)]
            if self.name == "train":
                record(failures, settings.runtime.choices, config, folder, started)
            self.keep(Outcome(failures[0].code, tuple(failures)), folder)
            return None
        if isinstance(job, TrainJob) and (what := job.command_keys.get("find")) is not None:
            self._find(what, job, config, folder)
            return None
        if isinstance(job, TrainJob) and job.values["launch"].get("dry"):
            self._dry(job, folder)
            return None
        outcome = self.run(job, folder)
        return outcome.result.best_accuracy if outcome.result else None

    def _find(self, what: str, job: TrainJob, config: DictConfig, folder: Path) -> None:
        """Find a value of `job`, and print it with the command that trains with it."""
        try:
            lines, override = find.find(what, job, config, HydraConfig.get(), folder)
        except Exception as error:
            self.require_undisturbed()
            failure = failure_of(error, self.argv)
            self.keep(Outcome(failure.code, (failure,)), folder)
            return
        key = override.partition("=")[0]
        given = [word for word in self.argv if not word.startswith(("find", f"{key}=", "hydra."))]
        print("\n".join([*lines, f"train with it: {study.typed([*given, override])}"]), flush=True)

    def _dry(self, job: TrainJob, folder: Path) -> None:
        """Print what each process of `job` would hold and send."""
        try:
            print("\n".join(dry.lines(job, folder)), flush=True)
        except Exception as error:
            self.require_undisturbed()
            failure = failure_of(error, self.argv)
            self.keep(Outcome(failure.code, (failure,)), folder)

    @contextmanager
    def _in_another_process(self) -> Iterator[None]:
        """Set up signal handling in a process that another Hydra launcher started for a run.

        submitit puts a job back into the queue when it receives its signal, SIGUSR2; the run first
        saves, as after any other signal.
        """
        self._signal, self.outcomes = None, []
        signals.follow_parent()
        requeue, asked = signal.getsignal(signal.SIGUSR2), []

        def save(number: int, frame: FrameType | None) -> None:
            asked.append(number)
            os.kill(os.getpid(), signal.SIGUSR1)

        if callable(requeue):
            signal.signal(signal.SIGUSR2, save)
        self.handle_signals()
        try:
            with concurrent.registered():
                yield
        except SystemExit:  # it was stopped, which ends other launchers' sweeps
            if asked and callable(requeue):
                requeue(signal.SIGUSR2, None)
            if asked or "SUBMITIT_EXECUTOR" not in os.environ:
                raise

    def _as_a_rank(self, config: DictConfig) -> float | None:
        """Run a job of which each rank calls the task, as with several tasks of submitit."""
        from ninefold.launch import per_rank

        code = 0
        try:
            per_rank.meet(self.argv)
            if ranks.found(os.environ).rank == 0:
                try:
                    return self.task(config)
                finally:
                    per_rank.dismiss(self._code)
            code = follow()
        finally:
            with suppress(Failure):  # it has been printed
                per_rank.release_store(code or self._code)
        if code in (Preempted.code, Interrupted.code):
            raise SystemExit(code)
        return None

    def run(self, job: Job, folder: Path) -> Outcome:
        """Run `job` and print its failures and, unless quiet, its result.

        Raises SystemExit if a signal ended it.
        """
        if job.values["launch"]["inline"]:
            self.patience = job.values["launch"]["timeout"]
        outcome = run(
            job,
            folder,
            concurrent=self._process != os.getpid(),
            quiet=self.quiet,
            require_undisturbed=self.require_undisturbed,
        )
        if outcome.stopped and self.sweep is not None and self._process == os.getpid():
            for failure in outcome.failures:
                failure.do = RESUME  # which is printed at the end, with the command
        self.keep(outcome, folder)
        if outcome.stopped:
            raise SystemExit(outcome.code)  # it ends a sweep, not only one run of it
        return outcome

    def keep(self, outcome: Outcome, folder: Path) -> None:
        """Take note of how a run in `folder` ended, and print it."""
        # Without the failures: their tracebacks would keep the model of a failed inline run alive.
        self.outcomes.append(Outcome(outcome.code, result=outcome.result))
        if outcome.failures and first_to_report(outcome.failures[0]):
            told = self._told  # often all cells of a sweep fail alike
            self._print(
                [f.repeated(folder.name) if str(f) in told else f for f in outcome.failures]
            )
            told.update(map(str, outcome.failures))
        shown = self.quiet and self._process == os.getpid()  # by the study
        if (found := outcome.result) and not shown:
            # That of the command is shorter than the training where a run was resumed.
            trained, total = found.train_seconds or 0.0, found.total_seconds or 0.0
            of = f" of {total:.2f} s" if total > trained else ", in several commands"
            print(
                f"{found.score or 'accuracy'} {found.accuracy:.4f} "
                f"(best {found.best_accuracy:.4f})  trained {trained:.2f} s{of}  "
                f"folder {folder}",
                flush=True,
            )

    @property
    def _code(self) -> int:
        """The exit code of the first run that failed; 0 if none did."""
        return next((outcome.code for outcome in self.outcomes if outcome.code), 0)

    def _print(self, failures: Sequence[Failure]) -> None:
        """Print each failure as a line on stderr, with its traceback if HYDRA_FULL_ERROR is set."""
        with self.aside():
            for failure in failures:
                if isinstance(failure, NoReader):  # as others end whose output is closed
                    continue
                if self._debug and failure.__cause__ is not None:
                    lines = traceback.format_exception(failure.__cause__)
                    print(redact("".join(lines)), file=sys.stderr)
                print(failure, file=sys.stderr, flush=True)

    def _meet(self) -> None:
        """Meet the other ranks. On rank 0 it returns; the others do what that tells them, and exit.

        Raises Failure.
        """
        from ninefold.launch import per_rank

        try:
            per_rank.meet(self.argv)
        except Failure as failure:
            if first_to_report(failure):
                self._print([settled(failure)])
            exit_process(settled(failure).code)
        if ranks.found(os.environ).rank != 0:
            exit_process(follow())
        if self.name == "train":
            more = per_rank.of_restart(self.argv)
            sys.argv += more  # which Hydra reads
            self.argv += more

    # Signals

    def handle_signals(self) -> None:
        """Make signals raise KeyboardInterrupt, except while a launcher handles them."""
        signals.handle(self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Interrupt what this command does; a second signal only hurries how it ends.

        Whoever took the first one, such as the launcher of a run.
        """
        if signals.received() > 1:
            if not self._waits_for_runs or number == signal.SIGINT:
                hurry(number, signals.failure(number).code)
            return
        self._signal = number  # the exception alone could be lost in somebody's destructor
        announced = concurrent.announced()
        if announced is not None and announced.concurrent and self._process == os.getpid():
            self._waits_for_runs = True
            self._notified = announced.stop(number)
            self._waits_for_runs = False
        raise KeyboardInterrupt(number)

    def require_undisturbed(self) -> None:
        """Raise KeyboardInterrupt if this command received a signal."""
        if self._signal is not None:
            raise KeyboardInterrupt(self._signal)

    # Sweeps

    def _collect_concurrent(self) -> None:
        """Find the sweep of another sweeper or launcher of Hydra's, and read its runs' outcomes."""
        announced = concurrent.announced()
        other = None if announced is None or self.sweep is not None else announced.sweep
        folder = self.sweep or other
        if folder is not None and not self.outcomes:
            self.outcomes += study.outcomes_since(folder, self.started)
        if other is not None and self.outcomes:  # else it may be refused or stopped before a run
            assert announced is not None
            self.sweep, self.study_name = other, announced.study_name

    def finish(self, code: int) -> int:
        """Write the report of the sweep if there was one; returns the command's exit code."""
        if self.sweep is not None and any(self.sweep.rglob(FILE)):
            try:
                study.finish(self.sweep, self, len(self.outcomes))
            except KeyboardInterrupt:
                code = code or Interrupted.code
            except OutputClosed:
                raise
            except Exception as error:
                failure = failure_of(error, self.argv)
                self._print([failure])
                code = code or failure.code
        if self.resume_command is not None:
            print(f"resume the study with: {self.resume_command}", flush=True)
        return code
