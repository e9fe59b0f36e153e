"""Begins a study in a new folder, or resumes one if plan, code and machine are the same."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ninefold import study_record
from ninefold.config.fingerprint import code
from ninefold.errors import CheckpointError, ConfigError, Failure
from ninefold.files import stamp
from ninefold.machine import cores, cpu, gpu_models, installed
from ninefold.places import EXPERIMENTS
from ninefold.study.plan import Plan
from ninefold.study.record import StudyFolder
from ninefold.types import spelled
from ninefold.words import for_shell

SHOWN = 3  # differences that an error names


def occupied(folder: Path, do: str) -> list[Failure]:
    """The failure of a new sweep in a folder that holds one already."""
    if not (folder / study_record.FILE).exists():
        return []
    wrong, allowed = "a sweep has been run into it", "each has a folder of its own"
    return [ConfigError("hydra.sweep.dir", folder, wrong, allowed, do)]


def begin(
    folder: Path,
    plan: Plan,
    settings: dict[str, Any],
    study: str | None,
    launcher: str,
    command: str,
    began: float,
) -> StudyFolder:
    """The recording of a new study. Raises ConfigError if `folder` holds one."""
    resumes = for_shell("study.resume", folder)
    for failure in occupied(folder, f"choose another, or resume it with {resumes}"):
        raise failure
    return StudyFolder(
        folder=folder,
        study=study,
        question=question(study),
        command=command,
        started=stamp(began),
        settings=settings,
        swept=plan.swept,
        made_with=made_with(plan.targets(), launcher),
        planned_cells=[dict(cell.keys) for cell in plan.cells],
        planned_rounds=len(plan.seeds),
        began=began,
    )


def resume(
    folder: Path, plan: Plan, settings: dict[str, Any], launcher: str, began: float
) -> StudyFolder:
    """The recording of the study in `folder`. Raises ConfigError if it is not this one."""
    recording = StudyFolder.open(folder)
    new = "or start a new study"
    if not recording.planned_cells or not recording.made_with:
        old, do = "an earlier version of ninefold began it", f"resume it with that version, {new}"
        raise _refusal(folder, old, "a study of this version is allowed", do)
    if wrong := _changes_of_plan(recording, plan) or _changes_of_jobs(recording, plan):
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        changed = f"{', '.join(wrong[:SHOWN])}{more} cannot change in a study"
        do = f"repeat the command that began it, {new}"
        raise _refusal(folder, changed, "its runs are compared", do)
    now = made_with(plan.targets(), launcher)
    if since := changes_of(recording.made_with, now):
        why = "figures of before and after are not comparable"
        raise _refusal(folder, f"{', '.join(since)} changed since", why, f"put it back, {new}")
    recording.settings, recording.began = settings, began
    recording.planned_rounds = len(plan.seeds)
    return recording


def _refusal(folder: Path, wrong: str, allowed: str, do: str) -> ConfigError:
    return ConfigError("study.resume", folder, wrong, allowed, do)


def question(study: str | None, folder: Path = EXPERIMENTS) -> str | None:
    """The question in the header of a study's file, None without one: `# Question: ...`."""
    try:
        text = (folder / f"{study}.yaml").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    found = re.search(r"^# Question: *(.+)$", text, re.MULTILINE)
    return found[1] if found else None


def _changes_of_plan(recording: StudyFolder, plan: Plan) -> list[str]:
    """Changes of the cells, and of the seeds as far as they were run."""
    found = [
        f"{key}={','.join(plan.swept.get(key, ['one value']))} "
        f"(was {','.join(recording.swept.get(key, ['one value']))})"
        for key in {**plan.swept, **recording.swept}
        if plan.swept.get(key) != recording.swept.get(key)
    ]
    seeds = dict(enumerate(plan.seeds))
    return found + [
        f"seed={spelled(seeds[entry.round])} (was {spelled(entry.seed)})"
        for entry in recording.rounds
        if entry.seed != seeds.get(entry.round, entry.seed)
    ]


def _changes_of_jobs(recording: StudyFolder, plan: Plan) -> list[str]:
    """Changes of the first planned job that differs from the frozen job of its run."""
    made = [
        (name, cell, entry.round)
        for entry in recording.rounds
        if entry.round < len(plan.seeds)  # it is planned still
        for name, cell in zip(entry.runs, plan.order(entry.round, entry.shuffled), strict=False)
    ]
    cells = {cell.folder: cell for cell in plan.cells}
    timed = [Path(name) for entry in recording.timing for name in entry.runs]
    first = {path.name: path for path in reversed(timed) if path.name in cells}
    made += [(str(path), cells[name], 0) for name, path in first.items()]
    for name, cell, number in made:
        run = recording.folder / name
        if (run / "config.yaml").exists():  # else the study was interrupted before the run began
            try:
                wrong = plan.job(cell, number).differences(run)
            except CheckpointError as failure:
                bad = f"the config.yaml of {name} cannot be used"
                do = f"move {name} away: it is then run again from scratch"
                raise _refusal(recording.folder, bad, failure.cause, do) from failure
            if wrong:
                return wrong
    return []


def made_with(targets: Iterable[str], launcher: str) -> dict[str, Any]:
    """What all runs of a study have in common; the launcher, as concurrent runs take longer."""
    return {"code": code(targets), "machine": machine(), "launcher": launcher}


def changes_of(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Changes of code, launcher and machine."""
    found = ["code"] if before["code"] != now["code"] else []
    if (was := before["launcher"]) != now["launcher"]:
        found.append(f"hydra/launcher={now['launcher']} (was {was})")
    return found + [
        f"{key}={spelled(value)} (was {spelled(before['machine'].get(key))})"
        for key, value in now["machine"].items()
        if value != before["machine"].get(key)
    ]


def machine() -> dict[str, Any]:
    """Versions, CPU and GPUs, as far as they are known without importing torch."""
    return {
        "python": platform.python_version(),
        "torch": installed("torch"),
        "torchvision": installed("torchvision"),
        "cpu": cpu(),
        "cores": cores(),
        "gpus": gpu_models(),
        "visible": _visible_gpus(),
    }


def _visible_gpus() -> int | None:
    """How many GPUs a run may use; None: all. Which of them, a scheduler chooses each time."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    return sum(each.strip() not in ("", "-1") for each in visible.split(","))
