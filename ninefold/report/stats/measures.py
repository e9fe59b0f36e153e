"""The measures of a run that a report shows: time, throughput, scores, memory, energy."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from ninefold.report.data.cells import Group
from ninefold.report.data.curves import Point
from ninefold.report.data.runs import Run, finite
from ninefold.result import SCORE, UNITS

MOST_FIGURES = 20  # further figures of a task that are shown


def ratio(value: float, baseline: float) -> float:
    """Return value / baseline, nan if the baseline is 0."""
    return value / baseline if baseline else math.nan


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean, nan if a ratio is not above 0."""
    return math.exp(fmean(map(math.log, ratios))) if all(x > 0 for x in ratios) else math.nan


@dataclass(frozen=True)
class Measure:
    """One measure of a run.

    value: of a run, None if unknown
    key, unit, better: as in report.json; better is "less", "more" or "" for not known
    paired: compares a value with none-fp32's of the same seed
    middle: its mean over the seeds
    why_not: the reason given if no run has a value
    learned: whether it is of the trained model, which the seed determines and the time does not
    of_time: whether it is of the time of a step, which timing runs tell better than training runs
    """

    title: str
    about: str
    value: Callable[[Run], float | None]
    key: str
    unit: str
    better: str = "less"
    paired: Callable[[float, float], float] = ratio
    why_not: str = "No run recorded it."
    middle: Callable[[Sequence[float]], float] = geometric_mean
    learned: bool = False
    of_time: bool = False

    @property
    def depends_on_hosts(self) -> bool:
        """Whether the speed of the hosts is in it, so that only runs on the same ones compare."""
        return self.of_time or self.key == TO_TARGET

    def source(self, group: Group) -> Sequence[Run]:
        """Return the runs of a group that it is taken from, if there are any of that kind.

        They are timing runs for a measure of time, runs that were trained as a whole for others.
        """
        return (group.timing if self.of_time else group.training) or group.runs


def _seconds_per_epoch(run: Run) -> float | None:
    if run.train_seconds is None or not run.epochs:
        return None
    return run.train_seconds / run.epochs


def _percent(run: Run) -> float | None:
    return None if run.accuracy is None else 100 * run.accuracy


def _difference(value: float, baseline: float) -> float:
    return value - baseline


def _joules_per_epoch(run: Run) -> float | None:
    return run.energy_joules / run.epochs if run.energy_joules and run.epochs else None


SECONDS = Measure(
    "Seconds per epoch",
    "Inner clock, `train_seconds / epochs`: training steps only, without evaluation, checkpoints "
    "and logging.",
    _seconds_per_epoch,
    key="seconds",
    unit="s",
    of_time=True,
)
THROUGHPUT = Measure(
    "Images per second",
    "Training images over the inner clock, all devices together.",
    lambda run: run.images_per_second,
    key="throughput",
    unit="images/s",
    better="more",
    of_time=True,
)
BYTES = Measure(
    "Peak memory",
    "Sum over devices; on a CPU the peak resident memory of the processes.",
    lambda run: sum(run.peak_memory_bytes) or None,
    key="memory",
    unit="bytes",
)
ENERGY = Measure(
    "Energy per epoch",
    "Of all devices while they train, as NVML counts it for GPUs and RAPL for CPUs.",
    _joules_per_epoch,
    key="energy",
    unit="J",
    why_not="Neither NVML nor RAPL gave an energy here.",
    of_time=True,
)
OF_TIME = SECONDS.key, THROUGHPUT.key, ENERGY.key  # the measures of the time of a step
SCORE_KEY = "accuracy"  # the key of the task's score, whatever the task calls it
TO_TARGET = "to_target"  # the key of the measure that is made for a target


@functools.cache
def of_score(name: str = SCORE) -> Measure:
    """Return the measure of the task's score on the test set, in percent. name: of the score."""
    return Measure(
        f"Test {name}, percent",
        "After the last epoch.",
        _percent,
        key=SCORE_KEY,
        unit="%",
        better="more",
        paired=_difference,
        middle=fmean,
        learned=True,
    )


def of_figures(runs: Iterable[Run]) -> list[Measure]:
    """Return a measure for each further figure that a task reports, named as the figure.

    A name that ends in one of UNITS is of an error in that unit. Any other figure is a share, in
    percent, or a plain number of which nothing is known if a value is not between 0 and 1.
    """
    values: dict[str, list[float]] = {}
    for run in runs:
        for name, value in run.scores.items() if run.ok else ():
            values.setdefault(name, []).extend([] if (known := finite(value)) is None else [known])
    return [_figure(name, found) for name, found in list(values.items())[:MOST_FIGURES]]


def _figure(name: str, values: Sequence[float]) -> Measure:
    title, _, unit = name.rpartition(" ")
    better, factor = "less", 1.0
    if not title or unit not in UNITS:
        title = name
        share = all(0 <= value <= 1 for value in values)
        unit, better, factor = ("%", "more", 100.0) if share else ("", "", 1.0)
    return Measure(
        title,
        "",
        lambda run: None if (value := finite(run.scores.get(name))) is None else factor * value,
        key=f"figure: {name}",
        unit=unit,
        better=better,
        paired=_difference,
        middle=fmean,
        learned=True,
    )


def to_target(target: float, points: Iterable[Point], score: str = SCORE) -> Measure:
    """Return the measure of the inner seconds until an evaluation first reaches `target` percent.

    Nothing is interpolated: the time is that of an evaluation. A run that never reaches the target
    has no value. score: the name of the task's score.
    """
    reached: dict[str, float] = {}
    for point in points:
        if point.seconds is not None and 100 * point.accuracy >= target:
            reached.setdefault(point.folder, point.seconds)
    return Measure(
        f"Seconds to {target:.2f} % test {score}",
        "Inner clock at the first evaluation that reaches it, which is the end of an epoch.",
        lambda run: reached.get(run.folder),
        key=TO_TARGET,
        unit="s",
        why_not="No run reached it, or none recorded when.",
    )
