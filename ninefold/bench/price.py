"""What steps cost in money: `--price`, of an hour of a GPU, or of a machine without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ninefold.report.stats.measures import HOUR
from ninefold.stats.verdicts import UNDECIDED
from ninefold.tournament.times import Times

Told = Mapping[str, Mapping[str, Any]]  # what the hook said of each command


class Price(NamedTuple):
    """Of an hour of a GPU, or of a machine without one, and the steps that it is told for."""

    hour: float
    steps: int


@dataclass(frozen=True)
class Cost:
    """Money for so many steps of a command. low, high: by the interval of its speedup."""

    money: float
    low: float | None = None
    high: float | None = None

    def of(self, share: float) -> Cost:
        """The cost of a share of the steps."""
        low, high = (each and share * each for each in (self.low, self.high))
        return Cost(share * self.money, low, high)

    def __str__(self) -> str:
        between = "" if self.low is None else f" ({self.low:.3g} to {self.high:.3g})"
        return f"{self.money:.3g}{between}"


def costs(times: Times, told: Told, price: Price) -> dict[str, Cost]:
    """Return by command what it costs to train on the examples of `price.steps` steps of the first.

    told: what the hook said of each command. The cost of the first command follows from its mean
    seconds of a step, that of another from its speedup over the first. Money is in the currency of
    the price.
    """
    base = times.baseline
    if base not in times.seconds:
        return {}
    one = price.hour / HOUR * price.steps * times.seconds[base]
    made = {base: Cost(one * devices(told[base]))}
    for pair in times.against_baseline:
        if pair.speedup and pair.low and pair.high:
            money = one * devices(told[name := str(pair.second)])
            made[name] = Cost(money / pair.speedup, money / pair.high, money / pair.low)
    return made


def devices(said: Mapping[str, Any]) -> int:
    """Count the GPUs that a command takes; 1 where it takes none."""
    return said.get("gpus") or 1


def sentences(
    times: Times, told: Told, price: Price, examples: Mapping[str, float]
) -> Iterator[str]:
    """What the steps cost; and which command is the cheapest, where that is not the fastest.

    examples: how many times as many a command's step takes as one of the first.
    """
    known = costs(times, told, price)
    if not known:
        return
    per = "a GPU" if any(told[name].get("cuda") for name in known) else "this machine"
    yield f"At {price.hour:g} for an hour of {per}, {price.steps:,} steps cost {in_each(known)}."
    of_epochs = dict[str, Cost]()
    for name, cost in known.items():
        if epoch := told[name].get("epoch"):
            share = epoch * examples.get(name, 1) / price.steps
            of_epochs[f"{name} ({epoch:,} steps)"] = cost.of(share)
    if of_epochs:
        yield f"An epoch costs {in_each(of_epochs)}."
    cheapest, best = min(known, key=lambda name: known[name].money), times.best
    pair = times.pair(best, cheapest)
    if best is None or not times.settled or pair is None or pair.verdict in UNDECIDED:
        return
    if pair.low and pair.low * devices(told[best]) / devices(told[cheapest]) > 1:
        yield f"{best} is the fastest, and {cheapest} the cheapest."


def in_each(known: Mapping[str, Cost]) -> str:
    """What each command costs."""
    return ", ".join(f"{cost} in {name}" for name, cost in known.items())
