"""Compares the times of two recordings of a study, for a check that fails if cells got slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninefold.errors import ConfigError, Failure, Slower
from ninefold.report.data.cell import Cell
from ninefold.report.data.cells import Group, largest_first
from ninefold.report.data.cells import groups as sorted_groups
from ninefold.report.data.environment import values
from ninefold.report.data.overlay import settings_of
from ninefold.report.data.recording import Recording, find_recording
from ninefold.report.data.runs import Run
from ninefold.report.numbers import listed, times
from ninefold.report.stats.measures import SECONDS
from ninefold.report.stats.recordings import Change, changes

# Entries of environment.json that may change times though the code is the same.
MACHINE = ("cpu", "cores", "driver", "variables", "power_limits")
VERSIONS = ("python", "torch", "cuda", "torchvision", "numpy")

Seconds = Mapping[Cell, Mapping[int, float]]  # per epoch, by cell and seed or round


@dataclass(frozen=True)
class GroupChanges:
    """The change of each cell of a group, with the times before and now that it is of."""

    title: str
    changes: list[Change]
    before: Seconds
    now: Seconds


@dataclass(frozen=True)
class Gate:
    """The comparison of two recordings; failure: what fails the check, None where it passes."""

    groups: list[GroupChanges]
    warnings: list[str]
    failure: Failure | None


def share_of(text: str) -> float:
    """Return the share that `3%` or `0.03` stands for. ValueError for anything else."""
    number = text.strip()
    share = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    if not 0 <= share < 1:
        raise ValueError(f"{text} is no share below 1")
    return share


def compare(new: Path, old: Path, allowed: float) -> Gate:
    """Compare the seconds per epoch of each cell in two folders, of turns in a study or recording.

    The check fails where a cell is slower, and where no cell could be judged. Nothing is written.
    allowed: the share by which a cell may be slower. ConfigError where a folder holds no run that
    ended well, or the two are of different conditions.
    """
    (before, _), (after, _) = find_recording(old), find_recording(new)
    for folder, recording in ((new, after), (old, before)):
        if not _groups(recording):
            raise ConfigError(
                "folder",
                folder,
                "no timing run of it that counts ended well; times of turns, of the same cells in "
                "both folders; fix what failed, or measure with study.ask=[time]",
            )
    pairs = _pairs(after, before)
    if otherwise := _different_settings(after, before):
        raise _other_work(otherwise)
    warnings = _warnings(after, before) + _unmatched(pairs, after, before)
    compared = []
    for group, other in pairs:
        now, then = SECONDS.values(group), SECONDS.values(other)
        found = changes(now, then, allowed)
        compared.append(GroupChanges(group.title, found, then, now))
        warnings += [f"{cell} has no time now" for cell in then if cell not in now]
        warnings += [
            f"{one.cell} has too few runs to be judged" for one in found if one.low is None
        ]
    every = [change for group in compared for change in group.changes]
    return Gate(compared, warnings, _failure(every, allowed))


def _groups(recording: Recording) -> list[Group]:
    """The groups of a recording that have times of turns."""
    found = sorted_groups(recording.runs)
    return [group for group in found if any(run.ok for run in group.timing)]


def _failure(found: Sequence[Change], allowed: float) -> Failure | None:
    if all(change.low is None for change in found):
        return ConfigError(
            "fail-if-slower",
            f"{100 * allowed:g}%",
            "no cell could be judged; that takes two runs of a cell in each folder; run both with "
            "more seeds",
        )
    slower = [change for change in found if change.slower]
    if not slower:
        return None
    worst = max(slower, key=lambda change: change.ratio or 0.0)
    return Slower(
        str(worst.cell),
        times(worst.ratio, 3),
        "it is slower than before",
        f"at most {times(1 + allowed, 3)} is allowed, and the interval is {times(worst.low, 3)} to "
        f"{times(worst.high, 3)}"
        + (f", and {len(slower)} cells are slower in all" if len(slower) > 1 else ""),
        "see what changed, or allow more with --fail-if-slower",
    )


def _pairs(new: Recording, old: Recording) -> list[tuple[Group, Group]]:
    """Return the groups of the same conditions. ConfigError where there are none."""
    now, then = (largest_first(sorted_groups(recording.runs)) for recording in (new, old))
    pairs = [(group, other) for group in now for other in then if not _differences(group, other)]
    if pairs:
        return pairs
    raise _other_work(_differences(now[0], then[0]))


def _other_work(differences: Sequence[tuple[str, Any, Any]]) -> ConfigError:
    (name, ours, theirs), *others = differences
    more = f", and {listed([each[0] for each in others])} differ" if others else ""
    return ConfigError(
        name,
        ours,
        f"the other recording has {theirs}{more}; times of different work cannot be compared; "
        "compare recordings of the same study",
    )


def _different_settings(new: Recording, old: Recording) -> list[tuple[str, Any, Any]]:
    """Return the keys of a cell's configuration that differ, where both folders recorded it."""
    found = [recording.environment.get("overlays") for recording in (new, old)]
    now, then = (overlays if isinstance(overlays, dict) else {} for overlays in found)
    for cell in now:
        mine, theirs = settings_of(now[cell]), settings_of(then.get(cell))
        if mine and theirs and mine != theirs:
            return [
                (key, mine.get(key, "conf's own"), theirs.get(key, "conf's own"))
                for key in {**mine, **theirs}
                if mine.get(key) != theirs.get(key)
            ]
    return []


def _unmatched(pairs: Sequence[tuple[Group, Group]], new: Recording, old: Recording) -> list[str]:
    """Return a warning for each group that is compared with none."""
    compared = [group for pair in pairs for group in pair]
    return [
        f"{group.title} of the {which} recording is compared with nothing"
        for recording, which in ((new, "new"), (old, "old"))
        for group in _groups(recording)
        if group not in compared
    ]


def _differences(group: Group, other: Group) -> list[tuple[str, Any, Any]]:
    """Return the conditions in which two groups differ: name, the first's, the second's."""
    mine, theirs = _conditions(group), _conditions(other)
    return [
        (name, mine[name], theirs[name])
        for name in mine
        if name in theirs and mine[name] != theirs[name]
    ]


def _conditions(group: Group) -> dict[str, Any]:
    """Return what determines the work of an epoch, and how many processes share it in a cell."""
    overrides = [", ".join(run.overrides) for run in _ok(group)][:1]
    study = next((run.study for run in _ok(group) if run.study), None)
    found: dict[str, Any] = {
        "dataset": group.dataset,
        "model": group.model,
        "batch_size": group.batch_size,
        "epochs": group.epochs,
        "overrides": "".join(overrides) or "none",
    }
    if study:
        found["experiments"] = study
    for run in _ok(group):
        if run.steps and run.epochs:
            found["steps per epoch"] = round(run.steps / run.epochs)
        if run.processes:
            found[f"processes of {run.cell}"] = run.processes
    return found


def _ok(group: Group) -> list[Run]:
    return [run for run in group.runs if run.ok]


def _warnings(new: Recording, old: Recording) -> list[str]:
    found = []
    now, then = (recording.environment.get("environment") or {} for recording in (new, old))
    for name in (*MACHINE, *VERSIONS):
        mine, theirs = values(now.get(name)), values(then.get(name))
        if mine and theirs and mine != theirs:
            found.append(
                f"{name} was {listed(theirs)} and is {listed(mine)}: this may change times"
            )
    if new.environment.get("devices") != old.environment.get("devices"):
        found.append("the devices are not the same: this may change times")
    return found
