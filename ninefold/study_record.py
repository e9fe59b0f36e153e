"""sweep.json: what a study records of itself, for resuming it and for its report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ninefold.result import PROCESSES, are_numbers, strategy_name

FILE = "sweep.json"  # in a study's folder
SUPERSEDED = "superseded"  # folder of runs that were repeated, in a study's
# Fields that sweep.json holds under the same name.
PLAIN = (
    "study",
    "question",
    "command",
    "words",
    "started",
    "settings",
    "swept",
    "planned_cells",
    "planned_rounds",
    "burn_in",
    "overlays",
)


@dataclass
class Round:
    """One run of each cell with one seed.

    round: its number, from 0.
    seed: of all its runs.
    attempt: 0, or how often the round was repeated before.
    segment: index into StudyRecord.segments.
    shuffled: whether the cells run in a random order instead of the command's.
    counted: whether the report uses these runs; of several attempts one is counted.
    runs: run folders in the order run, relative to the study's folder.
    others: of a timing round, the share of the CPU time that other programs used during its turns;
        None: not known.
    """

    round: int
    seed: Any = None
    attempt: int = 0
    segment: int = 0
    shuffled: bool = False
    counted: bool = True
    runs: list[str] = field(default_factory=list)
    others: float | None = None

    def content(self) -> dict[str, Any]:
        """Its entry in sweep.json."""
        return {
            "part" if key == "segment" else key: value
            for key, value in asdict(self).items()
            if key != "others" or value is not None
        }


@dataclass
class StudyRecord:
    """The content of sweep.json; without a study, all of it is unknown.

    study: option of experiments=, None without one.
    question: that the header of its file asks.
    command: that started the study.
    words: of it, those that the command of a single run has too, with PYTHONPATH=... first where
        cells need it.
    started: when, as in result.json.
    settings: the sections of the configuration that are about the whole sweep.
    swept: the keys with several values, and those values as written.
    segments: code, machine and launcher; a new one begins where a study is resumed after one of
        them changed. Runs of different segments are never put into one table.
    planned_cells: parallel, amp and the swept keys of each cell; of a strategy with one process no
        number of processes.
    planned_rounds: at most, according to the last command; 0: the sweep has no rounds.
    looks: how often repeats=auto may look at the results, over all commands.
    burn_in: folder of the run before the first round.
    overlays: what each cell sets differently than conf/, by its name: see config.overlay.
    wall_seconds: that the study took, over all commands.
    runs: how many there are, with the burn-in and superseded ones, but not those of timing rounds.
    superseded: folders of runs that were repeated.
    timing: the complete timing rounds, numbered by themselves: see study.timing.
    timing_seconds: spent in timing rounds, over all commands.
    timing_groups: groups that a timing round had at most, as memory did not suffice for all cells.
    timing_ended: why there are no more timing rounds, see study.timing; None: there are.
    """

    study: str | None = None
    question: str | None = None
    command: str | None = None
    words: list[str] | None = None
    started: str | None = None
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    swept: dict[str, list[str]] = field(default_factory=dict)
    segments: list[dict[str, Any]] = field(default_factory=list)
    planned_cells: list[dict[str, str]] = field(default_factory=list)
    planned_rounds: int = 0
    looks: int = 1
    burn_in: str | None = None
    overlays: dict[str, dict[str, Any]] = field(default_factory=dict)
    wall_seconds: float = 0.0
    runs: int = 0
    superseded: list[str] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    timing: list[Round] = field(default_factory=list)
    timing_seconds: float = 0.0
    timing_groups: int = 1
    timing_ended: str | None = None

    @classmethod
    def of(cls, stored: object) -> StudyRecord:
        """The record in a sweep.json. Raises ValueError if it is damaged."""
        try:
            found = msgspec.convert(_fields(stored), StudyRecord)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        for entry in (*found.rounds, *found.timing):
            for name in entry.runs:
                if os.path.isabs(name) or ".." in Path(name).parts:
                    raise ValueError(f"{name} is not in the study's folder")
        return found

    def content(self) -> dict[str, Any]:
        """What sweep.json holds."""
        return {
            **{key: getattr(self, key) for key in PLAIN},
            "wall_seconds": self.wall_seconds,
            "runs": self.runs,
            "code": self.segments[-1]["code"],
            "rounds": [entry.content() for entry in self.rounds],
            "timing": [entry.content() for entry in self.timing] or None,
            "timing_seconds": self.timing_seconds or None,
            "timing_groups": self.timing_groups if self.timing else None,
            **({"timing_ended": self.timing_ended} if self.timing else {}),
            "superseded": self.superseded,
            "looks": self.looks if self.looks > 1 else None,
            "parts": self.segments,
        }

    @property
    def asked(self) -> list[str]:
        """What it asks: `time`, `accuracy` or both. Null, in old studies: no times in turns."""
        return _list(self._settings.get("ask")) or ["accuracy"]

    @property
    def ends_when_settled(self) -> bool:
        """Whether it makes fewer rounds than planned if these answer what it asks."""
        return self._settings.get("repeats") == "auto"

    @property
    def scaling(self) -> str | None:
        """How the batch grows with the processes: `strong`, not at all; `weak`, as they do.

        None where it did not sweep parallel.processes: they are no part of its cells then.
        """
        if not are_numbers(self.swept.get(PROCESSES)):
            return None
        return "weak" if self._settings.get("scaling") == "weak" else "strong"

    @property
    def cell_names(self) -> list[str]:
        """Strategy and precision of the planned cells, each once: `ddp-scaler`, `ddp x4-scaler`."""
        found = [
            (cell["parallel"], cell.get(PROCESSES) if self.scaling else None, cell["amp"])
            for cell in self.planned_cells
            if cell.get("parallel") and cell.get("amp")
        ]
        names = [f"{strategy_name(parallel, count)}-{amp}" for parallel, count, amp in found]
        return list(dict.fromkeys(names))

    def rounds_of(self, segment: int) -> list[Round]:
        """The rounds of training runs of a segment."""
        return [entry for entry in self.rounds if entry.segment == segment]

    def timing_of(self, segment: int) -> list[Round]:
        """The timing rounds of a segment."""
        return [entry for entry in self.timing if entry.segment == segment]

    def put_away(self, folder: str) -> bool:
        """Whether a run is the burn-in, or one that was repeated."""
        superseded = folder in self.superseded or folder.startswith(f"{SUPERSEDED}/")
        return superseded or folder == self.burn_in

    @property
    def _settings(self) -> dict[str, Any]:
        return self.settings.get("study", {})


def _fields(stored: object) -> object:
    """What a sweep.json says in the fields of a StudyRecord."""
    if not isinstance(stored, Mapping):
        return stored
    found = _known({**stored, "segments": stored.get("parts")})
    for kind in ("rounds", "timing"):
        if isinstance(entries := found.get(kind), list):
            found[kind] = [_round(entry) for entry in entries]
    return found


def _round(entry: object) -> object:
    if not isinstance(entry, dict):
        return entry
    return _known({**entry, "segment": entry.get("part")})


def _known(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without those that are null: they are as if they were missing."""
    return {key: value for key, value in stored.items() if value is not None}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
