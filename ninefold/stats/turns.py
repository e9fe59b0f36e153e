"""Turns that were taken, and the number that is made of them: the seconds of a step.

`TurnLog` holds which turns there were and how long each took; `step_seconds` is the estimator.
Studies, `ninefold.time_steps` and reports use both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from ninefold.stats.verdicts import Name


@dataclass(frozen=True, kw_only=True)
class TakenTurn:
    """A turn that was taken.

    name: of what trained. round: its number. turn: how many turns it had in this round before.
    order: how many turns there were before, of any name. seconds: per step. steps: that were timed.
    """

    name: Name
    round: int
    turn: int
    order: int
    seconds: float
    steps: int


class TurnLog:
    """The turns that were taken, in order."""

    def __init__(self) -> None:
        self.turns: list[TakenTurn] = []
        self._counts: Counter[tuple[Name, int]] = Counter()

    def add(self, name: Name, number: int, seconds: float, steps: int) -> None:
        """Note a turn. number: of its round. seconds: per step. steps: that were timed."""
        turn = self._counts[name, number]
        self._counts[name, number] += 1
        self.turns.append(
            TakenTurn(
                name=name,
                round=number,
                turn=turn,
                order=len(self.turns),
                seconds=seconds,
                steps=steps,
            )
        )


def step_seconds(turns: Iterable[TakenTurn]) -> dict[Name, dict[int, float]]:
    """Return the seconds of a step by name and round: the mean of the turns, none left out."""
    found: dict[Name, dict[int, list[float]]] = {}
    for turn in turns:
        found.setdefault(turn.name, {}).setdefault(turn.round, []).append(turn.seconds)
    return {name: {n: fmean(of) for n, of in rounds.items()} for name, rounds in found.items()}
