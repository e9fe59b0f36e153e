"""`Times`: the answer of what took turns, "B is 1.24 times as fast as A", and its words.

Everything is told against a baseline, which is the first unless another is named; a speedup above
1 is faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ninefold.progress import aligned
from ninefold.stats.best import standing
from ninefold.stats.statistics import compare
from ninefold.stats.verdicts import UNDECIDED, Pair, Settings, Timings, Values
from ninefold.tables import data_frame, html_table
from ninefold.tournament.rule import is_clear
from ninefold.tournament.taken import Counted

if TYPE_CHECKING:
    import pandas as pd

TOLD = 0.1  # share of the turns from which on it is said that they were left out
HEADER = ("step", "ms per step", "speedup", "interval", "verdict")
LIKELY = 0.5  # a confidence that is worth a word while nothing is decided
NOT_KNOWN = "not known yet"


@dataclass(frozen=True)
class Times:
    """How long steps of a training take, compared in turns.

    best: the step that is shown to be within `same` of the fastest, `baseline` if it is one of
        these; while none is shown to be, the one with the shortest times so far; None before the
        first complete round
    chance: the confidence, 0 to 1, that `best` is within `same` of the fastest
    settled: whether that is shown, and of each other step whether it is slower or takes the same
    busy: share of the CPU time that other programs used in the mean turn, 0 to 1 (Linux);
        None where it is not known
    sentence: the answer in words, with its caveats
    pairs: of every two steps first, second, speedup (of the second over the first, above 1 is
        faster) with low and high, and verdict
    seconds: of each step, by name: the geometric mean of its rounds, which agrees with the speedups
    rounds: how many rounds were complete
    baseline: the step that the others are told against
    seed: of the orders that were drawn
    """

    best: str | None
    chance: float
    settled: bool
    busy: float | None
    sentence: str
    pairs: tuple[Pair, ...]
    seconds: Mapping[str, float]
    rounds: int
    baseline: str
    _counted: Counted = field(repr=False)
    seed: str = field(default="", repr=False)

    @property
    def known(self) -> bool:
        """Whether it is decided, and the speedups of the fastest are known as closely as matters.

        A large difference is shown after few rounds, which say little of how large it is.
        """
        of_best = [self.pair(self.best, name) for name in self.seconds]
        return self.settled and all(is_clear(pair) for pair in of_best if pair is not None)

    @property
    def against_baseline(self) -> list[Pair]:
        """Each other step compared with the baseline."""
        own = [pair for pair in self.pairs if self.baseline in (pair.first, pair.second)]
        return [pair if pair.first == self.baseline else pair.turned for pair in own]

    def pair(self, first: str | None, second: str) -> Pair | None:
        """The second of two steps compared with the first; None without such a pair."""
        return pair_of(self.pairs, first, second)

    def cells(self, name: str) -> tuple[str, str, str]:
        """What a table says of a step: speedup over the baseline, its interval, the verdict."""
        if name == self.baseline:
            return "1", "", "baseline"
        pair = self.pair(self.baseline, name)
        return ("",) * 3 if pair is None else (shown(pair.speedup), interval(pair), pair.verdict)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each turn: step, and fields of `ninefold.tournament.taken.TakenTurn`."""
        return [
            {"step" if key == "name" else key: value for key, value in vars(turn).items()}
            for turn in self._counted.turns
        ]

    def to_frame(self) -> pd.DataFrame:
        """The rows as a pandas.DataFrame. Raises ConfigError where pandas is not installed."""
        return data_frame(self.rows())

    def __repr__(self) -> str:
        return "\n".join([self.sentence, *aligned([HEADER, *self._table()])])

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.sentence)}</p>{html_table(HEADER, self._table())}"

    def _table(self) -> list[tuple[str, ...]]:
        """A row for each step, as HEADER says."""
        return [
            (name, f"{1000 * seconds:.4g}", *self.cells(name))
            for name, seconds in self.seconds.items()
        ]


