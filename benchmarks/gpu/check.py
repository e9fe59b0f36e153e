"""Checks, what is expected of their figures, and the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.session import Session

# By name: a number, a text, a boolean, a list, or {median, low, high} of turns; None: not found.
Figures = dict[str, Any]

AS_EXPECTED, NOT, NOT_MEASURED, NO_BOUND = "as expected", "not as expected", "not measured", "–"
NEEDS = "needs"


@dataclass(frozen=True)
class Expectation:
    """A figure of a check, and what it should be. Without a bound it is for the table only.

    figure: its name.
    low, high: bounds of a number. among: the values allowed.
    means: what follows if it is something else.
    gpus: that it takes to be judged; 0: it holds in a dry run too.
    unit: of a number.
    """

    figure: str
    low: float | None = None
    high: float | None = None
    among: tuple[Any, ...] = ()
    means: str = "see the log"
    gpus: int = 1
    unit: str = ""

    @property
    def bound(self) -> str:
        """What is allowed, in words."""
        if self.among:
            return " or ".join(shown(value) for value in self.among)
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"at least {self.low:g}"
        return NO_BOUND if self.high is None else f"at most {self.high:g}"

    def admits(self, value: Any) -> bool:
        """Whether a figure is as expected; of turns the median counts."""
        value = value["median"] if isinstance(value, dict) else value
        if self.among:
            return value in self.among
        above = self.low is None or value >= self.low
        return above and (self.high is None or value <= self.high)

    def verdict(self, figures: Mapping[str, Any], gpus: int) -> str:
        """Whether `figures`, found with `gpus` GPUs, are as expected, and else what it means."""
        if gpus < self.gpus:
            return needed(self.gpus)
        if self.bound == NO_BOUND:
            return NO_BOUND
        value = figures.get(self.figure)
        if value is None:
            return NOT_MEASURED
        return AS_EXPECTED if self.admits(value) else f"{NOT}: {self.means}"


@dataclass(frozen=True)
class Check:
    """A question that takes a GPU to answer.

    name: on the command line, after that of its part.
    asks: the question.
    find: finds the figures. If it raises, the check is not done and will be repeated.
    expects: of its figures.
    seconds: that it takes on one H200, as predicted: none begins that a part has no time for.
    gpus: without so many it is not run; 0: in a dry run it is run at tiny size.
    """

    name: str
    asks: str
    find: Callable[[Session], Figures]
    expects: Sequence[Expectation]
    seconds: float
    gpus: int = 0


def needed(gpus: int) -> str:
    return f"{NEEDS} a GPU" if gpus == 1 else f"{NEEDS} {gpus} GPUs"


def ends_with(*codes: int, means: str = "see the log", gpus: int = 0) -> Expectation:
    """The exit code of a check's command, or the first bad one of several."""
    return Expectation("exit code", among=codes or (0,), means=means, gpus=gpus)


def first_bad(*codes: int) -> int:
    """The first of some exit codes that is not 0; 0 if there is none."""
    return next(filter(None, codes), 0)


def shown(value: Any, unit: str = "") -> str:
    """A figure as tables show it."""
    if value is None:
        return NO_BOUND
    if isinstance(value, dict):
        return f"{shown(value['median'], unit)} [{shown(value['low'])}, {shown(value['high'])}]"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        value = f"{value:.3f}" if 0.05 <= abs(value) < 100 else f"{value:.4g}"
    if isinstance(value, list):
        value = ", ".join(map(str, value)) or "none"
    return f"{value} {unit}".strip()
