"""The measures of a run that a report shows: time, throughput, scores, memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, harmonic_mean
from typing import Any

from ninefold.answer.cell import Cell
from ninefold.answer.runs import Point, Run, RunGroup, finite
from ninefold.score import IMAGES, SHARE, Score
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import Estimate

MAX_FIGURES = 20  # further figures of a task that are shown


@dataclass(frozen=True)
class Measure:
    """One measure of a run.

    key: in report.json, which has title, unit and better, too. better: "less", "more" or "" for not
    known. value: of a run, None if unknown. of_time: whether it is of the time of a step, which
    timing runs tell better than training runs.
    """

    key: str
    title: str
    unit: str
    better: str
    value: Callable[[Run], float | None] = field(repr=False)
    of_time: bool = field(default=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Of a report that is read, which needs no functions, and has to be pickled."""
        return {**vars(self), "value": None}

    def sources(self, group: RunGroup) -> dict[Cell, dict[int | None, list[Run]]]:
        """Return the runs that it is taken from, by cell and by what they pair by.

        They are timing runs, paired by round, for a measure of time of a group that has some; else
        runs that were trained as a whole, paired by seed, if there are any.
        """
        found: dict[Cell, dict[int | None, list[Run]]] = {cell: {} for cell in group.cells}
        for run in (group.timing if self.of_time else group.training) or group.runs:
            found[run.cell].setdefault(run.place, []).append(run)
        return found

    def values(self, group: RunGroup) -> dict[Cell, dict[int, float]]:
        """Return its values by cell and seed or round, without the cells that have none.

        Of several runs it is the mean, as of those of a seed.
        """
        found: dict[Cell, dict[int, float]] = {}
        for cell, pairs in self.sources(group).items():
            for key, runs in pairs.items():
                values = [finite(self.value(run)) for run in runs if run.ok]
                known = [value for value in values if value is not None]
                if known and key is not None:
                    found.setdefault(cell, {})[key] = fmean(known)
        return found

    def estimated(self, known: Mapping[int, float]) -> Estimate:
        """The mean of its values with their spread; of a rate that of the mean seconds."""
        found = estimate(known)
        is_rate = self.of_time and self.better == "more" and min(known.values()) > 0
        return replace(found, mean=harmonic_mean([*known.values()])) if is_rate else found


SECONDS = Measure(
    "seconds",
    "Seconds per epoch",
    "s",
    "less",
    lambda run: (
        None if (took := run.counted_seconds) is None or not run.epochs else took / run.epochs
    ),
    of_time=True,
)
THROUGHPUT = Measure(
    "throughput", "Images per second", "images/s", "more", lambda run: run.throughput, of_time=True
)


def of_throughput(runs: Iterable[Run]) -> Measure:
    """Return the measure of throughput in what these runs count: images, rows, tokens.

    Of images if they count different things.
    """
    said = {run.counting for run in runs if run.ok}
    (counted,) = said if len(said) == 1 else {IMAGES}
    if counted == IMAGES:
        return THROUGHPUT

    def value(run: Run) -> float | None:
        return None if run.throughput is None else run.throughput * counted.per_example

    name = counted.name
    title = f"{name.capitalize()} per second"
    return replace(THROUGHPUT, title=title, value=value, unit=f"{name}/s")


BYTES = Measure(
    "memory", "Peak memory", "bytes", "less", lambda run: sum(run.peak_memory_bytes) or None
)
SCORE_KEY = "score"  # the key of the task's score, whatever the task calls it
TO_TARGET = "to_target"  # the key of the measure that is made for a target
FIGURE = "figure: "  # begins the key of a further figure of the task


@functools.cache
def of_score(score: Score) -> Measure:
    """Return the measure of the task's score on the test set; in percent if it is a share."""
    return Measure(
        SCORE_KEY,
        f"Test {score.name}",
        score.mark,
        score.better,
        lambda run: None if run.score is None else score.scale * run.score,
    )


def of_figures(runs: Iterable[Run]) -> list[Measure]:
    """Return a measure for each of the first MAX_FIGURES further figures that tasks report."""
    kinds: dict[str, Mapping[str, str]] = {}
    for run in runs:
        if run.ok:
            kinds.update({name: run.figures.get(name, {}) for name in run.scores})
    return [_figure(name, kind) for name, kind in list(kinds.items())[:MAX_FIGURES]]


def _figure(name: str, said: Mapping[str, str]) -> Measure:
    """The measure of a figure, of which anybody may have `said` what it is."""
    better = said.get("better")
    known = better if better in ("more", "less") else ""
    kind = Score(said.get("name") or name, said.get("unit", ""), known)
    return Measure(
        f"{FIGURE}{name}",
        kind.name,
        kind.mark,
        kind.better,
        lambda run: None if (value := finite(run.scores.get(name))) is None else kind.scale * value,
    )


def target_text(target: float, score: Score) -> str:
    """Return a target score in words: `97.50 % test accuracy`, `a test RMSE of 54.2 m`."""
    if score.unit == SHARE:
        return f"{target:.2f} % test {score.name}"
    return f"a test {score.name} of {score.text(target)}"


def to_target(target: float, points: Iterable[Point], score: Score, of: str = "seconds") -> Measure:
    """Return the measure of the inner seconds until an evaluation first reaches `target`.

    Nothing is interpolated: the time is that of an evaluation. A run that never reaches the target
    has no value. target: as the report shows the score, a share in percent. points: those of a run
    in order of time. of: the field of a point, epoch for epochs instead.
    """
    reached: dict[str, float] = {}
    for point in points:
        value = getattr(point, of)
        if value is not None and not score.beats(target, score.scale * point.score):
            reached.setdefault(point.folder, value)
    title = f"Time to {target_text(target, score)}"
    return Measure(TO_TARGET, title, "s", "less", lambda run: reached.get(run.folder))
