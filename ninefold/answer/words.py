"""Words of an answer: how two contestants compare, what is excluded, what disturbed the turns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ninefold.stats.verdicts import UNDECIDED, Pair, Settings
from ninefold.tournament.taken import Counted

TOLD = 0.1  # share of the turns from which on it is said that they were left out
NOT_KNOWN = "not known yet"


def clause(pair: Pair, settings: Settings, what: str = "") -> str:
    """How the second of a pair compares with the first, and how sure that is; what: as below."""
    number = f"{shown(pair.speedup)}; " if pair.verdict == "tie" else ""
    sure = f"{settings.confidence:g} % interval {interval(pair)}"
    return f"{compared(pair, settings.same, what)} ({number}{sure})"


def excluded(pair: Pair) -> str:
    """Which differences the interval of a pair excludes."""
    if pair.low is None or pair.high is None:
        return "no slow-down is excluded"
    ends = (("slow-down", 100 / pair.low - 100), ("gain", 100 * pair.high - 100))
    said = [f"a {what} above {math.ceil(round(of, 6))} %" for what, of in ends if of > 0]
    return f"{' and '.join(said)} {'are' if len(said) > 1 else 'is'} excluded"


def compared(pair: Pair, same: float, what: str = "") -> str:
    """How the second of a pair compares with the first. what: in which else than time."""
    base, other, number = pair.first, pair.second, f"{shown(pair.speedup)} times as fast"
    if pair.verdict == "tie":
        return f"{other} and {base} are equally fast{what} within {100 * same:g} %"
    if pair.verdict in UNDECIDED:
        found = number if pair.low is None else f"{number}; {excluded(pair)}"
        return f"{other} is not shown to differ from {base}{what}: {found}"
    if pair.verdict == "slower":
        return f"{other} is slower than {base}: {number}{what}"
    return f"{other} is {number} as {base}{what}"


def disturbed(counted: Counted, busy: float | None, told: float = TOLD) -> Iterator[str]:
    """What disturbed the turns, if it did. told: the share left out from which on it is said."""
    if counted.busy:
        used = "" if busy is None else f" (other programs used {100 * busy:.0f} % of the CPU time)"
        yield f"Most turns were disturbed{used}: these are times under that load."
    elif (left := sum(counted.left_out.values())) >= told:
        yield f"{100 * left:.0f} % of the turns were disturbed and left out."


def shown(speedup: float | None) -> str:
    """A speedup with three decimals, or four digits."""
    return NOT_KNOWN if speedup is None else f"{speedup:.3f}" if speedup < 10 else f"{speedup:.4g}"


def percent(chance: float) -> str:
    """A confidence in percent, rounded down."""
    return "more than 99.9 %" if chance > 0.999 else f"{math.floor(1000 * chance) / 10:g} %"


def interval(pair: Pair) -> str:
    """The interval of a speedup in words."""
    if pair.low is None or pair.high is None:
        return NOT_KNOWN
    return f"{shown(pair.low)} to {shown(pair.high)}"


def content(pair: Pair) -> dict[str, Any]:
    """A pair as JSON has it."""
    return {
        "first": str(pair.first),
        "second": str(pair.second),
        "speedup": pair.speedup,
        "low": pair.low,
        "high": pair.high,
        "rounds": pair.rounds,
        "verdict": pair.verdict,
    }
