"""sweep.json: what a study records of itself, for resuming it and for its report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from ninefold.result import PROCESSES, are_numbers

FILE = "sweep.json"  # in a study's folder
SUPERSEDED = "superseded"  # folder of runs that were repeated, in a study's


@dataclass
class Round:
    """One run of each cell with one seed.

    round: its number, from 0.
    seed: of all its runs.
    shuffled: whether the cells run in a random order instead of the command's.
    runs: run folders in the order run, relative to the study's folder.
    """

    round: int
    seed: Any = None
    shuffled: bool = False
    runs: list[str] = field(default_factory=list)


@dataclass
class StudyRecord:
    """The content of sweep.json; without a study, all of it is unknown.

    study: option of experiments=, None without one.
    question: that the header of its file asks.
    command: that started the study.
    started: when, as in result.json.
    settings: the sections of the configuration that are about the whole sweep.
    swept: the keys with several values, and those values as written.
    made_with: code, machine and launcher, which are those of all its runs.
    planned_cells: parallel, amp and the swept keys of each cell; of a strategy with one process no
        number of processes.
    planned_rounds: at most, according to the last command; 0: the sweep has no rounds.
    looks: how often scores are looked at: once more by each command that makes further runs after
        they were shown. shown: whether a command with two seeds or more ended since the last run.
    trust: whether it names what only trust=true uses of a study of others, see config.like.
    wall_seconds: that the study took, over all commands.
    timing: the complete timing rounds, numbered by themselves: see study.timing.
    timing_seconds: spent in timing rounds, over all commands.
    timing_seed: of what timing rounds draw, such as who goes first; None: none were made.
    timing_looks: when it was seen what timing rounds have shown: by complete rounds, the share of
        the time that had passed; after the end of the time, the share of the rounds made then.
    timing_groups: groups that a timing round had at most, as not all cells could be alive at once.
    timing_ended: why there are no more timing rounds, see study.timing; None: there are.
    untimed: cells that are not timed as time is short, each with the one whose work it repeats.
    """

    study: str | None = None
    question: str | None = None
    command: str | None = None
    started: str | None = None
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    swept: dict[str, list[str]] = field(default_factory=dict)
    made_with: dict[str, Any] = field(default_factory=dict)
    planned_cells: list[dict[str, str]] = field(default_factory=list)
    planned_rounds: int = 0
    looks: int = 1
    shown: bool = False
    trust: bool = False
    wall_seconds: float = 0.0
    rounds: list[Round] = field(default_factory=list)
    timing: list[Round] = field(default_factory=list)
    timing_seconds: float = 0.0
    timing_seed: str | None = None
    timing_looks: dict[int, float] = field(default_factory=dict)
    timing_groups: int = 1
    timing_ended: str | None = None
    untimed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, stored: object) -> StudyRecord:
        """The record in a sweep.json. Raises ValueError if it is damaged."""
        if isinstance(stored, Mapping):  # what is null is as if it were missing
            stored = {key: value for key, value in stored.items() if value is not None}
        try:
            found = msgspec.convert(stored, StudyRecord, str_keys=True)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        for entry in (*found.rounds, *found.timing):
            for name in entry.runs:
                if os.path.isabs(name) or ".." in Path(name).parts:
                    raise ValueError(f"{name} is not in the study's folder")
        return found

    def content(self) -> dict[str, Any]:
        """What sweep.json holds."""
        found = {field.name: getattr(self, field.name) for field in fields(StudyRecord)}
        return {**found, **{k: list(map(asdict, found[k])) for k in ("rounds", "timing")}}

    @property
    def asked(self) -> list[str]:
        """What it asks: `time`, `score` or both. Null, in old studies: no times in turns."""
        asked = self._settings.get("ask")
        known = asked if isinstance(asked, list) else []
        return ["score" if each == "accuracy" else each for each in known] or ["score"]

    @property
    def scaling(self) -> str | None:
        """How the batch grows with the processes: `strong`, not at all; `weak`, as they do.

        None where it did not sweep parallel.processes: they are no part of its cells then.
        """
        if not are_numbers(self.swept.get(PROCESSES)):
            return None
        return "weak" if self._settings.get("scaling") == "weak" else "strong"

    @property
    def _settings(self) -> dict[str, Any]:
        return self.settings.get("study", {})


def was_repeated(folder: str) -> bool:
    """Return whether the run of this folder, relative to the study's, was repeated."""
    return folder.startswith(f"{SUPERSEDED}/")
