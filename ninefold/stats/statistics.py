"""Compares the cells of a study with each other, as docs/background/statistics.md explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ninefold.stats import holm, student
from ninefold.stats.differences import NO_TEST, Differences, differences, number, of_times
from ninefold.stats.student import Array
from ninefold.stats.verdicts import (
    FAILED,
    INCONCLUSIVE,
    OPEN,
    PASSED,
    WITHIN,
    Comparison,
    Control,
    Difference,
    Estimate,
    Name,
    Pair,
    Safety,
    Settings,
    Timings,
    Values,
)
from ninefold.types import LEAST_ROUNDS

BY_TIME, BY_SCORE = ("faster", "slower"), ("worse", "better")
KNOWN = math.log(3)  # an interval of a speedup that reaches farther to a side says nothing


def estimate(values: Mapping[int, float]) -> Estimate:
    """Return the mean of one cell's values with Student's interval."""
    found = np.array([value for value in values.values() if math.isfinite(value)])
    n = len(found)
    if n < 2:
        return Estimate(n, float(found[0]) if n else None, None, None, None)
    mean, sd = float(found.mean()), float(found.std(ddof=1))
    reach = float(student.quantile(0.025, n - 1)) * sd / math.sqrt(n)
    return Estimate(n, mean, sd, mean - reach, mean + reach)


def compare(
    timings: Sequence[Timings],
    scores: Values,
    settings: Settings,
    controls: Sequence[tuple[Name, Name]] = (),
    copies: Sequence[tuple[Name, Name]] = (),
    floor: float = 0.0,
) -> Comparison:
    """Return the verdicts on all pairs of cells, the safety of each cell, and the control.

    Times and scores are two families of tests, each at `settings.level`. Scores leave out the seeds
    in which one of a pair is missing or not finite, times the rounds in which one is not above 0.
    What an earlier look has shown stays.

    timings: at each look, of which the last is this one; each has the cells of this one
    scores: by cell and seed, in percent if a share; may be empty
    controls: pairs of cells that do the same work in the same time; unless they show that they do
        not, the mean of both is what is compared with others
    copies: pairs that do the same work
    floor: share of a difference in seconds that a control which is not among these may be off by
    """
    names, looks = list(timings[-1].seconds) if timings else [], []
    pairs, control = list[Pair](), None
    for each in timings:
        own = replace(settings, shares=each.shares)
        seen, control = _of_times(names, each, _places(names, controls), settings.same)
        log_same = math.log1p(own.same)
        logs = _pairs(names, seen, log_same, own.level, own.level_of_look, BY_TIME, own.asked)
        said = [Pair.of(pair) for pair in logs]
        pairs = [now.after(then) for then, now in zip(pairs or said, said, strict=True)]
        looks.append((seen, own))
    log_floor = math.log1p(floor) + _shown(control)
    sign = 1.0 if settings.better == "more" else -1.0  # below, more is better
    seeds = {seed for cell in scores.values() for seed in cell}
    points = differences(sign * _table(scores, scores, seeds), _places(list(scores), copies))
    of_scores = settings.level / settings.looks
    score_pairs = _pairs(
        list(scores), points, settings.margin, settings.level, lambda _: of_scores, BY_SCORE
    )
    safety = _safety(list(scores), points, score_pairs, settings)
    return Comparison(
        seconds=[_above(pair, log_floor) for pair in pairs],
        score=score_pairs if sign > 0 else [_turned(pair) for pair in score_pairs],
        safety=safety if sign > 0 else [_turned_back(test) for test in safety],
        control=control,
        floor=math.expm1(log_floor),
        looks=looks,
    )


def _of_times(
    names: Sequence[Name], timings: Timings, controls: Collection[tuple[int, int]], same: float
) -> tuple[Differences, Control | None]:
    """The differences of the logarithms of seconds at a look, and the A/A control.

    controls: pairs of places in `names`.
    """
    of = timings.seconds, timings.stretches
    rounds = {number for values in of for cell in values.values() for number in cell}
    turns, stretches = (_logs(_table(values, names, rounds)) for values in of)
    waits = np.array([name in timings.waits for name in names], dtype=bool)
    logs = np.where(waits[:, None], stretches, turns)
    control = _control(names, logs, controls, math.log1p(same))
    failed = control is not None and control.state == FAILED
    merged = () if failed else controls
    seen = of_times(turns, merged)
    if waits.any():
        by_stretch = waits[seen.first] | waits[seen.second]
        seen = of_times(stretches, merged).where(by_stretch, seen)
    return seen, control


def _logs(table: Array) -> Array:
    """Logarithms of the values above 0, nan of others."""
    return np.log(np.where(table > 0, table, np.nan))


def _turned(pair: Difference) -> Difference:
    """A pair of scores of which less is better, with its differences as they were measured."""
    difference, high, low = (
        None if end is None else -end for end in (pair.difference, pair.low, pair.high)
    )
    return replace(pair, difference=difference, low=low, high=high)


def _turned_back(test: Safety) -> Safety:
    difference, low = (None if end is None else -end for end in (test.difference, test.low))
    return replace(test, difference=difference, low=low)


def _shown(control: Control | None) -> float:
    """The logarithm of the noise floor: what the control shows that the measurement is off by."""
    if control is None or control.low is None or control.high is None:
        return 0.0
    return max(math.log(control.low), -math.log(control.high), 0.0)


def _above(pair: Pair, floor: float) -> Pair:
    """A pair that is not called faster or slower if its difference is below the noise floor.

    A tie is a test of its own, and stays.
    """
    if not floor or pair.verdict == "tie" or abs(math.log(pair.speedup or 1.0)) > floor:
        return pair
    return replace(pair, verdict=OPEN if pair.verdict == OPEN else WITHIN)


def _table(values: Values, names: Collection[Name], numbers: Collection[int]) -> Array:
    """float64 [cells, rounds or seeds], nan where a cell has no value that is finite."""
    cells = [values.get(name, {}) for name in names]
    rows = [[cell.get(number, np.nan) for number in sorted(numbers)] for cell in cells]
    table = np.array(rows, dtype=np.float64).reshape(len(cells), len(numbers))
    return np.where(np.isfinite(table), table, np.nan)


def _places(names: Sequence[Name], pairs: Sequence[tuple[Name, Name]]) -> set[tuple[int, int]]:
    """The indices of pairs in `names`, the lower one first."""
    there = [pair for pair in pairs if set(pair) <= set(names)]
    found = [sorted((names.index(first), names.index(second))) for first, second in there]
    return {(low, high) for low, high in found}


def _pairs(
    names: Sequence[Name],
    seen: Differences,
    same: float,
    level: float,
    of_look: Callable[[int], float],
    words: tuple[str, str],
    asked: Collection[frozenset[Name]] | None = None,
) -> list[Difference]:
    """The differences of one measure, of seconds those of their logarithms.

    same: half the width of the range of ties. level: of the study. of_look: of this look, by
    the number of tests. words: the verdicts for below and above 0. asked: the pairs that are
    tested; None: all.
    """
    p, own = seen.p(), seen.test == np.arange(len(seen.test))
    if asked is not None:
        both = zip(seen.first, seen.second, strict=True)
        named = [seen.test[i] for i, at in enumerate(both) if {names[n] for n in at} in asked]
        own &= np.isin(np.arange(len(own)), named)
    tests = max(int(np.isfinite(p[own]).sum()), 1)
    spent = of_look(tests)
    tested = holm.adjusted(np.where(own, p, np.nan), level / spent if spent else np.inf)
    adjusted = np.where(seen.test == NO_TEST, 1.0, tested[seen.test])
    reach = seen.reach(of_look(1))
    low, high = seen.mean - reach, seen.mean + reach
    pairs = []
    for i in range(len(seen.rounds)):
        if -same <= low[i] and high[i] <= same:
            verdict = "tie"
        elif adjusted[i] <= level and (high[i] < 0 or low[i] > 0):
            verdict = words[int(low[i] > 0)]
        else:
            verdict = OPEN
            if math.isfinite(adjusted[i]):  # it was tested: its interval says the same
                low[i], high[i] = min(low[i], 0.0), max(high[i], 0.0)
        known = words != BY_TIME or verdict != OPEN or bool(reach[i] <= KNOWN)
        pairs.append(
            Difference(
                names[seen.first[i]],
                names[seen.second[i]],
                int(seen.rounds[i]),
                number(seen.mean[i]),
                number(low[i]) if known else None,
                number(high[i]) if known else None,
                number(p[i]),
                number(adjusted[i]),
                verdict,
            )
        )
    return pairs


def _control(
    names: Sequence[Name], logs: Array, pairs: Collection[tuple[int, int]], same: float
) -> Control | None:
    """The A/A control of these pairs, None without a round. logs: float64 [cells, rounds]."""
    of_pairs = {pair: logs[pair[1]] - logs[pair[0]] for pair in pairs}
    known = {pair: off for pair, off in of_pairs.items() if np.isfinite(off).any()}
    if not known:
        return None
    off = np.array([*known.values()])
    there = np.isfinite(off)
    rounds = there.any(axis=0)
    by_round = (np.where(there, off, 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1))[rounds]
    mean, n = float(by_round.mean()), len(by_round)
    error = float(by_round.std(ddof=1)) / math.sqrt(n) if n >= LEAST_ROUNDS else math.inf
    reach, state = _judged(mean, error, n - 1.0, same)
    shown = reach <= KNOWN
    return Control(
        [(names[first], names[second]) for first, second in known],
        n,
        math.exp(-mean),
        math.exp(-mean - reach) if shown else None,
        math.exp(-mean + reach) if shown else None,
        state,
    )


def _judged(mean: float, error: float, freedom: float, same: float) -> tuple[float, str]:
    """The reach of the 95 % interval of a logarithm that should be 0, and the state."""
    if not math.isfinite(error):
        return math.inf, INCONCLUSIVE
    narrow, reach = (float(student.quantile(level, freedom)) * error for level in (0.05, 0.025))
    if abs(mean) + narrow <= same:
        return reach, PASSED
    return reach, FAILED if abs(mean) - reach > same else INCONCLUSIVE


def _safety(
    names: Sequence[Name],
    seen: Differences,
    pairs: Sequence[Difference],
    settings: Settings,
) -> list[Safety]:
    """The safety of every cell but the baseline; empty without a baseline."""
    if settings.baseline not in names:
        return []
    baseline = names.index(settings.baseline)
    sign = np.where(seen.first == baseline, 1.0, -1.0)
    tested = (seen.first == baseline) | (seen.second == baseline)
    difference = sign * seen.mean
    above = difference + settings.margin
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(seen.error == 0, 0.0, student.above(above / seen.error, seen.freedom))
        alone = np.where(
            seen.error == 0, 0.0, student.above(above / seen.alone, seen.alone_freedom)
        )
    asked = tested & (seen.error != 0)  # nothing is tested if the two are equal
    p = np.where(asked, p, np.nan)
    level = settings.level / settings.looks
    # Cells that do the same work share a test.
    tests = np.where(np.isfinite(p), seen.test, NO_TEST)
    _, one, of = np.unique(tests, return_index=True, return_inverse=True)
    shared, divisors = holm.adjusted(p[one], settings.looks)[of], holm.divisors(p[one], level)[of]
    # No cell is safe that its own rounds alone do not show to be safe.
    adjusted = np.maximum(shared, np.minimum(alone * settings.looks, 1.0))
    adjusted = np.where(seen.error == 0, 0.0, adjusted)
    reach = np.maximum(
        student.quantile(level / divisors, seen.freedom) * seen.error,
        student.quantile(level, seen.alone_freedom) * seen.alone,
    )
    low = difference - np.where(seen.error == 0, 0.0, reach)
    safety = []
    for i in map(int, np.flatnonzero(tested)):
        pair, turned = pairs[i], bool(sign[i] < 0)
        if adjusted[i] <= settings.level:
            verdict = "safe"
        else:
            verdict = "worse" if pair.verdict == ("better" if turned else "worse") else OPEN
        safety.append(
            Safety(
                pair.first if turned else pair.second,
                pair.n,
                number(difference[i]),
                number(low[i]),
                number(p[i]) if asked[i] else None,
                number(adjusted[i]) if asked[i] else None,
                verdict,
            )
        )
    return sorted(safety, key=lambda one: names.index(one.cell))
