"""Benches: alternating turns of contestants, bootstrap intervals and verdicts.

A figure is compared only with others of the same round, because a machine's speed drifts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import bootstrap

Array = npt.NDArray[np.float64]
Figures = Mapping[str, Array]
Turns = dict[str, Callable[[], float]]

OURS, CONTROL = "ninefold", "control"


@dataclass(frozen=True)
class Goal:
    """A bound for a row's value; word: "at most" or "at least"."""

    word: str
    bound: float

    def admits(self, value: float) -> bool:
        return value <= self.bound if self.word == "at most" else value >= self.bound

    def __str__(self) -> str:
        return f"{self.word} {self.bound:g}"


def at_most(bound: float) -> Goal:
    return Goal("at most", bound)


def at_least(bound: float) -> Goal:
    return Goal("at least", bound)


@dataclass(frozen=True)
class Row:
    """A line of the table.

    what: the quantity.
    rival: what ours is compared with.
    value: maps the figures of each contestant, float64 [rounds], to the row's value in each round.
    goal: None for a row without a goal.
    unit: of the value; × for a ratio.
    """

    what: str
    rival: str
    value: Callable[[Figures], Array]
    goal: Goal | None = None
    unit: str = "×"


@dataclass(frozen=True)
class Bench:
    """Contestants that take turns in one process, and the rows computed from their figures.

    name: as on the command line.
    conditions: what a turn does, for the record.
    contestants: a context manager that prepares the contestants; its argument says whether ours is
        slowed down on purpose (its rows must then lose). Each contestant is a call that takes a
        turn and returns its figure. OURS has a second turn in each round as the control.
    rows: of the table.
    pairs: rounds by default.
    """

    name: str
    conditions: str
    contestants: Callable[[bool], AbstractContextManager[Turns]]
    rows: Sequence[Row]
    pairs: int = 10


@dataclass(frozen=True)
class Estimate:
    """The median over the rounds, and its 95 % bootstrap interval."""

    median: float
    low: float
    high: float


def ratio(above: str, below: str) -> Callable[[Figures], Array]:
    """The value of a row that divides one contestant's figures by another's."""
    return lambda figures: figures[above] / figures[below]


def take_turns(bench: Bench, pairs: int, handicap: bool) -> dict[str, Array]:
    """Run `pairs` rounds; returns float64 [pairs] for each contestant and the control.

    A first round warms up and does not count. Every other round runs in reverse order, so that
    drift of the machine's speed and effects of the order cancel.
    """
    with bench.contestants(handicap) as turns:
        order = [*turns, CONTROL]
        calls = {**turns, CONTROL: turns[OURS]}
        figures: dict[str, list[float]] = {name: [] for name in order}
        for name in turns:
            turns[name]()
        for number in range(pairs):
            for name in order if number % 2 == 0 else reversed(order):
                figures[name].append(calls[name]())
    return {name: np.array(values) for name, values in figures.items()}


def estimate(values: Array) -> Estimate:
    """The median of `values` with a percentile bootstrap interval (Efron, 1979)."""
    if np.ptp(values) == 0:
        return Estimate(float(values[0]), float(values[0]), float(values[0]))
    drawn = bootstrap(
        (values,), np.median, n_resamples=9999, method="percentile", rng=np.random.default_rng(0)
    )
    low, high = drawn.confidence_interval
    return Estimate(float(np.median(values)), float(low), float(high))


def verdict(found: Estimate, goal: Goal | None, quiet: bool) -> str:
    """Whether a row meets its goal; void if the machine was not quiet."""
    if not quiet:
        return "void"
    if goal is None:
        return "–"
    word = "met" if goal.admits(found.median) else "not met"
    sure = goal.admits(found.low) == goal.admits(found.high)
    return word if sure else f"{word}, within the noise"


def is_quiet(control: Estimate) -> bool:
    """Whether two turns of the same code agree: the interval contains 1."""
    return control.low <= 1 <= control.high
