"""Looks up the verdict on two cells in either order."""

from __future__ import annotations

from ninefold.stats.verdicts import OPEN, Comparison, Name

Ratio = tuple[float, float | None, float | None]  # ratio, low and high end of its interval


class Pairs:
    """The verdicts on pairs of cells, in either order."""

    def __init__(self, comparison: Comparison) -> None:
        self._pairs = {(pair.first, pair.second): pair for pair in comparison.seconds}

    def verdict(self, first: Name, second: Name) -> str:
        """Return how `second` compares with `first`: see `verdicts.Pair`."""
        if first == second:
            return "tie"
        if pair := self._pairs.get((first, second)):
            return str(pair.verdict)
        if pair := self._pairs.get((second, first)):
            turned = {"faster": "slower", "slower": "faster"}
            return turned.get(pair.verdict, str(pair.verdict))
        return OPEN

    def ratio(self, first: Name, second: Name) -> Ratio | None:
        """Return the ratio second/first and its interval, None where it is not known."""
        if (pair := self._pairs.get((first, second))) and pair.estimate is not None:
            return pair.estimate, pair.low, pair.high
        if (pair := self._pairs.get((second, first))) and pair.estimate:
            low = 1 / pair.high if pair.high else None
            high = 1 / pair.low if pair.low else None
            return 1 / pair.estimate, low, high
        return None
