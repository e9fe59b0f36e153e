"""Plans the sweep of a command as a study and begins it, and writes the report of any sweep."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninefold import study_record
from ninefold.config import conf_files, like
from ninefold.config.composition import Composition
from ninefold.config.hydra_parts import split
from ninefold.config.job import asked, check
from ninefold.errors import Failure, Refused
from ninefold.files import stamp, write_durably, write_json
from ninefold.launch import events
from ninefold.launch.ready import ready, start_importing
from ninefold.launch.run import Outcome
from ninefold.launch.run_folder import exclusive
from ninefold.launch.runs import Runs
from ninefold.places import typed_as
from ninefold.result import FILE, Result
from ninefold.secrets import redact, redacted
from ninefold.study import checks, plan, start, timing
from ninefold.study.runner import Launch, Study
from ninefold.study.screen import Screen
from ninefold.words import as_value


@dataclass(frozen=True)
class PlannedStudy:
    """A study that can be run. Nothing of it is written yet.

    folder: its own. plan: its cells and rounds.
    settings: the sections of a sweep. resumes: whether it goes on with what is in the folder.
    launcher: the chosen launcher of Hydra's.
    """

    folder: Path
    plan: plan.Plan
    settings: dict[str, Any]
    resumes: bool
    launcher: str

    @property
    def concurrent(self) -> bool:
        """Whether its runs are made at the same time, by another launcher than ours."""
        return self.launcher != "basic"


def planned(composition: Composition) -> PlannedStudy:
    """The study that a sweep is. Raises Refused if no cell can be run, Failure, Hydra's errors."""
    config = composition.config
    settings = checks.settings_of(config)
    resumed, settings["study"]["resume"] = settings["study"]["resume"], None
    # Without the .. that a path may have, as Hydra names the folders of runs. It may be named after
    # the time of its first use, so this comes before the configurations of the runs.
    folder = Path(os.path.abspath(config.hydra.sweep.dir))
    given = composition.parsed([*composition.params(), *composition.overrides()])
    jobs = conf_files.of_options(split(given), composition.choice)
    compose = plan.Composer(composition.context.config_loader, config)
    launcher = composition.choice("hydra/launcher") or "basic"
    if launcher == "basic":
        first = compose(jobs[0])
        with suppress(Exception):  # reported when it is the run's turn
            start_importing(check(asked(first, first.hydra)))  # torch, while the rest is composed
    cells = plan.Plan(jobs, compose, settings["study"])
    if launcher == "basic" and (failures := refused(cells, folder)):
        raise Refused(failures)
    if problems := checks.nothing_swept(config, given):
        raise Refused(problems)
    if settings["study"]["ask"] is None:
        turns = launcher == "basic" and not config.launch.inline and cells.compares_cells
        settings["study"]["ask"] = ["time", "score"] if turns else ["score"]
    return PlannedStudy(folder, cells, settings, resumed is not None, launcher)


@contextmanager
def begun(
    planned: PlannedStudy,
    composition: Composition,
    launch: Launch,
    screen: Screen,
    failed: Callable[[Outcome, Path], None],
    argv: Sequence[str],
    started: float,
) -> Iterator[Study]:
    """Begin or resume the study in its folder, which no other command may use meanwhile.

    launch, screen, failed: see Study and Timing. argv: the command's arguments. started: its
    time.time(). Raises Failure.
    """
    folder, settings = planned.folder, planned.settings
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder, 0, "study.resume", "folder of a study"):
        if planned.resumes:
            recording = start.resume(folder, planned.plan, settings, planned.launcher, started)
        else:
            name = composition.choice("experiments")
            recording = start.begin(
                folder, planned.plan, settings, name, planned.launcher, typed(argv), started
            )
        write_durably(folder / like.SWEEP, composition.as_yaml().encode())
        recording.trust = like.needs_trust(folder)
        asks_time = "time" in recording.asked
        times = timing.Timing(planned.plan, recording, screen, failed) if asks_time else None
        yield Study(planned.plan, recording, launch, times, planned.concurrent, screen)


def refused(planned: plan.Plan, folder: Path) -> list[Failure]:
    """Why no cell of a study in `folder` can be run here, each reason once; none if one can.

    A cell that cannot be run fails at its turn and the others are run, so this stops at the first
    that can.
    """
    found: dict[str, Failure] = {}
    for cell in planned.cells:
        try:
            ready(planned.job(cell, 0), folder / cell.folder)
        except Refused as refused:
            failures = refused.failures
        except Failure as failure:
            failures = (failure,)
        except Exception:
            return []  # reported when it is the run's turn
        else:
            return []
        found.update({str(failure): failure for failure in failures})
    return list(found.values())


def outcomes_since(folder: Path, began: float) -> list[Outcome]:
    """Outcomes of the runs that other processes finished since `began` (a time.time())."""
    ended = [(path.stat().st_mtime, path) for path in folder.rglob(FILE)]
    found = []
    for written, path in sorted(ended):
        if written >= began:
            code = 0
            with suppress(OSError, ValueError):
                code = Result.read(path.parent).exit_code
            found.append(Outcome(code))
    return found


def finish(folder: Path, study: str | None, runs: Runs, started: float, resumes: bool) -> bool:
    """Write the report of a sweep and print the answer; write sweep.json unless a study did.

    study: its name, if it has one. runs, started: of its command.
    resumes: whether it can be resumed; the command that makes it surer is then left out.
    Returns whether both holds: the answer is decided, and a command that trains with it is printed.
    """
    from ninefold import report  # here, because it imports SciPy

    if not (folder / study_record.FILE).exists():
        content = {
            "study": study,
            "question": start.question(study),
            "command": typed(runs.argv),
            "started": stamp(started),
            "wall_seconds": time.time() - started,
        }
        write_json(folder / study_record.FILE, redacted(content))
    said = report.write(folder, own=True, resumes=resumes)
    if not events.heard():
        print(said.text, flush=True)
    return said.answer.decided and said.answer.train is not None


def resume_command(study: Study) -> str:
    """The command that resumes a study, whose folder has the words of the last one."""
    folder = study.recording.folder
    with suppress(ValueError):
        folder = folder.relative_to(Path.cwd())
    words = [f"study.resume={as_value(str(folder))}", *["trust=true"] * study.recording.trust]
    return typed([*words, *["study.budget=null"] * study.cut_short])


def typed(argv: Sequence[str]) -> str:
    """The command train with these arguments, quoted for a shell and without secrets."""
    return shlex.join(map(redact, [*typed_as("train").split(), *argv]))
