"""The part of a report that is about numbers of processes, as typed objects; see `tree`."""

from __future__ import annotations

from dataclasses import dataclass

from ninefold.report.stats.verdicts import Estimate


@dataclass(frozen=True)
class ScalingPoint:
    """One number of processes, measured.

    oversubscribed: whether there were fewer cores or GPUs; then it has no efficiency.
    verdict: on its time, against the series' base; None of the base itself.
    speedup: over the base, with the interval of their pair; efficiency: its share of the ideal.
    step_seconds: of a training step, the mean; the other seconds are of the cost model: a step
        takes at least `least` and at most `most`. None where not everything was measured.
    """

    processes: int
    cell: str
    oversubscribed: bool
    verdict: str | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    efficiency: float | None
    efficiency_low: float | None
    efficiency_high: float | None
    step_seconds: float | None
    compute_seconds: float | None
    communication_seconds: float | None
    least_seconds: float | None
    most_seconds: float | None


@dataclass(frozen=True)
class LinkFigures:
    """Latency and speed of the link between so many processes, over the runs that timed it."""

    processes: int
    alpha_seconds: Estimate
    bytes_per_second: Estimate


@dataclass(frozen=True)
class Predicted:
    """What the cost model predicts of a number of processes that was not measured."""

    processes: int
    least_seconds: float
    most_seconds: float
    speedup_low: float
    speedup_high: float
    efficiency_low: float
    efficiency_high: float


@dataclass(frozen=True)
class Missed:
    """From how many processes on an efficiency is predicted to be missed; None: of none.

    soonest: if nothing overlaps, at the bad ends of the link's intervals; latest: the reverse.
    """

    efficiency: float
    soonest: int | None
    latest: int | None


@dataclass(frozen=True)
class Series:
    """The cells of one strategy and precision, by their number of processes.

    base: the cell that speed-ups are over.
    enough: the processes from which on each larger measured number is shown not to be faster.
    bound: what takes longest in a step of the most processes, by the cost model.
    said: what follows, in sentences.
    """

    parallel: str
    amp: str
    base: str
    points: list[ScalingPoint]
    enough: int | None
    bound: str | None
    link: LinkFigures | None
    predicted: list[Predicted]
    missed: list[Missed]
    said: list[str]


@dataclass(frozen=True)
class Scaling:
    """How cells scale. kind: `strong`, one global batch; `weak`, a batch for each process."""

    kind: str
    series: list[Series]
