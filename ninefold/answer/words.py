"""Words of an answer: how two contestants compare, what is excluded, what disturbed the turns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ninefold.numbers import NOT_KNOWN, between
from ninefold.stats.verdicts import UNDECIDED, Pair, Settings
from ninefold.tournament.taken import Counted

TOLD = 0.1  # share of the turns from which on it is said that they were left out
OPEN_LEAD = "Not decided"


def clause(pair: Pair, settings: Settings, what: str = "") -> str:
    """How the second of a pair compares with the first, and how sure that is.

    what: in which else than time.
    """
    has_number = pair.verdict in ("faster", "slower")
    number = "" if has_number else f"{shown(pair.speedup)}; "
    sure = f"{settings.confidence:g} % interval {interval(pair)}"
    return f"{compared(pair, settings.same, what)} ({number}{sure})"


def compared(pair: Pair, same: float, what: str = "") -> str:
    """How the second of a pair compares with the first. what: as above."""
    base, other, number = pair.first, pair.second, f"{shown(pair.speedup)} times as fast"
    if pair.verdict == "tie":
        return f"{other} and {base} are equally fast{what} within {100 * same:g} %"
    if pair.verdict in UNDECIDED:
        return f"{OPEN_LEAD}: {may_be(pair)}{what}"
    if pair.verdict == "slower":
        return f"{other} is slower than {base}: {number}{what}"
    return f"{other} is {number} as {base}{what}"


def may_be(pair: Pair) -> str:
    """What the interval of a pair leaves open: `B may be up to 5 % slower or 13 % faster than A`.

    What is 5 % slower takes 5 % longer.
    """
    other, base = pair.second, pair.first
    if pair.low is None or pair.high is None:
        return f"how {other} compares with {base} is not known yet"
    ends = ((100 / pair.low - 100, "slower"), (100 * pair.high - 100, "faster"))
    said = [f"{math.ceil(round(of, 6))} % {word}" for of, word in ends if of > 0]
    if not said:
        return f"{other} may be as fast as {base}"
    return f"{other} may be up to {' or '.join(said)} than {base}"


def speedup(pair: Pair, settings: Settings) -> str:
    """How many times as fast the second of a pair is as the first, with its interval."""
    sure = f"{settings.confidence:g} % interval {interval(pair)}"
    return f"{shown(pair.speedup)} times as fast as {pair.first} ({sure})"


def disturbed(turns: Counted, told: float = TOLD) -> Iterator[str]:
    """What disturbed the turns, if it did. told: the share left out from which on it is said."""
    used = f"other programs used {100 * (turns.others or 0.0):.0f} % of the CPU, in most turns"
    if turns.swamped:
        yield f"These times say little about the machine alone: {used}."
    elif turns.busy:
        yield f"These are times under load: {used}."
    elif turns.left_out >= told:
        yield f"{100 * turns.left_out:.0f} % of the turns were disturbed and left out."


def shown(speedup: float | None) -> str:
    """A speedup with three decimals, or four digits."""
    return NOT_KNOWN if speedup is None else f"{speedup:.3f}" if speedup < 10 else f"{speedup:.4g}"


def percent(chance: float) -> str:
    """A confidence in percent, rounded down."""
    return "more than 99.9 %" if chance > 0.999 else f"{math.floor(1000 * chance) / 10:g} %"


def interval(pair: Pair) -> str:
    """The interval of a speedup in words."""
    return between(pair.low, pair.high, shown, NOT_KNOWN)


def content(pair: Pair) -> dict[str, Any]:
    """A pair as JSON has it."""
    known = {name: getattr(pair, name) for name in ("speedup", "low", "high", "rounds", "verdict")}
    return {"first": str(pair.first), "second": str(pair.second), **known}
