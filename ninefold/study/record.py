"""What a study has come to: sweep.json, and the run folders that it lists."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from ninefold.checkpoint import manifest
from ninefold.errors import ConfigError
from ninefold.files import write_json
from ninefold.result import SWEEP, Result
from ninefold.secrets import redacted

BURN_IN, SUPERSEDED = "burn_in", "superseded"
ENDED = ("ok", "diverged")  # a run that came to an end of its own
# A limit on power or clocks that somebody has set is the same for all cells, and no drift.
SLOWDOWNS = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown",
             "hw_power_brake_slowdown")  # fmt: skip


@dataclass
class Round:
    """A run of each cell with one seed.

    shuffled: whether in an order of its own, and not in that of the command. drift: by which share
    the machine was slower than at its best, None where it is not known. runs: their folders, in the
    order run, relative to the study's.
    """

    round: int
    seed: Any
    attempt: int = 0
    part: int = 0
    shuffled: bool = False
    drift: float | None = None
    drifted: bool = False
    counted: bool = True
    runs: list[str] = field(default_factory=list)


@dataclass
class Sitting:
    """The content of sweep.json, and where it is.

    parts: code, machine and launcher of each; rounds of different parts are never put in one
    figure. planned_rounds: as the last command had it. looks: at the answer, in all.
    began: when this command did, time.time(). before: seconds that earlier commands took.
    search_seconds: of all these, what looking for the largest batches took.
    """

    folder: Path
    study: str | None
    command: str
    started: str
    settings: dict[str, Any]
    swept: dict[str, list[str]]
    parts: list[dict[str, Any]]
    planned_rounds: int
    looks: int = 1
    burn_in: str | None = None
    max_batch: dict[str, Any] | None = None
    rounds: list[Round] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    before: float = 0.0
    search_seconds: float = 0.0
    _ended: dict[str, Result] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Sitting:
        """What the study in `folder` had come to. Raises ConfigError if there was none."""
        try:
            found = json.loads((folder / SWEEP).read_text(encoding="utf-8"))
            rounds = [Round(**entry) for entry in found["rounds"]]
            for name in [name for entry in rounds for name in entry.runs]:
                if os.path.isabs(name) or ".." in Path(name).parts:
                    raise ValueError(f"{name} is not in the study's folder")
            begun = len({entry.round for entry in rounds})
            return cls(
                folder=folder, rounds=rounds, before=float(found["wall_seconds"]),
                planned_rounds=int(found.get("planned_rounds", begun)),
                looks=int(found.get("looks") or 1),
                search_seconds=float(found.get("search_seconds") or 0.0),
                **{key: found[key] for key in ("study", "command", "started", "settings", "swept",
                                               "parts", "burn_in", "max_batch")},
            )  # fmt: skip
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ConfigError(
                "study.resume", folder, f"its {SWEEP} is not that of a study in rounds",
                f"{type(error).__name__}: {error}", "start a new one",
            ) from error  # fmt: skip

    @property
    def part(self) -> int:
        return len(self.parts) - 1

    @property
    def seconds(self) -> float:
        """What the study took, over all commands."""
        return self.before + time.time() - self.began

    def seconds_of_a_run(self) -> float:
        """The mean of those of this part, from launch to result; 0 as long as there is none."""
        names = [name for entry in self.rounds if entry.part == self.part for name in entry.runs]
        results = [self.result(name) for name in names]
        return fmean([r.total_seconds for r in results if r and r.total_seconds] or [0.0])

    @property
    def superseded(self) -> list[str]:
        """Folders of runs that were begun anew elsewhere."""
        return sorted(f"{SUPERSEDED}/{path.name}" for path in (self.folder / SUPERSEDED).glob("*"))

    def write(self) -> None:
        """Write sweep.json; a reader finds the old one or the new one."""
        superseded = self.superseded
        content = {
            "study": self.study,
            "command": self.command,
            "started": self.started,
            "wall_seconds": self.seconds,
            "search_seconds": self.search_seconds or None,
            "runs": sum(len(entry.runs) for entry in self.rounds) + len(superseded)
            + (self.burn_in is not None),
            "settings": self.settings,
            "code": self.parts[-1]["code"],
            "rounds": [asdict(entry) for entry in self.rounds],
            "burn_in": self.burn_in,
            "superseded": superseded,
            "planned_rounds": self.planned_rounds,
            "looks": self.looks if self.looks > 1 else None,
            "max_batch": self.max_batch,
            "swept": self.swept,
            "parts": self.parts,
        }  # fmt: skip
        write_json(self.folder / SWEEP, redacted(content))

    def number(self, entry: Round, index: int) -> int:
        """Which of all runs of the study the `index`th of a round is, from 0."""
        return sum(len(other.runs) for other in self.before_round(entry)) + index

    def before_round(self, entry: Round) -> Iterator[Round]:
        """The rounds that were begun before `entry`."""
        for other in self.rounds:
            if other is entry:
                return
            yield other

    def supersede(self, name: str) -> None:
        """Move a run's folder out of the way of a new one, keeping it."""
        target, count = self.folder / SUPERSEDED, 1
        target.mkdir(exist_ok=True)
        flat = name.replace("/", "_")
        while (target / f"{flat}.{count}").exists():
            count += 1
        (self.folder / name).rename(target / f"{flat}.{count}")
        self._ended.pop(name, None)

    def result(self, name: str) -> Result | None:
        """That of the run in a folder of the study, or None if there is none to read."""
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
        """Whether the run in a folder came to an end of its own."""
        result = self.result(name)
        return result is not None and result.status in ENDED

    def can_go_on(self, name: str) -> bool:
        """Whether the run in a folder has a checkpoint, and neither ended nor failed."""
        result = self.result(name)
        if result is not None and result.status != "preempted":
            return False
        return bool(manifest.read(self.folder / name / "checkpoints"))

    def count(self, entry: Round) -> None:
        """Have `entry` count, and no other attempt at its round in its part."""
        for other in self.rounds:
            if (other.round, other.part) == (entry.round, entry.part):
                other.counted = other is entry

    def attempts(self, entry: Round) -> int:
        """How often the round of `entry` has been begun in its part."""
        place = (entry.round, entry.part)
        return sum((other.round, other.part) == place for other in self.rounds)

    def judge(self, allowed: float | None) -> list[tuple[Round, str]]:
        """Say of each round of this part how much slower the machine was, and if that is allowed.

        It is held against the machine at its best in this part, which may be known only later, and
        in runs of the same kind. Of a run the faster of its probes counts: one that was interrupted
        for a moment tells nothing, and what lasts through a run slows both, or both of the next.
        allowed: a share; None: any. Returns the rounds that are now found to have drifted, and how.
        """
        entries = [entry for entry in self.rounds if entry.part == self.part]
        names = [name for entry in entries for name in entry.runs]
        results = {name: result for name in names if (result := self.result(name))}
        first = self.result(self.burn_in) if self.burn_in else None
        best: dict[tuple[frozenset[str], int | None], float] = {}
        for result in [*results.values(), *([first] if first else [])]:
            for seconds in result.probe_seconds:
                best[kind(result)] = min(seconds, best.get(kind(result), seconds))
        slower = {name: min(result.probe_seconds) / best[kind(result)] - 1
                  for name, result in results.items()
                  if result.probe_seconds and best[kind(result)]}  # fmt: skip
        found = []
        for entry in entries:
            entry.drift = max((slower[name] for name in entry.runs if name in slower), default=None)
            held_back = sorted({
                why for name in entry.runs if name in results for why in throttled(results[name])
            })  # fmt: skip
            why = f"a GPU was held back ({', '.join(held_back)})" if held_back else ""
            if allowed is None:
                continue
            if entry.drift is not None and entry.drift > allowed:
                why = f"the machine was up to {entry.drift:.0%} slower than at its best"
            if why and not entry.drifted:
                found.append((entry, why))
            entry.drifted = bool(why)
        return found


def kind(result: Result) -> tuple[frozenset[str], int | None]:
    """What the probe of a run depends on, besides how fast the machine is: see measure.probe."""
    return frozenset(result.devices), result.threads if "cpu" in result.devices else None


def throttled(result: Result) -> set[str]:
    """Why GPUs of a run were slower than they are set to be."""
    return {
        why
        for gpu in result.gpus
        for when in ("before", "after")
        if isinstance(state := gpu.get(when), Mapping)
        for why in state.get("throttle") or ()
        if why in SLOWDOWNS
    }
