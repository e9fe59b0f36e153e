"""Opens the folder of a study: a new one, or one to go on with, which must be of the same study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ninefold.config.rules import spelled
from ninefold.errors import CheckpointError, ConfigError, Failure
from ninefold.files import stamp
from ninefold.result import SWEEP
from ninefold.study import fingerprint
from ninefold.study.plan import Plan
from ninefold.study.record import Sitting

SHOWN = 3  # of the differences that a command is told


def taken(folder: Path, do: str) -> list[Failure]:
    """What is wrong with `folder` for a new sweep where there is one in it, and what to `do`."""
    if not (folder / SWEEP).exists():
        return []
    return [ConfigError(
        "hydra.sweep.dir", folder, "a sweep has been run into it", "each has a folder of its own",
        do,
    )]  # fmt: skip


def begin(
    folder: Path, plan: Plan, settings: dict[str, Any], study: str | None, launcher: str,
    command: str, began: float,
) -> Sitting:  # fmt: skip
    """A new sitting in `folder`. Raises ConfigError if there is one in it."""
    for failure in taken(folder, f"choose another, or go on with study.resume={folder}"):
        raise failure
    return Sitting(
        folder=folder, study=study, command=command, started=stamp(began), settings=settings,
        swept=plan.swept, parts=[_part(launcher)], planned_rounds=len(plan.seeds),
        looks=plan.looks, began=began,
    )  # fmt: skip


def take_up(
    folder: Path, plan: Plan, settings: dict[str, Any], launcher: str, began: float
) -> Sitting:
    """The sitting in `folder`, to go on with. Raises ConfigError if it is of another study."""
    sitting = Sitting.read(folder)
    if wrong := _other_plan(sitting, plan, settings) or _other_jobs(sitting, plan):
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise ConfigError(
            "study.resume", folder, f"{', '.join(wrong[:SHOWN])}{more} cannot change in a study",
            "its runs are compared", "repeat the command that began it, or start a new study",
        )  # fmt: skip
    now = _part(launcher)
    if wrong := _other_part(sitting.parts[-1], now):
        if not settings["study"]["mixed"]:
            raise ConfigError(
                "study.resume", folder, f"{', '.join(wrong)} changed since",
                "figures of before and after are not comparable",
                "put it back, or set study.mixed=true to have what is new reported apart",
            )  # fmt: skip
        print(f"{', '.join(wrong)} changed since: what is new is reported apart", flush=True)
        sitting.parts.append(now)
        sitting.max_batch = None  # of another machine, or other code
    # Whoever adds rounds to those that were planned has seen the answer, and looks once more.
    added = len(plan.seeds) > sitting.planned_rounds
    sitting.looks = sitting.looks + plan.looks if added else max(sitting.looks, plan.looks)
    sitting.settings, sitting.planned_rounds, sitting.began = settings, len(plan.seeds), began
    return sitting


def _part(launcher: str) -> dict[str, Any]:
    return {
        "code": fingerprint.code(), "machine": fingerprint.machine(),
        "launcher": launcher,  # of runs beside each other the times are others
    }  # fmt: skip


def _other_plan(sitting: Sitting, plan: Plan, settings: dict[str, Any]) -> list[str]:
    """What is planned otherwise: the cells, the seeds as far as they were run, their order."""
    found = [
        f"{key}={','.join(plan.swept.get(key, ['one value']))} "
        f"(was {','.join(sitting.swept.get(key, ['one value']))})"
        for key in {**plan.swept, **sitting.swept}
        if plan.swept.get(key) != sitting.swept.get(key)
    ]
    before, now = sitting.settings["study"]["seed"], settings["study"]["seed"]
    if before != now:
        found.append(f"study.seed={now} (was {before})")
    seeds = dict(enumerate(plan.seeds))
    return found + [
        f"seed={spelled(seeds[entry.round])} (was {spelled(entry.seed)})"
        for entry in sitting.rounds
        if entry.attempt == 0 and entry.seed != seeds.get(entry.round, entry.seed)
    ]


def _other_jobs(sitting: Sitting, plan: Plan) -> list[str]:
    """What the frozen jobs of the runs that there are have otherwise than those planned."""
    for entry in sitting.rounds:
        if entry.round >= len(plan.seeds):
            continue  # it was asked for then, and is not now
        for name, cell in zip(entry.runs, plan.order(entry.round, entry.shuffled), strict=False):
            run = sitting.folder / name
            if not (run / "config.yaml").exists():
                continue  # it was never begun
            try:
                wrong = plan.job(cell, entry.round).differences(run)
            except CheckpointError as failure:
                raise ConfigError(
                    "study.resume", sitting.folder, f"the config.yaml of {name} cannot be used",
                    str(failure), f"move {name} away: it is then run anew",
                ) from failure  # fmt: skip
            if wrong:
                return wrong
    return []


def _other_part(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What of code, launcher and machine is not what it was."""
    found = ["code"] if before["code"] != now["code"] else []
    if (was := before.get("launcher", "basic")) != now["launcher"]:
        found.append(f"hydra/launcher={now['launcher']} (was {was})")
    return found + [
        f"{key}={spelled(value)} (was {spelled(before['machine'].get(key))})"
        for key, value in now["machine"].items()
        if value != before["machine"].get(key)
    ]
