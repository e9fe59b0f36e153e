"""`Times`: what was found about steps that took turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ninefold.api.tables import data_frame, html_table
from ninefold.progress import aligned
from ninefold.stats.best import standing
from ninefold.stats.differences import Values
from ninefold.stats.statistics import compare, of_seconds
from ninefold.stats.verdicts import UNDECIDED, Pair, Settings
from ninefold.tournament.taken import Counted

if TYPE_CHECKING:
    import pandas as pd

TOLD = 0.1  # share of the turns from which on the sentence says that they were left out
HEADER = ("step", "ms per step", "ratio", "interval", "verdict")
NEAR = 0.03  # how far from a ratio that is known its interval may reach, as a share of it
LIKELY = 0.5  # a confidence that is worth a word while nothing is decided
NOT_KNOWN = "not known yet"


@dataclass(frozen=True)
class Times:
    """How long steps of a training take, compared in time slices.

    best: the step that is shown to be within `same` of the fastest, `baseline` if it is one of
        these; while none is shown to be, the one with the shortest times so far; None before the
        first complete repetition
    chance: the confidence, 0 to 1, that `best` is within `same` of the fastest
    settled: whether that is shown, and of each other step whether it is slower or takes the same
    busy: share of the CPU time that other programs used in the mean slice, 0 to 1 (Linux);
        None where it is not known
    sentence: the answer in words, with its caveats
    pairs: of every two steps first, second, estimate (second / first), low, high and verdict
    seconds: mean seconds of each step, by name
    rounds: how many repetitions were complete
    """

    best: str | None
    chance: float
    settled: bool
    busy: float | None
    sentence: str
    pairs: tuple[Pair, ...]
    seconds: Mapping[str, float]
    rounds: int
    _against: str | None = field(repr=False)
    _settings: Settings = field(repr=False)
    _counted: Counted = field(repr=False)

    @property
    def known(self) -> bool:
        """Whether more slices are not needed: it is decided, and ratios are known within 3 %.

        A large difference is shown after few repetitions, which say little of how large it is.
        """
        of_best = [pair_of(self.pairs, self.best, name) for name in self.seconds]
        return self.settled and all(is_near(pair) for pair in of_best if pair is not None)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each slice: step, and fields of `ninefold.tournament.taken.TakenTurn`."""
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
        table: list[tuple[str, ...]] = []
        for name, seconds in self.seconds.items():
            pair = pair_of(self.pairs, self._against, name)
            if pair is None:
                found = ("1", "", "compared with it") if name == self._against else ("",) * 3
            else:
                found = shown(pair.estimate), interval(pair), pair.verdict
            table.append((name, f"{1000 * seconds:.4g}", *found))
        return table


def times(
    names: Sequence[str],
    counted: Counted,
    settings: Settings,
    caveats: Sequence[str] = (),
    stretches: Values | None = None,
    borrows: bool = True,
) -> Times:
    """Return what is known.

    names: of the steps. counted: their turns. `settings.baseline`: see `Times`. stretches: see
    `ninefold.stats.statistics.compare`. borrows: whether few rounds borrow what processes of a step
    are known to differ by.
    """
    found = counted.seconds()
    values = {name: found.get(name, {}) for name in names}
    seen = of_seconds(values, counted.noise() if borrows else None)
    shares = [turn.others for turn in counted.turns if turn.others is not None]
    busy = fmean(shares) if shares else None
    pairs = tuple(compare(values, {}, settings, time=seen, stretches=stretches).seconds)
    best, chance, settled = None, 0.0, False
    rounds = min(map(len, values.values()))
    if rounds > 0:
        stand = standing(list(values), seen, list(values), settings)
        near = stand.chance.get(settings.baseline, 0.0) >= 1 - settings.level
        best = settings.baseline if near else stand.lead
        chance = stand.chance[best]
        of_best = [pair_of(pairs, best, name) for name in values if name != best]
        decided = all(pair is not None and pair.verdict not in UNDECIDED for pair in of_best)
        settled = decided and chance >= 1 - settings.level
    said = [claim(best, chance, settled, list(values), pairs, settings, rounds), *caveats]
    if counted.busy:
        used = "" if busy is None else f" (other programs used {100 * busy:.0f} % of the CPU time)"
        said.append(f"Most time slices were disturbed{used}: these are times under that load.")
    elif (left := sum(counted.left_out.values())) >= TOLD:
        said.append(f"{100 * left:.0f} % of the time slices were disturbed and left out.")
    return Times(
        best,
        chance,
        settled,
        busy,
        " ".join(said),
        pairs,
        {name: fmean(of.values()) for name, of in values.items() if of},
        rounds,
        settings.baseline or best,
        settings,
        counted,
    )


def claim(
    best: str | None,
    chance: float,
    settled: bool,
    names: Sequence[str],
    pairs: Sequence[Pair],
    settings: Settings,
    rounds: int,
) -> str:
    """What was shown, and no more: one sentence, with a clause for each other step."""
    if best is None:
        return (
            f"Which step is the fastest in this process is {NOT_KNOWN}: there was time for "
            f"{rounds} repetitions, and it takes more; raise minutes."
        )
    others = {name: pair_of(pairs, best, name) for name in names if name != best}
    verdicts = {pair.verdict for pair in others.values() if pair is not None}
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
            f"In this process it is not decided after {rounds} repetitions which step is the "
            f"fastest; {best} has the shortest times so far"
        )
        if chance >= LIKELY:
            head += f", with {sure} % confidence within {same} of it"
    clauses = [clause(name, best, pair, same) for name, pair in others.items() if pair is not None]
    return f"{head}: {'; '.join(clauses)} ({settings.confidence:.1f} % intervals)."


def clause(name: str, best: str, pair: Pair, same: str) -> str:
    """How another step compares with the best."""
    ratio = f"{shown(pair.estimate)} ({interval(pair)}) times {best}'s"
    if pair.verdict == "tie":
        return f"{name} takes the same time within {same}, {ratio}"
    if pair.verdict in UNDECIDED:
        return f"{name} is not shown to differ, {ratio}"
    return f"{name}'s time is {ratio}"


def is_near(pair: Pair) -> bool:
    """Whether the interval of a ratio reaches at most 3 % (NEAR) to either side of it."""
    if pair.estimate is None or pair.low is None or pair.high is None:
        return False
    return pair.high <= (1 + NEAR) * pair.estimate and pair.low >= pair.estimate / (1 + NEAR)


def pair_of(pairs: Sequence[Pair], first: str | None, second: str) -> Pair | None:
    """The pair of two steps with the ratio second / first; None without one."""
    for pair in pairs:
        if (pair.first, pair.second) == (first, second):
            return pair
        if (pair.first, pair.second) == (second, first):
            return pair.turned
    return None


def shown(ratio: float | None) -> str:
    """A ratio with three decimals, or four digits."""
    return NOT_KNOWN if ratio is None else f"{ratio:.3f}" if ratio < 10 else f"{ratio:.4g}"


def interval(pair: Pair) -> str:
    """The interval of a ratio in words."""
    if pair.low is None or pair.high is None:
        return NOT_KNOWN
    return f"{shown(pair.low)} to {shown(pair.high)}"
