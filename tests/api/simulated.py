"""Steps of which the truth is known, on a clock that only they move."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from unittest.mock import patch

import numpy as np

from ninefold.answer.times import Times
from ninefold.api.session import Session
from ninefold.stats.verdicts import Settings
from ninefold.tournament.plan import Turn

SETTINGS = Settings()


class Nobody:
    """Other programs that use nothing."""

    def __init__(self, processes: Sequence[int]) -> None:
        pass

    def share(self, processes: Sequence[int]) -> None:
        return None


@dataclass
class Machine:
    """A machine on which time passes only while steps run.

    slow: by what factor everything is slower at a moment, in seconds.
    noise: standard deviation of the time of a step, relative; of the last step `last` times it.
    late: steps of the last are delayed by this share in the mean, each by another time.
    """

    seed: int
    slow: Callable[[float], float] = lambda now: 1.0
    noise: float = 0.05
    last: float = 1.0
    late: float = 0.0
    now: float = 0.0
    calls: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(self.seed)

    def step(self, name: str, seconds: Callable[[int], float], last: bool) -> None:
        call = self.calls[name] = self.calls.get(name, 0) + 1
        took = seconds(call) * self.slow(self.now)
        noise = (self.last if last else 1.0) * self.noise
        took *= math.exp(noise * self.draw.standard_normal() - noise**2 / 2)  # 1 in the mean
        if last and self.late:
            took *= (1 + self.late * self.draw.exponential()) / (1 + self.late)
        self.now += took


def constant(seconds: float) -> Callable[[int], float]:
    return lambda call: seconds


def switching(seed: int, busy: float, idle: float) -> Callable[[float], float]:
    """A neighbor that is busy and idle for so many seconds in the mean: half of the speed."""
    draw = np.random.default_rng(seed)
    state = {"until": 0.0, "busy": False}

    def slow(now: float) -> float:
        while now >= state["until"]:
            state["busy"] = not state["busy"]
            state["until"] += draw.exponential(busy if state["busy"] else idle)
        return 2.0 if state["busy"] else 1.0

    return slow


def timed(
    machine: Machine, steps: Mapping[str, Callable[[int], float]], minutes: float = 1.0,
    settings: Settings = SETTINGS,
) -> Times:  # fmt: skip
    """What `time_steps` would find."""
    last = list(steps)[-1]
    calls = {
        name: partial(machine.step, name, seconds, name == last) for name, seconds in steps.items()
    }
    session = Session(
        list(steps),
        minutes=minutes,
        turn=0.1,
        settings=settings,
        show=False,
        clock=lambda: machine.now,
        seed=str(machine.seed),
    )

    def take(turn: Turn) -> float:
        for _ in range(turn.lead):
            calls[turn.name]()
        began = machine.now
        for _ in range(turn.timed):
            calls[turn.name]()
        return (machine.now - began) / turn.timed

    with closing(session), patch("ninefold.tournament.rounds.NeighborLoad", Nobody):
        session.play(dict.fromkeys(steps, take))
        return session.times()
