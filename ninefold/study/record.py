"""The record of a study on disk: sweep.json and the run folders that it lists."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

from ninefold.checkpoint import manifest
from ninefold.errors import ConfigError
from ninefold.files import read_json, write_json
from ninefold.result import SWEEP, TIMING, Result
from ninefold.secrets import redacted

BURN_IN, SUPERSEDED = "burn_in", "superseded"  # folders in a study's
ENDED = ("ok", "diverged")  # statuses of a run that needs no repetition
# Throttle reasons that count as drift. A power or clock limit that the user has set does not: it is
# the same for all cells.
SLOWDOWNS = {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
# Fields of a Recording that sweep.json holds under the same name.
PLAIN = (
    "study",
    "question",
    "command",
    "started",
    "settings",
    "swept",
    "planned_cells",
    "planned_rounds",
    "burn_in",
    "max_batch",
)


@dataclass
class Round:
    """One run of each cell with one seed.

    round: its number, from 0.
    seed: of all its runs.
    attempt: 0, or how often the round was repeated before.
    segment: index into Recording.segments.
    shuffled: whether the cells run in a random order instead of the command's.
    drift: share by which the machine was slower than at its fastest; None if unknown.
    drifted: whether that is more than allowed, or a GPU was throttled.
    counted: whether the report uses these runs; of several attempts one is counted.
    runs: run folders in the order run, relative to the study's folder.
    others: of a timing round, the share of the CPU time that other programs used during its turns;
        None: not known.
    """

    round: int
    seed: Any
    attempt: int = 0
    segment: int = 0
    shuffled: bool = False
    drift: float | None = None
    drifted: bool = False
    counted: bool = True
    runs: list[str] = field(default_factory=list)
    others: float | None = None

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Round:
        """The round of an entry in sweep.json. Raises TypeError or ValueError."""
        known = dict(entry)
        found = cls(segment=known.pop("part", 0), **known)
        for name in found.runs:
            if os.path.isabs(name) or ".." in Path(name).parts:
                raise ValueError(f"{name} is not in the study's folder")
        return found

    def content(self) -> dict[str, Any]:
        """Its entry in sweep.json."""
        return {
            "part" if key == "segment" else key: value
            for key, value in asdict(self).items()
            if key != "others" or value is not None
        }


@dataclass
class Recording:
    """The content of sweep.json, and its folder.

    folder: of the study.
    study: option of experiments=, None without one.
    question: that the header of its file asks.
    command: that started the study.
    started: when, as in result.json.
    settings: the sections of the configuration that are about the whole sweep.
    swept: the keys with several values, and those values as written.
    segments: code, machine and launcher; a new one begins where a study is resumed after one of
        them changed. Runs of different segments are never put into one table.
    planned_cells: parallel, amp and the swept keys of each cell.
    planned_rounds: at most, according to the last command.
    looks: how often repeats=auto may look at the results, over all commands.
    burn_in: folder of the run before the first round.
    max_batch: for each cell's name: see study.max_batch.Largest.
    began: when this command began, time.time().
    before: seconds that earlier commands of this study took.
    search_seconds: of all these seconds, those spent in searching for the largest batches.
    timing: the complete timing rounds, numbered by themselves: see study.timing.
    timing_seconds: spent in timing rounds, over all commands.
    timing_groups: groups that a timing round had at most, as memory did not suffice for all cells.
    timing_ended: why there are no more timing rounds, see study.timing; None: there are.
    pairs_before: study.pairs of the command that is resumed.
    """

    folder: Path
    study: str | None
    question: str | None
    command: str
    started: str
    settings: dict[str, Any]
    swept: dict[str, list[str]]
    segments: list[dict[str, Any]]
    planned_cells: list[dict[str, str]]
    planned_rounds: int
    looks: int = 1
    burn_in: str | None = None
    max_batch: dict[str, Any] | None = None
    rounds: list[Round] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    before: float = 0.0
    search_seconds: float = 0.0
    timing: list[Round] = field(default_factory=list)
    timing_seconds: float = 0.0
    timing_groups: int = 1
    timing_ended: str | None = None
    pairs_before: str | None = None
    _ended: dict[str, Result] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Recording:
        """The recording of the study in `folder`. Raises ConfigError if there is none."""
        try:
            found = read_json(folder / SWEEP)
            rounds = [Round.read(entry) for entry in found["rounds"]]
            # Fields that older studies lack.
            found = {
                "question": None,
                "planned_cells": [],
                "planned_rounds": len({entry.round for entry in rounds}),
                **found,
            }
            return cls(
                folder=folder,
                rounds=rounds,
                segments=found["parts"],
                before=float(found["wall_seconds"]),
                looks=int(found.get("looks") or 1),
                search_seconds=float(found.get("search_seconds") or 0.0),
                timing=[Round.read(entry) for entry in found.get("timing") or []],
                timing_seconds=float(found.get("timing_seconds") or 0.0),
                timing_groups=int(found.get("timing_groups") or 1),
                timing_ended=found.get("timing_ended", "before it was recorded"),
                **{key: found[key] for key in PLAIN},
            )
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                "study.resume",
                folder,
                f"its {SWEEP} is not that of a study in rounds; {type(error).__name__}: {error}; "
                "start a new study",
            ) from error

    @property
    def segment(self) -> int:
        """The index of the current segment."""
        return len(self.segments) - 1

    @property
    def seconds(self) -> float:
        """Duration of the study over all commands."""
        return self.before + time.time() - self.began

    def seconds_of_a_run(self) -> float:
        """Mean seconds from launch to result in this segment; 0 before the first run."""
        results = [self.result(n) for e in self._rounds_of_this_segment() for n in e.runs]
        return fmean([r.total_seconds for r in results if r and r.total_seconds] or [0.0])

    def write(self) -> None:
        """Write sweep.json atomically."""
        moved = (self.folder / SUPERSEDED).glob("*")
        superseded = sorted(f"{SUPERSEDED}/{path.name}" for path in moved)
        runs = sum(len(entry.runs) for entry in self.rounds)
        content = {
            **{key: getattr(self, key) for key in PLAIN},
            "wall_seconds": self.seconds,
            "search_seconds": self.search_seconds or None,
            "runs": runs + len(superseded) + (self.burn_in is not None),
            "code": self.segments[-1]["code"],
            "rounds": [entry.content() for entry in self.rounds],
            "timing": [entry.content() for entry in self.timing] or None,
            "timing_seconds": self.timing_seconds or None,
            "timing_groups": self.timing_groups if self.timing else None,
            **({"timing_ended": self.timing_ended} if self.timing else {}),
            "superseded": superseded,
            "looks": self.looks if self.looks > 1 else None,
            "parts": self.segments,
        }
        write_json(self.folder / SWEEP, redacted(content))

    def number(self, entry: Round, index: int) -> int:
        """Number of the `index`th run of a round among all runs of the study, from 0."""
        before = takewhile(lambda other: other is not entry, self.rounds)
        return sum(len(other.runs) for other in before) + index

    def supersede(self, name: str) -> None:
        """Move the folder of a run that is repeated to superseded/."""
        target, count = self.folder / SUPERSEDED, 1
        target.mkdir(exist_ok=True)
        flat = name.replace("/", "_")
        while (target / f"{flat}.{count}").exists():
            count += 1
        (self.folder / name).rename(target / f"{flat}.{count}")
        self._ended.pop(name, None)

    def result(self, name: str) -> Result | None:
        """The result of the run in folder `name`, or None if there is none to read."""
        if name in self._ended:
            return self._ended[name]
        try:
            result = Result.read(self.folder / name)
        except (OSError, ValueError, TypeError):
            return None
        if result.status != "preempted":
            self._ended[name] = result
        return result

    def has_ended(self, name: str) -> bool:
        """Whether the run in folder `name` was neither interrupted nor failed."""
        result = self.result(name)
        return result is not None and result.status in ENDED

    def can_be_resumed(self, name: str) -> bool:
        """Whether the run in folder `name` was interrupted and has a checkpoint."""
        result = self.result(name)
        if result is not None and result.status != "preempted":
            return False
        return bool(manifest.read(self.folder / name / "checkpoints"))

    def count(self, entry: Round) -> None:
        """Use `entry` in the results, and no other attempt at the same round in its segment."""
        for other in self.attempts(entry):
            other.counted = other is entry

    def attempts(self, entry: Round) -> list[Round]:
        """All attempts at the round of `entry` in its segment."""
        place = (entry.round, entry.segment)
        return [other for other in self.rounds if (other.round, other.segment) == place]

    def find_drift(self, allowed: float | None) -> list[tuple[Round, str]]:
        """Find the rounds of this segment in which the machine was slower, by their runs' probes.

        A run is compared with the fastest probe of its segment on the same devices and threads. Its
        own faster probe is used: a slow one alone may be a short disturbance, and what lasts
        through a run slows both probes, or both of the next run. allowed: largest share that is no
        drift; None: any. Returns the rounds that were not known to have drifted, and why they did.
        """
        entries = self._rounds_of_this_segment()
        names = [name for entry in entries for name in entry.runs]
        results = {name: result for name in names if (result := self.result(name))}
        burn_in = self.result(self.burn_in) if self.burn_in else None
        best: dict[tuple[frozenset[str], int | None], float] = {}
        for result in [*results.values(), *([burn_in] if burn_in else [])]:
            for seconds in result.probe_seconds:
                best[_machine(result)] = min(seconds, best.get(_machine(result), seconds))
        slower = {
            name: min(result.probe_seconds) / best[_machine(result)] - 1
            for name, result in results.items()
            if result.probe_seconds and best[_machine(result)]
        }
        found = []
        for entry in entries:
            entry.drift = max((slower[name] for name in entry.runs if name in slower), default=None)
            if allowed is None:
                continue
            reasons = {why for n in entry.runs if n in results for why in _throttled(results[n])}
            why = f"a GPU was throttled ({', '.join(sorted(reasons))})" if reasons else ""
            if entry.drift is not None and entry.drift > allowed:
                why = f"the machine was up to {entry.drift:.0%} slower than at its best"
            if why and not entry.drifted:
                found.append((entry, why))
            entry.drifted = bool(why)
        return found

    def timing_rounds(self) -> list[Round]:
        """The timing rounds of this segment."""
        return [entry for entry in self.timing if entry.segment == self.segment]

    def next_timing_round(self) -> int:
        """The number of a new timing round; the folder of an interrupted one is deleted."""
        number = len(self.timing)
        shutil.rmtree(self.folder / TIMING / str(number), ignore_errors=True)
        return number

    def _rounds_of_this_segment(self) -> list[Round]:
        return [entry for entry in self.rounds if entry.segment == self.segment]


def _machine(result: Result) -> tuple[frozenset[str], int | None]:
    """The devices and threads that the probe of a run measures: see measure.probe."""
    return frozenset(result.devices), result.threads if "cpu" in result.devices else None


def _throttled(result: Result) -> set[str]:
    """Why GPUs of a run were throttled."""
    return {
        why
        for gpu in result.gpus
        for when in ("before", "after")
        if isinstance(state := gpu.get(when), Mapping)
        for why in state.get("throttle") or ()
        if why in SLOWDOWNS
    }
