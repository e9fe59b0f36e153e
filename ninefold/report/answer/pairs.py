"""Looks up the verdict on two cells in either order."""

from __future__ import annotations

import math
from dataclasses import replace

from ninefold.report.answer.evidence import Evidence
from ninefold.report.stats.measures import BYTES, SECONDS
from ninefold.stats.differences import EQUAL, NOTHING, Values
from ninefold.stats.statistics import compare
from ninefold.stats.verdicts import OPEN, Comparison, Name, Pair, Settings

Ratio = tuple[float, float | None, float | None]  # ratio, low and high end of its interval


class Pairs:
    """The verdicts on pairs of cells, in either order.

    held: whether the controls held that these verdicts depend on.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._pairs = {(pair.first, pair.second): pair for pair in comparison.seconds}
        self.held = comparison.held

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

    def needed(self, first: Name, second: Name) -> int | None:
        """Return how many seeds in all would settle it, where that is known."""
        pair = self._pairs.get((first, second)) or self._pairs.get((second, first))
        return pair.needed if pair else None


def pairs_of(evidence: Evidence, key: str, values: Values) -> Pairs:
    """Return the verdicts on the measure `key`; the A/A controls are about times only."""
    settings = evidence.settings
    if key == SECONDS.key:
        return Pairs(evidence.comparison)
    if key != BYTES.key:
        controls, copies = evidence.controls, evidence.alike
        hosts = evidence.hosts(evidence.to_target) if evidence.to_target else None
        return Pairs(compare(values, evidence.accuracy, settings, controls, copies, hosts))
    found = compare(values, evidence.accuracy, settings)
    return Pairs(replace(found, seconds=[_exact(pair, values, settings) for pair in found.seconds]))


def _exact(pair: Pair, values: Values, settings: Settings) -> Pair:
    """Judge a ratio of memory that is the same in every round, as a GPU's peak is to the byte."""
    first, second = values[pair.first], values[pair.second]
    seen = {second[key] / first[key] for key in first if key in second}
    if pair.estimate is None or pair.n < EQUAL or max(seen) - min(seen) > NOTHING:
        return pair
    same = abs(math.log(pair.estimate)) <= math.log1p(settings.same)
    verdict = "tie" if same else "slower" if pair.estimate > 1 else "faster"
    return replace(pair, low=None, high=None, p=None, adjusted=None, verdict=verdict, needed=None)
