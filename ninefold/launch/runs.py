"""The runs of a command: makes them, prints how each ended, and stops them after a signal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.conf import HydraConf
from omegaconf import DictConfig

from ninefold import ranks, signals
from ninefold.config.job import Settled, asked
from ninefold.errors import Failure
from ninefold.exits import OWN_END, exit_soon, print_failures
from ninefold.launch import events
from ninefold.launch.ready import ready
from ninefold.launch.run import Outcome, outcome_of, run_job
from ninefold.launch.run_folder import record
from ninefold.progress import bars_hidden

RESUME = "resume the study"  # what to do after a signal; the command is printed last


class Runs:
    """The runs of one command.

    argv: the command's arguments.
    outcomes: how the runs ended, without their failures.
    of_sweep: whether they are runs of a sweep, which is resumed as a whole.
    quiet: whether what a run prints goes to its log only: a study shows how its runs end.
    patience: seconds that what the user's code has left in this process may take to end.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = list(argv)
        self.outcomes: list[Outcome] = []
        self.of_sweep = self.quiet = False
        self.patience = OWN_END
        self._told: set[str] = set()  # lines of failures of runs
        self._debug = bool(os.environ.get("HYDRA_FULL_ERROR"))
        self._process = os.getpid()
        self._signal: int | None = None  # the last one received

    @property
    def code(self) -> int:
        """The exit code of the first run that failed; 0 if none did."""
        return next((outcome.code for outcome in self.outcomes if outcome.code), 0)

    @property
    def elsewhere(self) -> bool:
        """Whether this is a copy, in a process that another launcher has started for a run."""
        return self._process != os.getpid()

    def run_composed(self, config: DictConfig, hydra: HydraConf) -> Outcome:
        """Run a composed configuration. hydra: Hydra's own settings for it.

        Raises SystemExit if a signal ended it.
        """
        started, folder = time.time(), Path(hydra.runtime.output_dir)
        choices: Mapping[Any, Any] = hydra.runtime.choices
        values: Mapping[Any, Any] = config
        overrides = list[str]()
        try:
            self.require_undisturbed()
            job = asked(config, hydra)
            choices, values, overrides = job.choices, job.resolved, job.variant
            settled = ready(job, folder)
        except Exception as error:
            self.require_undisturbed()  # the error may be a consequence of the signal
            outcome = outcome_of(error, self.argv)
            if "ckpt" not in config:
                record(outcome.failures, choices, values, overrides, folder, started)
            return self._ended(outcome, folder)
        outcome = self.run_settled(settled, folder, started)
        if outcome.code and (number := signals.received()):  # it came to a run that failed
            raise SystemExit(signals.failure(number).code)
        return outcome

    def run_settled(self, job: Settled, folder: Path, started: float | None = None) -> Outcome:
        """Run `job` and print its failures and, unless quiet, its result.

        started: time.time() when it began to be made ready; None: now. Raises SystemExit if a
        signal ended it.
        """
        settings = job.resolved["launch"]
        if settings["inline"]:
            self.patience = settings["timeout"]
        outcome = run_job(
            job,
            folder,
            time.time() if started is None else started,
            concurrent=self.elsewhere,
            quiet=self.quiet,
            require_undisturbed=self.require_undisturbed,
        )
        return self._ended(outcome, folder, job.resume is not None)

    def _ended(self, outcome: Outcome, folder: Path, resumed: bool = False) -> Outcome:
        """Take note of how a run ended. Raises SystemExit if a signal ended it."""
        if outcome.stopped and self.of_sweep and not self.elsewhere:
            for failure in outcome.failures:
                failure.do = RESUME  # which is printed at the end, with the command
        self.keep(outcome, folder, resumed)
        if outcome.stopped:
            raise SystemExit(outcome.code)  # it ends a sweep, not only one run of it
        return outcome

    def keep(self, outcome: Outcome, folder: Path, resumed: bool = False) -> None:
        """Take note of how a run in `folder` ended, and print it."""
        # Without the failures: their tracebacks would keep the model of a failed inline run alive.
        self.outcomes.append(Outcome(outcome.code, result=outcome.result))
        if outcome.failures:
            told = self._told  # often all cells of a sweep fail alike
            self.tell([f.repeated(folder.name) if str(f) in told else f for f in outcome.failures])
            told.update(map(str, outcome.failures))
        shown = self.quiet and not self.elsewhere  # by the study
        if (found := outcome.result) and not shown:
            trained, total = found.train_seconds or 0.0, found.total_seconds or 0.0
            # The total is that of the command, after whatever others have trained.
            of = ", in several commands" if resumed else f" of {total:.2f} s"
            score = found.scoring
            print(
                f"{score.name} {score.text(found.score or 0.0)} "
                f"(best {score.text(found.best_score or 0.0)}"
                f"{', in validation' * (found.selection == 'val')})  trained {trained:.2f} s{of}  "
                f"folder {folder}",
                flush=True,
            )

    def tell(self, failures: Sequence[Failure]) -> None:
        """Print each failure as a line on stderr, with its traceback if HYDRA_FULL_ERROR is set.

        The process that has started the command, if it listens, gets them as they are.
        """
        ranks.tell_agent(failures[0])
        events.tell_failures(failures)
        with bars_hidden():
            print_failures(failures, self._debug)

    # Signals

    def handle_signals(self) -> None:
        """Make signals raise KeyboardInterrupt, except while a launcher handles them."""
        signals.handle(self._receive)

    def require_undisturbed(self) -> None:
        """Raise KeyboardInterrupt if this command received a signal."""
        if self._signal is not None:
            raise KeyboardInterrupt(self._signal)

    def _receive(self, number: int, first: bool) -> None:
        """Interrupt what this command does; a second signal only hurries how it ends.

        Whoever took the first one, such as the launcher of a run.
        """
        if not first:
            exit_soon(number, signals.failure(number).code)
            return
        self._signal = number  # the exception alone could be lost in somebody's destructor
        raise KeyboardInterrupt(number)

    @contextmanager
    def in_another_process(self) -> Iterator[None]:
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
            yield
        except SystemExit:  # it was stopped, which ends other launchers' sweeps
            if asked and callable(requeue):
                requeue(signal.SIGUSR2, None)
            if asked or "SUBMITIT_EXECUTOR" not in os.environ:
                raise
