"""The sweep of a command, from the jobs that Hydra has made of it to its report."""

from __future__ import annotations

import logging
import os
import re
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.config_loader import ConfigLoader
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

from ninefold.config import rules
from ninefold.config.resolvers import file_name
from ninefold.config.spec import RunSpec
from ninefold.errors import Failure, Interrupted, Preempted
from ninefold.files import stamp, write_json
from ninefold.launch import Command, Outcome, Refused
from ninefold.launch import run as execution
from ninefold.launch.preflight import ready
from ninefold.launch.run_folder import exclusive
from ninefold.result import FILE, SWEEP, Result
from ninefold.secrets import redact, redacted
from ninefold.study import max_batch, plan
from ninefold.study import start as opening
from ninefold.study.runner import Study, quoted


def run(
    config: DictConfig,
    loader: ConfigLoader,
    launcher: Launcher,
    jobs: Sequence[Sequence[str]],
    command: Command,
) -> list[Any]:
    """Run `jobs` as a study, which is what Hydra's sweeper of train.py does with them.

    Raises Failure.
    """
    if problems := plan.problems(config):
        raise Refused(problems)
    settings: dict[str, Any] = {
        section: OmegaConf.to_container(config[section], resolve=True)
        for section in rules.OF_A_SWEEP
    }
    resumed, settings["study"]["resume"] = settings["study"]["resume"], None
    planned = plan.Plan(
        jobs, lambda overrides: loader.load_sweep_config(config, list(overrides)), settings["study"]
    )
    # Without the .. that a path may have, as Hydra names the folders of runs.
    folder = Path(os.path.abspath(config.hydra.sweep.dir))
    folder.mkdir(parents=True, exist_ok=True)
    # It says for each run what Hydra would, and more.
    logging.getLogger(BasicLauncher.__module__).setLevel(logging.WARNING)
    chosen = config.hydra.runtime.choices["hydra/launcher"]
    with exclusive(folder, 0, "study.resume", "folder of a study"):
        if resumed is None:
            found = opening.begin(
                folder,
                planned,
                settings,
                config.hydra.runtime.choices.get("experiments"),
                chosen,
                typed(command.argv),
                command.started,
            )
            OmegaConf.save(config, folder / "multirun.yaml")
        else:
            found = opening.take_up(folder, planned, settings, chosen, command.started)
        study = Study(
            planned, found, settings["study"], launcher.launch,
            lambda cell: largest_batch(planned, cell, folder), beside=chosen != "basic",
        )  # fmt: skip
        command.sweep = folder
        try:
            return study.run()
        finally:
            command.resume_command = None if study.finished else going_on(study, command.argv)


def largest_batch(planned: plan.Plan, cell: plan.Cell, study: Path) -> max_batch.Largest:
    """The largest batch with which `cell` runs here: see ninefold.study.max_batch.

    Whoever stops it stops the study: raises SystemExit.
    """
    folder = study / max_batch.FOLDER / file_name(f"{planned.cells.index(cell)}_{cell.name}")

    def attempt(size: int) -> int | None:
        job = ready(planned.job(cell, 0, *max_batch.ATTEMPT, f"batch_size={size}"))
        print(f"max_batch  {cell.name}  trying {size}", flush=True)
        run = folder / str(size)
        run.mkdir(parents=True, exist_ok=True)
        text, grace = execution.freeze(job, run), job.values["launch"]["grace"]
        execution.start(RunSpec("train", text, run, time.time(), grace=grace), job)
        result = Result.read(run)
        return sum(result.peak_memory_bytes) if set(result.devices) == {"cpu"} else None

    try:
        job = ready(planned.job(cell, 0))
        step = job.processes * job.values["accumulate"]
        return max_batch.search(
            attempt, job.values["batch_size"], job.training_examples(), step,
            max_batch.available_memory,
        )  # fmt: skip
    except (Interrupted, Preempted) as failure:
        raise Refused([failure]) from failure
    except Failure as failure:
        return max_batch.Largest(None, None, f"{max_batch.NO_SEARCH}{failure}")


def outcomes_since(folder: Path, began: float) -> list[Outcome]:
    """How the runs of a sweep ended that other processes have made since `began`."""
    made = [(path.stat().st_mtime, path) for path in folder.rglob(FILE)
            if max_batch.FOLDER not in path.relative_to(folder).parts]  # fmt: skip
    found = []
    for written, path in sorted(made):
        if written >= began:
            code = 0
            with suppress(OSError, ValueError):
                code = Result.read(path.parent).exit_code
            found.append(Outcome(code))
    return found


def finish(folder: Path, command: Command, runs: int) -> None:
    """Write the report of a sweep, and sweep.json unless its study did, and print the answer."""
    from ninefold import report as reporting  # here, because it imports SciPy

    if not (folder / SWEEP).exists():
        write_json(
            folder / SWEEP,
            redacted({
                "study": command.study_name,
                "command": typed(command.argv),
                "started": stamp(command.started),
                "wall_seconds": time.time() - command.started,
                "runs": runs,
            }),
        )  # fmt: skip
    print(reporting.write(folder))
    print(f"report {reporting.place(folder)}", flush=True)


def going_on(study: Study, argv: Sequence[str]) -> str:
    """The command that goes on with `study`."""
    replaced = ["study.resume", "hydra.sweep.dir", *["study.budget"] * study.cut_short]
    words = [word for word in argv if word.lstrip("+").partition("=")[0] not in replaced]
    if study.cut_short:
        words.append("study.budget=null")  # it is spent, and the study's configuration may have one
    folder = study.folder
    with suppress(ValueError):
        folder = folder.relative_to(Path.cwd())
    name = str(folder)
    plain = re.fullmatch(r"[\w./-]+", name)
    words.append(f"study.resume={name if plain else quoted(name)}")
    return typed(words)


def typed(argv: Sequence[str]) -> str:
    """The command train.py with these arguments, for a shell: what is redacted needs its quotes."""
    return shlex.join(map(redact, ["python", "train.py", *argv]))
