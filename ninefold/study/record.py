"""A study's folder: its record in sweep.json, and the run folders that it lists."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from ninefold.errors import ConfigError, error_text
from ninefold.files import read_json, write_json
from ninefold.result import Result
from ninefold.secrets import redacted
from ninefold.study_record import FILE, SUPERSEDED, Round, StudyRecord
from ninefold.tournament.taken import TakenTurn

if TYPE_CHECKING:
    from ninefold.answer.runs import Run

ENDED = ("ok", "diverged")  # statuses of a run that need not be repeated


@dataclass(kw_only=True)
class StudyFolder(StudyRecord):
    """The record of a study that is being run, and the results of its runs.

    folder: of the study.
    began: when this command began, time.time().
    before: seconds that earlier commands of this study took.
    turns: that timing runs took, by the run's folder.
    """

    folder: Path
    began: float = field(default_factory=time.time)
    before: float = 0.0
    turns: dict[str, list[TakenTurn]] = field(default_factory=dict)
    _ended: dict[str, Result] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> StudyFolder:
        """The study in `folder`, to be resumed. Raises ConfigError if there is none."""
        try:
            record = StudyRecord.of(read_json(folder / FILE))
        except (OSError, ValueError) as error:
            wrong, do = f"its {FILE} is not that of a study", "start a new study"
            raise ConfigError("study.resume", folder, wrong, error_text(error), do) from error
        turns = {}
        if record.timing:
            from ninefold import report

            turns = {run.folder: run.taken for run in report.read_runs(folder)[0]}
        return cls(**vars(record), folder=folder, before=record.wall_seconds, turns=turns)

    @property
    def seconds(self) -> float:
        """Duration of the study over all commands."""
        return self.before + time.time() - self.began

    def seconds_of_a_run(self) -> float:
        """Mean seconds from launch to result; 0 before the first run."""
        results = [self.result(name) for entry in self.rounds for name in entry.runs]
        return fmean([r.total_seconds for r in results if r and r.total_seconds] or [0.0])

    def write(self) -> None:
        """Write sweep.json atomically."""
        self.wall_seconds = self.seconds
        write_json(self.folder / FILE, redacted(self.content()))

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
        if result.status in ENDED:
            self._ended[name] = result
        return result

    def known_runs(self) -> list[Run]:
        """The runs of all rounds, as a report reads them from the folder."""
        from ninefold.answer.rounds import runs_of  # here, because it imports SciPy

        names = [name for entry in (*self.rounds, *self.timing) for name in entry.runs]
        results = {name: result for name in names if (result := self.result(name)) is not None}
        return runs_of(results, self.turns, self)

    def has_ended(self, name: str) -> bool:
        """Whether the run in folder `name` was neither interrupted nor failed."""
        result = self.result(name)
        return result is not None and result.status in ENDED
