"""The report as typed objects: what all renderers read, and report.json holds most of.

Field names and their order are the keys of report.json, where a `Cell` is its text. A number is
None where it is not known. Times are in seconds, memory in bytes, scores in the unit of their
measure, which is percent for a share. The key of the task's score is `score`,
whatever its name is: `Group.score`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from ninefold.answer.answer import Answer, Compared
from ninefold.answer.cell import Cell
from ninefold.answer.measures import SCORE_KEY, Measure
from ninefold.answer.runs import Run
from ninefold.answer.study_facts import Numerics
from ninefold.files import write_json
from ninefold.stats.verdicts import Comparison, Estimate, Settings

VERSION = 4
MAX_SHOWN = 8  # groups with figures and tables of their own: a search has one group for each trial


@dataclass(frozen=True)
class Figures(Estimate):
    """One measure of one cell.

    values: by seed, or by timing round.
    tried: seeds, or timing rounds, that have runs of this cell which may give a value.
    """

    values: dict[str, float]
    tried: int


@dataclass(frozen=True)
class CellReport:
    """One strategy with one precision.

    label: what it is called, with its number format: `none, autocast (bf16)`.
    repeats: the configuration whose work it does under another name; None: it does its own.
    against: how its time compares with the recommended one's: "named" of itself, "slower", "tie",
        "faster" (then its score is not shown to be kept), or "open"; while none is recommended,
        "open" of those that may be it, "slower" of others that are acceptable. Empty where times
        were not asked for.
    excluded: why it is out whatever its time is, as `StudyFacts.excluded` says; None where only its
        time counts.
    status: of the first run that did not end well, None where all did.
    seeds: seeds that were run.
    measures: by key of the measure, without those that it has no value of.
    phases: percent of a training step, by phase.
    """

    cell: Cell
    status: str | None
    seeds: int
    measures: dict[str, Figures]
    phases: dict[str, float] | None
    label: str
    repeats: Cell | None = None
    speedup: Compared | None = None
    against: str = ""
    excluded: str | None = None

    def mean(self, key: str) -> float | None:
        """Return the mean of a measure, None where it is not known."""
        found = self.measures.get(key)
        return None if found is None else found.mean


@dataclass(frozen=True)
class Group:
    """The runs of the same conditions: dataset, model, batch size, epochs, other overrides.

    measures: the score, and those that a run has a value of; a further figure of the task has the
        key "figure: NAME".
    comparison: the verdicts on every pair, of times none where scores alone were asked; and the
        controls.
    numerics: comparison of the first steps, None where none was recorded.
    score: the name of the task's score.
    settings: the thresholds that its verdicts were reached with.
    timing_rounds: from which the times are, where cells were timed in turns.
    turns_left_out: share of the study's turns that do not count, as something disturbed them.
    check: what the control says, and what follows, a sentence each; empty where no time was asked.
    order: the place of this group where groups are sorted by their conditions, from 0.
    asks_time: whether its times tell which cell is the fastest, as those of turns do.
    scaling: how the batch grows with the processes that the study swept, strong or weak; else None.
    untimed: cells that were not timed as time was short, each with the one whose work it repeats.
    """

    title: str
    measures: list[Measure]
    cells: list[CellReport]
    comparison: Comparison
    settings: Settings
    check: list[str]
    numerics: Numerics | None
    score: str
    timing_rounds: int | None = None
    turns_left_out: float = 0.0
    order: int = 0
    asks_time: bool = True
    scaling: str | None = None
    untimed: Mapping[Cell, Cell] = field(default_factory=dict)

    @property
    def control(self) -> list[str]:
        """The sentence of the A/A control, if there is one."""
        return self.check[:1] if self.comparison.control else []

    @property
    def shown(self) -> list[CellReport]:
        """The configurations that do work of their own."""
        return [cell for cell in self.cells if cell.repeats is None]

    @property
    def unit(self) -> str:
        """The unit of its score; % if it is a share."""
        return next((info.unit for info in self.measures if info.key == SCORE_KEY), "%")

    @property
    def better(self) -> str:
        """Return which scores are better, more or less."""
        return next((info.better for info in self.measures if info.key == SCORE_KEY), "more")

    @property
    def scored(self) -> bool:
        """Return whether it has runs that were trained as a whole, which alone have a score."""
        return any(cell.seeds for cell in self.cells) or not self.timing_rounds


@dataclass(frozen=True)
class Note:
    """A note of runs, and the cells that it holds for."""

    text: str
    cells: list[Cell]


@dataclass(frozen=True)
class Report:
    """A whole report.

    groups: that with the most successful runs first, which the answer is of.
    uncounted: by the folders of runs that do not count, why.
    """

    version: int
    title: str
    question: str | None
    command: str | None
    conditions: list[str]
    machine: str
    answer: Answer
    groups: list[Group]
    notes: list[Note]
    runs: Sequence[Run]
    uncounted: Mapping[str, str]
    environment: Mapping[str, Any]


def write_report(path: Path, report: Report) -> None:
    """Write report.json: all but what runs.csv and environment.json have."""
    names = [each.name for each in fields(report) if each.name not in ("runs", "environment")]
    write_json(path, {name: _content(getattr(report, name)) for name in names})


def _content(part: Any) -> Any:
    """A part of the tree as JSON: cells as their texts, without what has no place in a `repr`."""
    if isinstance(part, Cell):
        return str(part)
    if is_dataclass(part):
        names = [each.name for each in fields(part) if each.repr]
        return {name: _content(getattr(part, name)) for name in names}
    if isinstance(part, Mapping):
        return {str(key): _content(value) for key, value in part.items()}
    return [_content(each) for each in part] if isinstance(part, list | tuple) else part
