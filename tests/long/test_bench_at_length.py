"""Bench on simulated commands whose times are known; the figures of benchmarks/LOG.md.

`python -m pytest tests/long -m '' -s -k bench` prints them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from ninefold.bench.contestant import Command
from ninefold.bench.engine import TURN, TURN_OF_SEVERAL, WARM_UP_SECONDS, Found, budget_of
from ninefold.stats.verdicts import UNDECIDED
from ninefold.tournament.contestant import Contestant, Entries, Pace, WarmUp
from ninefold.tournament.plan import Turn
from ninefold.tournament.rounds import Tournament
from ninefold.tournament.rule import Look
from tests.long.test_statistics_at_length import say

pytestmark = pytest.mark.slow
STEP, STUDIES, MINUTES = 0.01, 150, 2.0


@dataclass(frozen=True)
class Noise:
    """start: seconds of one. turn, process: how much they vary, as the sd of a logarithm."""

    start: float
    turn: float
    process: float
    several: bool = False


class Simulated(Entries):
    """Commands on a clock that only they move. slow: how many times as long each one's step takes.

    said: the verdicts on each pair, at every look.
    """

    names: Sequence[str] = ()

    def __init__(self, slow: Sequence[float], noise: Noise, number: int) -> None:
        self.names = [chr(ord("A") + n) for n in range(len(slow))]
        self.slow, self.noise = dict(zip(self.names, slow, strict=True)), noise
        self.rng, self.now, self.done = np.random.default_rng([1, number]), 0.0, 0
        self.said = list[dict[tuple[str, str], str]]()
        commands = [Command("true", name) for name in self.names]
        self.found = Found(commands, MINUTES, same=0.02, by="time", apart=False, allowed=None)
        self.found.told["A"] = {"world": 1 + noise.several}
        budget = budget_of(60 * MINUTES)
        self.made = Tournament(self, budget, self.look, seed=str(number), clock=lambda: self.now)
        self.found.log, self.found.looks = self.made.log, self.made.looks
        self.made.run()

    def look(self) -> Look:
        enough = self.found.is_enough()
        pairs = self.found.times().pairs
        self.said.append({(pair.first, pair.second): pair.verdict for pair in pairs})
        return Look(enough)

    def start(self, left: Sequence[str], number: int) -> Sequence[Contestant]:
        self.now += (self.noise.start + WARM_UP_SECONDS) * len(left)
        round_ = self.rng.normal(0, 0.03)
        return [Process(name, self, self.rng.normal(round_, self.noise.process)) for name in left]

    def to_stretch(self, alive: Sequence[str]) -> Sequence[str]:
        return alive

    def round_ended(self, number: int) -> None:
        self.done = self.found.rounds = number + 1

    @property
    def false(self) -> bool:
        """Whether a verdict was false, at any look."""
        return any(
            verdict not in (*self.true(first, second), *UNDECIDED)
            for said in self.said
            for (first, second), verdict in said.items()
        )

    def true(self, first: str, second: str) -> Sequence[str]:
        """The verdicts on a pair that are true."""
        times = self.slow[second] / self.slow[first]
        near = ["tie"] if abs(math.log(times)) <= math.log(1.02) else []
        return near if times == 1 else [*near, "slower" if times > 1 else "faster"]


class Process:
    def __init__(self, name: str, of: Simulated, effect: float) -> None:
        self.name, self._of = name, of
        self.several, self.processes = of.noise.several, list[int]()
        self.turn_seconds = TURN_OF_SEVERAL if self.several else TURN
        self._step = STEP * of.slow[name] * math.exp(effect)

    def warm_up(self, known: Pace | None) -> WarmUp:
        yield from ()
        return Pace(self._step, self._step)

    def turn(self, turn: Turn) -> float:
        noise = self._of.rng.standard_t(4) / math.sqrt(2) * self._of.noise.turn
        seconds = self._step * math.exp(min(max(noise, -0.4), 1.0))
        self._of.now += turn.steps * seconds
        return float(seconds)

    def end(self, turns: object, stretch: float | None) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("noise", [
    Noise(2.0, 0.05, 0.01), Noise(2.0, 0.12, 0.01), Noise(3.0, 0.08, 0.03),
    Noise(3.0, 0.08, 0.07, several=True),
])  # fmt: skip
@pytest.mark.parametrize("slow", [(1, 1), (1, 1, 1.05)])
def test_a_bench_of_two_minutes_has_a_false_verdict_in_at_most_5_percent(
    noise: Noise, slow: Sequence[float]
) -> None:
    benches = [Simulated(slow, noise, number) for number in range(STUDIES)]
    last = [bench.said[-1] for bench in benches]
    half = [
        math.log(pair.high / pair.low) / 2
        for bench in benches
        for pair in bench.found.times().pairs[:1]
        if pair.low and pair.high
    ]
    say(
        f"bench of {len(slow)}, {noise}",
        false=float(np.mean([bench.false for bench in benches])),
        copies_tie=float(np.mean([said["A", "B"] == "tie" for said in last])),
        planted_found=float(np.mean([said.get(("A", "C")) == "slower" for said in last])),
        half_width=float(np.median(half)),
    )
    print(
        f"  rounds {np.mean([bench.done for bench in benches]):.1f}, "
        f"{np.mean([bench.made.elapsed for bench in benches]):.0f} s"
    )
    assert np.mean([bench.false for bench in benches]) <= 0.05
