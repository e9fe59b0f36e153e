"""Compares the cells of a study with each other, as docs/background/statistics.md explains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ninefold.stats import holm, student
from ninefold.stats.differences import Differences, Values, differences, number, of_few
from ninefold.stats.student import Array
from ninefold.stats.verdicts import (
    FAILED,
    NOT_SHOWN,
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
    Steady,
)

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


def of_seconds(seconds: Values, noise: Values | None = None) -> Differences:
    """Return the differences of the logarithms of seconds, by cell and round.

    noise: the variance of each of these by the turns that it is the mean of; where it is known, a
        large difference is decided by few rounds
    """
    return differences(_table(seconds, logs=True), noise=_noise(seconds, noise))


def compare(
    seconds: Values,
    accuracy: Values,
    settings: Settings,
    controls: Sequence[tuple[Name, Name]] = (),
    copies: Sequence[tuple[Name, Name]] | None = None,
    stretches: Values | None = None,
    floor: float = 0.0,
    time: Differences | None = None,
) -> Comparison:
    """Return the verdicts on all pairs of cells, the safety of each cell, and the controls.

    A pair leaves out the rounds in which a value is missing or not finite, or a time not above 0.

    seconds: by cell and round
    accuracy: scores by cell and seed, in percent if a share; may be empty
    controls: pairs of cells that do the same work in the same time
    copies: pairs that do the same work, None: the controls
    stretches: the speedup of a long stretch alone over the turns before it, by cell and round
    floor: share of a difference in seconds that a control which is not among these may be off by
    time: `of_seconds` of these; None: without the noise of their turns
    """
    copies = controls if copies is None else copies
    time = time or of_seconds(seconds)
    sign = 1.0 if settings.better == "more" else -1.0  # below, more is better
    points = differences(sign * _table(accuracy), _places(list(accuracy), copies))
    of_scores = replace(settings, looks=settings.score_looks or settings.looks)
    pairs = len(time.rounds)
    p = np.concatenate([time.p(), points.p()])
    # Relative to the looks at times: what is looked at less often needs less.
    adjusted = holm.adjusted(
        np.where(np.arange(len(p)) < pairs, p, p * (of_scores.looks / settings.looks)),
        settings.looks,
    )
    log_same = math.log1p(settings.same)
    seconds_pairs = _pairs(
        list(seconds),
        time,
        adjusted[:pairs],
        log_same,
        settings,
        ("faster", "slower"),
    )
    accuracy_pairs = _pairs(
        list(accuracy),
        points,
        adjusted[pairs:],
        settings.margin,
        of_scores,
        ("worse", "better"),
    )
    safety = _safety(list(accuracy), points, accuracy_pairs, of_scores)
    control = _control(list(seconds), time, controls, log_same)
    steady = _steady(stretches or {}, log_same)
    log_floor = math.log1p(floor) + _off_by(control, steady)
    if log_floor:
        seconds_pairs = [_above(pair, log_floor) for pair in seconds_pairs]
    return Comparison(
        seconds=[Pair.of(pair) for pair in seconds_pairs],
        accuracy=accuracy_pairs if sign > 0 else [_turned(pair) for pair in accuracy_pairs],
        safety=safety if sign > 0 else [_turned_back(test) for test in safety],
        control=control,
        steady=steady,
        floor=math.expm1(log_floor),
    )


def _turned(pair: Difference) -> Difference:
    """A pair of scores of which less is better, with its differences as they were measured."""
    difference, high, low = (
        None if end is None else -end for end in (pair.difference, pair.low, pair.high)
    )
    return replace(pair, difference=difference, low=low, high=high)


def _turned_back(test: Safety) -> Safety:
    difference, low = (None if end is None else -end for end in (test.difference, test.low))
    return replace(test, difference=difference, low=low)


def _off_by(control: Control | None, steady: Sequence[Steady]) -> float:
    """The logarithm of the noise floor: what the measurement may be off by in all."""
    off = max(
        (abs(math.log(each.speedup)) for each in steady if each.state == FAILED),
        default=0.0,
    )
    if control is None:
        return off
    return off + (KNOWN if control.resolution is None else math.log1p(control.resolution))


def _above(pair: Difference, floor: float) -> Difference:
    """A pair whose difference is not called faster or slower if it is below the noise floor.

    A tie is a test of its own, and stays.
    """
    if abs(pair.difference or 0.0) > floor or pair.verdict == "tie":
        return pair
    return replace(pair, verdict=OPEN if pair.verdict == OPEN else WITHIN)


def _noise(values: Values, noise: Values | None) -> Array | None:
    """The noise of each value of `_table`, nan where it is not known; None without any."""
    if noise is None:
        return None
    rounds = _rounds(values)
    table = [[noise.get(cell, {}).get(round, np.nan) for round in rounds] for cell in values]
    return np.array(table, dtype=np.float64).reshape(len(values), len(rounds))


def _rounds(values: Values) -> list[int]:
    return sorted({round for cell in values.values() for round in cell})


def _table(values: Values, logs: bool = False) -> Array:
    """float64 [cells, rounds], nan where a cell has no value."""
    rounds = _rounds(values)
    table = np.array([[cell.get(round, np.nan) for round in rounds] for cell in values.values()])
    table = table.reshape(len(values), len(rounds)).astype(np.float64)
    if logs:
        table = np.log(np.where(table > 0, table, np.nan))
    return np.where(np.isfinite(table), table, np.nan)


def _places(names: Sequence[Name], pairs: Sequence[tuple[Name, Name]]) -> set[tuple[int, int]]:
    """The indices of pairs in `names`, the lower one first."""
    there = [pair for pair in pairs if set(pair) <= set(names)]
    found = [sorted((names.index(first), names.index(second))) for first, second in there]
    return {(low, high) for low, high in found}


def _pairs(
    names: Sequence[Name],
    seen: Differences,
    adjusted: Array,
    same: float,
    settings: Settings,
    words: tuple[str, str],
) -> list[Difference]:
    """The differences of one measure, of seconds those of their logarithms.

    adjusted: p after Holm
    same: half the width of the range of ties
    words: the verdicts for below and above 0
    """
    level = settings.level / settings.looks
    reach = seen.reach(level)
    low, high = seen.mean - reach, seen.mean + reach
    p = seen.p()
    pairs = []
    for i in range(len(seen.rounds)):
        if -same <= low[i] and high[i] <= same:
            verdict = "tie"
        elif adjusted[i] <= settings.level and (high[i] < 0 or low[i] > 0):
            verdict = words[int(low[i] > 0)]
        else:
            verdict = OPEN
        known = words[0] != "faster" or verdict != OPEN or bool(reach[i] <= KNOWN)
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
    names: Sequence[Name],
    time: Differences,
    pairs: Sequence[tuple[Name, Name]],
    same: float,
) -> Control | None:
    """The A/A control of these pairs, None without a round."""
    logs, noise = time.table, time.noise
    known = [pair for pair in pairs if set(pair) <= set(names)]
    rows = [(names.index(first), names.index(second)) for first, second in known]
    apart = np.array([logs[i] - logs[j] for i, j in rows]).reshape(len(known), logs.shape[1])
    there = np.isfinite(apart)
    used = there.any(axis=0)
    rounds = [
        column[seen].mean() for column, seen in zip(apart.T[used], there.T[used], strict=True)
    ]
    if not rounds:
        return None
    of_turns = None
    if noise is not None:
        of_pairs = np.array([noise[j] + noise[i] for i, j in rows])[:, used]
        of_turns = np.where(there[:, used], of_pairs, 0.0).sum(axis=0) / there[:, used].sum(axis=0)
    least = int(there[:, used].sum(axis=0).min())
    mean, reach, state = _judged(np.array(rounds), same, of_turns, least)
    shown = reach <= KNOWN
    return Control(
        known,
        len(rounds),
        math.exp(mean),
        math.exp(mean - reach) if shown else None,
        math.exp(mean + reach) if shown else None,
        state,
        math.expm1(abs(mean) + reach) if shown else None,
    )


def _judged(
    logs: Array, same: float, noise: Array | None = None, pairs: int = 1
) -> tuple[float, float, str]:
    """The mean of logarithms that should be 0, the reach of its 95 % interval, and the state.

    noise, pairs: as of `of_few`.
    """
    mean, n = float(logs.mean()), len(logs)
    spread = float(logs.var(ddof=1)) if n > 1 else 0.0
    error, freedom = math.sqrt(spread / n), n - 1.0
    if noise is not None:
        known, of_known = of_few(np.array(spread), np.array(n), noise, pairs)
        if np.isfinite(known):
            error, freedom = math.sqrt(known), float(of_known)
    if freedom < 1:
        return mean, math.inf, NOT_SHOWN
    narrow, reach = (float(student.quantile(level, freedom)) * error for level in (0.05, 0.025))
    if abs(mean) + narrow <= same:
        return mean, reach, PASSED
    return mean, reach, FAILED if abs(mean) - reach > same else NOT_SHOWN


def _steady(stretches: Values, same: float) -> list[Steady]:
    """The steady-state controls of the cells with a stretch."""
    found = []
    for cell, values in stretches.items():
        logs = np.log([value for value in values.values() if value > 0])
        if not len(logs):
            continue
        mean, reach, state = _judged(logs, same)
        shown = reach <= KNOWN
        low, high = (math.exp(mean + end) if shown else None for end in (-reach, reach))
        found.append(Steady(cell, len(logs), math.exp(mean), low, high, state))
    return found


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
    p = np.where(tested, p, np.nan)
    level = settings.level / settings.looks
    # No cell is safe that its own rounds alone do not show to be safe.
    adjusted = np.maximum(holm.adjusted(p, settings.looks), np.minimum(alone * settings.looks, 1.0))
    reach = np.maximum(
        student.quantile(level / holm.divisors(p, level), seen.freedom) * seen.error,
        student.quantile(level, seen.alone_freedom) * seen.alone,
    )
    low = difference - np.where(seen.error == 0, 0.0, reach)
    asked = seen.error != 0  # nothing is tested if the two are equal
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
