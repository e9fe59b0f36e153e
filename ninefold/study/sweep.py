"""Runs the sweep of a command as a study, and writes the report of any sweep."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.utils import configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from ninefold.config import rules
from ninefold.config.job import TrainJob
from ninefold.errors import Failure
from ninefold.files import stamp, write_json, write_text
from ninefold.launch import Command, Outcome, Refused
from ninefold.launch.run import check, problems, start_importing
from ninefold.launch.run_folder import exclusive
from ninefold.result import FILE, SWEEP, Result
from ninefold.secrets import redact, redacted
from ninefold.study import max_batch, one_run, plan, start, timing
from ninefold.study.compose import Composer
from ninefold.study.runner import Launch, Study, quoted
from ninefold.study.screen import Announcements, Lines, Screen


def run(
    config: DictConfig,
    context: HydraContext,
    task: TaskFunction,
    launcher: Launcher,
    jobs: Sequence[Sequence[str]],
    command: Command,
) -> None:
    """Run `jobs` as a study. Raises Failure, Refused and what Hydra raises.

    config: of the sweep. context, task, launcher: as Hydra gives them to a sweeper. jobs: overrides
    of each run.
    """
    if problems := plan.problems(config) or plan.turn_problems(config):
        raise Refused(problems)
    settings: dict[str, Any] = {
        section: OmegaConf.to_container(config[section], resolve=True)
        for section in rules.OF_A_SWEEP
    }
    resumed, settings["study"]["resume"] = settings["study"]["resume"], None
    # Without the .. that a path may have, as Hydra names the folders of runs. It may be named after
    # the time of its first use, so this comes before the configurations of the runs.
    folder = Path(os.path.abspath(config.hydra.sweep.dir))
    compose = Composer(context.config_loader, config)
    chosen = config.hydra.runtime.choices["hydra/launcher"]
    concurrent = chosen != "basic"
    if not concurrent:
        look_ahead(compose(jobs[0]))
    planned = plan.Plan(jobs, compose, settings["study"])
    if not concurrent and (failures := refused(planned, folder)):
        raise Refused(failures)
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder, 0, "study.resume", "folder of a study"):
        if resumed is None:
            name = config.hydra.runtime.choices.get("experiments")
            recording = start.begin(
                folder, planned, settings, name, chosen, typed(command.argv), command.started
            )
            write_text(folder / "multirun.yaml", OmegaConf.to_yaml(config))
        else:
            recording = start.resume(folder, planned, settings, chosen, command.started)
        screen = screen_for(len(planned.cells), concurrent)
        command.quiet, command.aside = len(planned.cells) > 1, screen.aside
        asked = settings["study"]["ask"] or []
        turns = timing.Timing(planned, recording, settings["study"], screen, command.keep)
        study = Study(
            planned,
            recording,
            settings["study"],
            _handed_to(launcher) if concurrent else _run_here(planned, context, task, config),
            lambda cell: max_batch.of_cell(planned, cell, folder, screen, command.quiet),
            turns if "time" in asked else None,
            concurrent,
            screen,
        )
        command.sweep = folder  # only now: a command that is refused writes no report
        try:
            study.run()
        finally:
            command.resume_command = None if study.finished else resume_command(study, command.argv)


def screen_for(cells: int, concurrent: bool) -> Screen:
    """The screen of a study of so many cells. concurrent: its runs print lines themselves."""
    if cells == 1 or concurrent:
        return Announcements()
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return Lines()
    from ninefold.study.table import Table  # here, because it imports rich

    return Table()


def look_ahead(config: DictConfig) -> None:
    """Start importing torch while the sweep is composed, unless its first run will be refused."""
    with suppress(Exception):  # reported when it is the run's turn
        job = TrainJob(config, config.hydra)
        if not problems(job):
            start_importing(job)


def refused(planned: plan.Plan, folder: Path) -> list[Failure]:
    """Why no cell of a study in `folder` can be run here, each reason once; none if one can.

    A cell that cannot be run fails at its turn and the others are run, so this stops at the first
    that can.
    """
    found: dict[str, Failure] = {}
    for cell in planned.cells:
        try:
            failures = check(planned.job(cell, 0), folder / cell.folder)
        except Exception:
            return []  # reported when it is the run's turn
        if not failures:
            return []
        found.update({str(failure): failure for failure in failures})
    return list(found.values())


def _run_here(
    planned: plan.Plan, context: HydraContext, task: TaskFunction, sweep: DictConfig
) -> Launch:
    """Makes runs one after another in this process."""

    def launch(jobs: Sequence[Sequence[str]], number: int) -> None:
        setup_globals()  # resolvers of Hydra's
        for place, overrides in enumerate(jobs):
            one_run.run(planned.config(overrides, number + place), context, task)
            configure_log(sweep.hydra.hydra_logging, sweep.hydra.verbose)

    return launch


def _handed_to(launcher: Launcher) -> Launch:
    """Makes runs by another launcher of Hydra's, such as joblib's."""

    def launch(jobs: Sequence[Sequence[str]], number: int) -> None:
        for done in launcher.launch(jobs, number):
            _ = done.return_value

    return launch


def for_accuracy(hydra: DictConfig) -> None:
    """Have an optimizing sweeper maximize the best score, which a run returns.

    Optuna's minimizes, and stops at a failure. Values on the command line have priority.
    """
    given = {plan.key_of(str(text)) for text in hydra.overrides.hydra}
    for key, value in {"direction": "maximize", "max_failure_rate": 1.0}.items():
        if key in hydra.sweeper and f"hydra.sweeper.{key}" not in given:
            with read_write(hydra), open_dict(hydra):
                hydra.sweeper[key] = value


def outcomes_since(folder: Path, began: float) -> list[Outcome]:
    """Outcomes of the runs that other processes finished since `began` (a time.time())."""
    ended = [
        (path.stat().st_mtime, path)
        for path in folder.rglob(FILE)
        if max_batch.FOLDER not in path.relative_to(folder).parts
    ]
    found = []
    for written, path in sorted(ended):
        if written >= began:
            code = 0
            with suppress(OSError, ValueError):
                code = Result.read(path.parent).exit_code
            found.append(Outcome(code))
    return found


def finish(folder: Path, command: Command, runs: int) -> None:
    """Write the report of a sweep and print the answer; write sweep.json unless a study did.

    runs: how many the sweep had.
    """
    from ninefold import report  # here, because it imports SciPy

    if not (folder / SWEEP).exists():
        content = {
            "study": command.study_name,
            "question": start.question(command.study_name),
            "command": typed(command.argv),
            "started": stamp(command.started),
            "wall_seconds": time.time() - command.started,
            "runs": runs,
        }
        write_json(folder / SWEEP, redacted(content))
    print(report.write(folder))
    print(f"report {report.place(folder)}", flush=True)


def resume_command(study: Study, argv: Sequence[str]) -> str:
    """The command that resumes a study that was started with `argv`."""
    replaced = ["study.resume", "hydra.sweep.dir", *["study.budget"] * study.cut_short]
    words = [word for word in argv if plan.key_of(word) not in replaced]
    if study.cut_short:
        words.append("study.budget=null")  # the study's configuration may have a budget, too
    folder = study.folder
    with suppress(ValueError):
        folder = folder.relative_to(Path.cwd())
    name = str(folder)
    plain = re.fullmatch(r"[\w./-]+", name)
    words.append(f"study.resume={name if plain else quoted(name)}")
    return typed(words)


def typed(argv: Sequence[str]) -> str:
    """The command train.py with these arguments, quoted for a shell and without secrets."""
    return shlex.join(map(redact, ["python", "train.py", *argv]))