def times(
    names: Sequence[str],
    timings: Sequence[Timings],
    counted: Counted,
    settings: Settings,
    caveats: Sequence[str] = (),
) -> Times:
    """Return what is known.

    names: of the steps. timings: at each look. counted: all their turns. `settings.baseline`: see
    `Times`.
    """
    timings = [replace(t, seconds={n: t.seconds.get(n, {}) for n in names}) for t in timings]
    values, comparison = timings[-1].seconds, compare(timings, {}, settings)
    shares = [turn.others for turn in counted.turns if turn.others is not None]
    busy = fmean(shares) if shares else None
    pairs = tuple(comparison.seconds)
    best, chance, settled = None, 0.0, False
    rounds = min(map(len, values.values()))
    if rounds > 0:
        stand = standing(list(values), comparison.looks, list(values))
        near = stand.chance.get(settings.baseline, 0.0) >= 1 - settings.level
        best = settings.baseline if near else stand.lead
        chance = stand.chance[best]
        of_best = [pair_of(pairs, best, name) for name in values if name != best]
        decided = all(pair is not None and pair.verdict not in UNDECIDED for pair in of_best)
        settled = decided and chance >= 1 - settings.level
    baseline = settings.baseline or names[0]
    said = [claim(best, chance, settled, list(values), pairs, baseline, settings, rounds)]
    return Times(
        best,
        chance,
        settled,
        busy,
        " ".join([*said, *caveats, *disturbed(counted, busy)]),
        pairs,
        _means(values, pairs, baseline),
        rounds,
        baseline,
        counted,
    )


def _means(values: Values, pairs: Sequence[Pair], baseline: str) -> Mapping[str, float]:
    """Return the seconds of a step by name, whose ratios are the speedups over the baseline.

    Their geometric mean is that of the rounds, as is what has no speedup over the baseline.
    """
    means = {
        str(name): math.exp(fmean(math.log(each) for each in of.values()))
        for name, of in values.items()
        if of
    }
    found = {name: pair_of(pairs, baseline, name) for name in means}
    over = {name: pair.speedup for name, pair in found.items() if pair and pair.speedup}
    over |= {baseline: 1.0} if baseline in means else {}
    base = math.exp(fmean(math.log(means[name] * over[name]) for name in over)) if over else 1.0
    return {name: base / over[name] if name in over else mean for name, mean in means.items()}


def claim(
    best: str | None,
    chance: float,
    settled: bool,
    names: Sequence[str],
    pairs: Sequence[Pair],
    baseline: str,
    settings: Settings,
    rounds: int,
) -> str:
    """What was shown, and no more: one sentence, with a clause for each step but the baseline."""
    if best is None:
        return (
            f"Which step is the fastest in this process is {NOT_KNOWN}: there was time for "
            f"{rounds} rounds, and it takes more; raise minutes."
        )
    told = [pair for name in names if (pair := pair_of(pairs, baseline, name)) is not None]
    clauses = "; ".join(clause(pair, settings) for pair in told)
    if settled and len(names) == 2:
        return f"In this process {clauses}."
    of_best = [pair_of(pairs, best, name) for name in names]
    verdicts = {pair.verdict for pair in of_best if pair is not None}
    same = f"{100 * settings.same:g} %"
    sure = "more than 99.9" if chance > 0.999 else f"{100 * chance:.1f}"
    if settled and verdicts == {"slower"}:
        head = f"In this process {best} is the fastest"
    elif settled and verdicts == {"tie"}:
        head = "In this process no step is shown to be the fastest"
    elif settled:
        head = f"In this process {best} is within {same} of the fastest, with {sure} % confidence"
    else:
        head = (
            f"In this process it is not decided after {rounds} rounds which step is the "
            f"fastest; {best} has the shortest times so far"
        )
        if chance >= LIKELY:
            head += f", with {sure} % confidence within {same} of it"
    return f"{head}: {clauses}."


def disturbed(counted: Counted, busy: float | None, told: float = TOLD) -> Iterator[str]:
    """What disturbed the turns, if it did. told: the share left out from which on it is said."""
    if counted.busy:
        used = "" if busy is None else f" (other programs used {100 * busy:.0f} % of the CPU time)"
        yield f"Most turns were disturbed{used}: these are times under that load."
    elif (left := sum(counted.left_out.values())) >= told:
        yield f"{100 * left:.0f} % of the turns were disturbed and left out."


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


def pair_of(pairs: Sequence[Pair], first: str | None, second: str) -> Pair | None:
    """The second of two steps compared with the first; None without such a pair."""
    for pair in pairs:
        if (pair.first, pair.second) == (first, second):
            return pair
        if (pair.first, pair.second) == (second, first):
            return pair.turned
    return None


def shown(speedup: float | None) -> str:
    """A speedup with three decimals, or four digits."""
    return NOT_KNOWN if speedup is None else f"{speedup:.3f}" if speedup < 10 else f"{speedup:.4g}"


def interval(pair: Pair) -> str:
    """The interval of a speedup in words."""
    if pair.low is None or pair.high is None:
        return NOT_KNOWN
    return f"{shown(pair.low)} to {shown(pair.high)}"
