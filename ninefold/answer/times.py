"""`Times`: the answer of what took turns, "B is 1.24 times as fast as A".

Everything is told against a baseline, which is the first unless another is named; a speedup above
1 is faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from statistics import fmean
from typing import Any

from ninefold.answer.decision import Decision, are_decided, decide
from ninefold.answer.facts import Facts
from ninefold.answer.needed import rounds_for_pair
from ninefold.answer.screen import left_out, narrowed, screen
from ninefold.answer.words import OPEN_LEAD, clause, disturbed, interval, percent, shown, speedup
from ninefold.numbers import counted
from ninefold.progress import aligned
from ninefold.stats.verdicts import UNDECIDED, Pair
from ninefold.tables import html_table
from ninefold.tournament.taken import TakenTurn


@dataclass(frozen=True)
class Times:
    """How long steps of a training take, compared in turns.

    best: the step that is shown to be within `same` of the fastest, `baseline` if it is one of
        these; while none is shown to be, the one with the shortest times so far; None before the
        first complete round
    chance: the confidence, 0 to 1, that `best` is within `same` of the fastest
    decided: whether that is shown, and of each other step whether it is slower or takes the same
    busy: share of the CPU time that other programs used in the median turn, 0 to 1 (Linux);
        None where it is not known
    sentence: the answer. caveats: what limits it.
    pairs: of every two steps first, second, speedup (of the second over the first, above 1 is
        faster) with low and high, and verdict
    seconds: of each step, by name: the geometric mean of its rounds, which agrees with the speedups
    rounds: how many rounds were complete
    baseline: the step that the others are told against
    seed: of the orders that were drawn
    """

    best: str | None
    chance: float
    decided: bool
    busy: float | None
    sentence: str
    caveats: tuple[str, ...]
    pairs: tuple[Pair, ...]
    seconds: Mapping[str, float]
    rounds: int
    baseline: str
    seed: str = field(default="", repr=False)
    _turns: Sequence[TakenTurn] = field(default=(), repr=False)
    _confidence: float = field(default=95.0, repr=False)

    @property
    def closely(self) -> bool:
        """Whether it is decided, and the speedups of the fastest are known within 3 %."""
        of_best = [self.pair(self.best, name) for name in self.seconds]
        return self.decided and are_decided(pair for pair in of_best if pair is not None)

    @property
    def against_baseline(self) -> list[Pair]:
        """Each other step compared with the baseline."""
        own = [pair for pair in self.pairs if self.baseline in (pair.first, pair.second)]
        return [pair if pair.first == self.baseline else pair.turned for pair in own]

    def pair(self, first: str | None, second: str) -> Pair | None:
        """The second of two steps compared with the first; None without such a pair."""
        both = [*self.pairs, *(pair.turned for pair in self.pairs)]
        return next((pair for pair in both if (pair.first, pair.second) == (first, second)), None)

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
            for turn in self._turns
        ]

    def __repr__(self) -> str:
        rows = aligned(narrowed(self._table(), self.seconds, len(self.seconds)))
        more = left_out(self.caveats)
        after = f"{counted(self.rounds, 'round')}{more}."
        return screen(self.sentence, rows, self.caveats, after)

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{escape(text)}</p>" for text in (self.sentence, *self.caveats))
        header, *rows = self._table()
        return f"{said}{html_table(header, rows)}"

    def _table(self) -> list[tuple[str, ...]]:
        """Header and a row for each step, the baseline's first."""
        sure = f"{self._confidence:g} % interval"
        names = sorted(self.seconds, key=lambda name: name != self.baseline)
        rows = [(name, f"{1000 * self.seconds[name]:.4g}", *self.cells(name)) for name in names]
        return [("step", "ms per step", "speedup", sure, "verdict"), *rows]


def times(facts: Facts, caveats: Sequence[str] = (), seed: str = "") -> Times:
    """Return what is known of steps. caveats: that come before those of the turns."""
    turns, comparison, names = facts.turns, facts.comparison, list(facts.seconds)
    rounds = min(map(len, facts.seconds.values()))
    found = decide(facts) if rounds > 0 else Decision(facts)
    of_best = [comparison.pair(found.named, name) for name in names if name != found.named]
    open_ = any(pair is None or pair.verdict in UNDECIDED for pair in of_best)
    decided = found.decided and not open_
    baseline = facts.settings.baseline or names[0]
    chance = 1.0 if found.chance is None else found.chance
    return Times(
        found.named,
        0.0 if found.named is None else chance,
        decided,
        turns.others,
        in_this_process(_lead(found, decided, baseline, rounds)),
        (*caveats, *disturbed(turns)),
        tuple(comparison.seconds),
        _means(facts, baseline),
        rounds,
        baseline,
        seed,
        turns.turns,
        facts.settings.confidence,
    )


def _means(facts: Facts, baseline: str) -> Mapping[str, float]:
    """Return the seconds of a step by name, whose ratios are the speedups over the baseline.

    Their geometric mean is that of the rounds, as is what has no speedup over the baseline.
    """
    means = {
        str(name): math.exp(fmean(math.log(each) for each in of.values()))
        for name, of in facts.seconds.items()
        if of
    }
    pairs = {name: facts.comparison.pair(baseline, name) for name in means}
    over = {name: pair.speedup for name, pair in pairs.items() if pair and pair.speedup}
    over |= {baseline: 1.0} if baseline in means else {}
    base = math.exp(fmean(math.log(means[name] * over[name]) for name in over)) if over else 1.0
    return {name: base / over[name] if name in over else mean for name, mean in means.items()}


def _lead(found: Decision[Facts], decided: bool, baseline: str, rounds: int) -> str:
    """What was shown, and no more; the table has how each step compares."""
    names, best, settings = list(found.facts.seconds), found.named, found.facts.settings
    pair_of = found.facts.comparison.pair
    if best is None:
        done = "1 round is" if rounds == 1 else f"{rounds} rounds are"
        return f"{OPEN_LEAD}: {done} complete, and it takes more; raise minutes."
    against = best if len(names) != 2 else next(name for name in names if name != baseline)
    pair = pair_of(baseline, against)
    if len(names) == 2 and pair is not None:
        open_ = pair.verdict in UNDECIDED
        needed = rounds_for_pair(pair, settings.same, rounds) if open_ else None
        more = f"; about {needed} rounds would decide it" if needed else ""
        return f"{clause(pair, settings)}{more}."
    how = "" if pair is None else f", {speedup(pair, settings)}"
    verdicts = {p.verdict for n in names if (p := pair_of(best, n)) is not None}
    sure = f"within {100 * settings.same:g} % of"
    if decided and verdicts == {"slower"}:
        return f"{best} is the fastest{how}."
    if decided and verdicts == {"tie"}:
        return f"all steps are {sure} the fastest."
    if decided:
        chance = percent(1.0 if found.chance is None else found.chance)
        return f"{best} is {sure} the fastest, with {chance} confidence{how}."
    so_far = f"{best} has the shortest times after {counted(rounds, 'round')}{how}"
    return f"{OPEN_LEAD}: {so_far}."


def in_this_process(said: str) -> str:
    """A sentence with what it holds for."""
    if said.startswith(OPEN_LEAD):
        return said.replace(OPEN_LEAD, f"{OPEN_LEAD} in this process", 1)
    return f"In this process {said}"
