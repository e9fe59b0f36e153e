"""The sweep of a command: a study in rounds, or what another sweeper of Hydra's makes of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hydra.core.utils import configure_log

from ninefold import plugins
from ninefold.config.composition import SWEEPER, Composition
from ninefold.errors import Refused
from ninefold.exits import interrupted
from ninefold.launch.run import announce, failure_of
from ninefold.launch.runs import Runs
from ninefold.result import FILE
from ninefold.streams import OutputClosed
from ninefold.study import checks, sweep
from ninefold.study.plan import Plan
from ninefold.study.runner import Launch
from ninefold.study.screen import Screen


class Sweep:
    """The sweep of one command.

    started: time.time() at the command's start. runs: its runs.
    study: the chosen option of `experiments`, if any.
    folder: its own, for the report; None until it has passed its checks.
    resume_command: how to resume a study that is not finished.
    """

    def __init__(self, composition: Composition, runs: Runs, started: float) -> None:
        self._composition, self._runs, self._started = composition, runs, started
        self.study = composition.choice("experiments")
        self.folder: Path | None = None
        self.resume_command: str | None = None

    def run(self) -> None:
        """Run it as a study, or have another sweeper of Hydra's run it. Raises Refused."""
        config, callbacks = self._composition.config, self._composition.context.callbacks
        if problems := checks.of_a_sweep(self._composition):
            raise Refused(problems)
        name = config.hydra.job.config_name
        callbacks.on_multirun_start(config=config, config_name=name)
        if self._composition.choice("hydra/sweeper") == SWEEPER:
            self._run_study()
        else:
            folder = Path(os.path.abspath(config.hydra.sweep.dir))
            try:
                plugins.sweep(self._composition, self._runs)
            finally:
                self._collect(folder)
                if self._runs.outcomes:  # else it was refused or stopped before a run
                    self.folder = folder
        callbacks.on_multirun_end(config=config, config_name=name)

    def _run_study(self) -> None:
        """Run it in rounds. Raises Refused if no cell of it can be run."""
        announce(self._composition.config.hydra.sweep.dir)
        planned, runs = sweep.planned(self._composition), self._runs
        several = len(planned.plan.cells) > 1
        lines = planned.concurrent or not several  # runs print their own
        screen = Screen(announces=lines)
        if planned.concurrent:
            launch = plugins.launch_of(self._composition, runs)
        else:
            launch = self._launch_here(planned.plan)
        begins = sweep.begun(
            planned, self._composition, launch, screen, runs.keep, runs.argv, self._started
        )
        with begins as study:
            runs.of_sweep, runs.quiet = True, several
            self.folder = planned.folder  # only now: a command that is refused writes no report
            try:
                study.run()
            finally:
                self.resume_command = None if study.finished else sweep.resume_command(study)
                self._collect(planned.folder)

    def _launch_here(self, plan: Plan) -> Launch:
        """Return the function with which a study starts its runs: here, one after another."""

        def launch(jobs: Sequence[Sequence[str]], number: int) -> None:
            for place, given in enumerate(jobs):
                config = plan.config(given, number + place)
                run = replace(self._composition, config=config)
                run.in_run_folder(partial(self._runs.run_composed, config, config.hydra))
                configure_log(config.hydra.hydra_logging, config.hydra.verbose)

        return launch

    def _collect(self, folder: Path) -> None:
        """Read the outcomes of runs that other processes made (submitit)."""
        if not self._runs.outcomes:
            self._runs.outcomes += sweep.outcomes_since(folder, self._started)

    def finish(self, code: int) -> int:
        """Write the report, if there were runs, and print one next step; returns the exit code."""
        resumes, trains = self.resume_command is not None, False
        if self.folder is not None and any(self.folder.rglob(FILE)):
            runs = self._runs
            try:
                trains = sweep.finish(self.folder, self.study, runs, self._started, resumes)
            except KeyboardInterrupt as interrupt:
                code = code or interrupted(interrupt, "", "", "").code
            except OutputClosed:
                raise
            except Exception as error:
                failure = failure_of(error, runs.argv)
                runs.tell([failure])
                code = code or failure.code
        if resumes and not (trains and code == 0):  # its budget ended it, and it is decided
            print(f"resume the study with: {self.resume_command}", flush=True)
        return code
