"""Judges whether a change is worth keeping by the scores of whole runs, paired by their seed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ninefold.errors import ConfigError
from ninefold.stats import student
from ninefold.study.turn_plan import mirrored

from .contestant import Command, tail
from .whole import run_whole

SEEDS = (3, 5, 8, 12, 20)  # after which it is seen whether scores are decided
LEVEL = 0.05 / len(SEEDS)  # of each look
KEEP, DISCARD, MORE = "keep", "discard", "more runs"
LARGEST_LOG = 1 << 28  # bytes in which the last score is looked for


@dataclass(frozen=True)
class Rule:
    """When a change is kept.

    pattern: of the score in the output; its last match counts. better: which scores are, "less" or
    "more". margin: a gain of less is not worth keeping; of `safe`, a smaller loss is allowed.
    safe: keep what loses less than the margin and is faster.
    """

    pattern: re.Pattern[str]
    better: str
    margin: float
    safe: bool = False


@dataclass(frozen=True)
class Judgement:
    """What is known after so many seeds.

    verdict: KEEP, DISCARD or MORE. difference: of B's scores from A's, the mean over seeds; low,
    high: its interval. word: better, worse, or not shown to differ. needed: seeds that would decide
    it, None where that is known.
    """

    verdict: str
    seeds: int
    difference: float
    low: float
    high: float
    word: str
    needed: int | None
    names: tuple[str, str] = ("A", "B")

    def __str__(self) -> str:
        first, second = self.names
        found = (
            f"{second}'s score is {self.difference:+.4g} from {first}'s ({100 * (1 - LEVEL):g} % "
            f"interval {self.low:+.4g} to {self.high:+.4g}; {self.word}) after {self.seeds} seeds"
        )
        more = "" if self.needed is None else f", about {self.needed} seeds would decide it"
        return f"{self.verdict}{more}: {found}"


def judge(
    scores: Sequence[tuple[float, float]], rule: Rule, seconds: Sequence[tuple[float, float]] = ()
) -> Judgement:
    """Judge B against A by paired scores (A, B), one pair for each seed, three at least.

    A change is kept if its gain is shown to be above 0, and discarded if the gain is shown to be
    below the margin; of a gain between the two, the second is what counts. The interval is
    Student's, at a level that five looks share.

    seconds: of the same runs, for a rule that keeps what is safe: it has to be shown to be faster.
    """
    sign = -1.0 if rule.better == "less" else 1.0
    slower = False
    gain, half = interval([b - a for a, b in scores], sign)
    faster = True
    floor, ceiling = 0.0, rule.margin
    if rule.safe:
        floor, ceiling = -rule.margin, -rule.margin
        log, reach = interval([math.log(b / a) for a, b in seconds], -1.0)
        faster, slower = log - reach > 0, log + reach < 0
    if half == 0:  # scores of few digits: it is not known how they vary
        verdict = MORE
    elif gain + half < ceiling or slower:
        verdict = DISCARD
    elif gain - half > floor and faster:
        verdict = KEEP
    else:
        verdict = MORE
    word = "better" if gain - half > 0 else "worse" if gain + half < 0 else "not shown to differ"
    needed = None
    if verdict == MORE and faster and half:
        distance = max(abs(gain - floor), abs(ceiling - gain), 1e-12)
        rounds = max(len(scores) + 1, math.ceil(len(scores) * (half / distance) ** 2))
        needed = rounds if rounds <= SEEDS[-1] else None
    ends = sorted((sign * (gain - half), sign * (gain + half)))
    return Judgement(verdict, len(scores), sign * gain, ends[0], ends[1], word, needed)


def interval(differences: Sequence[float], sign: float) -> tuple[float, float]:
    """The mean of differences times `sign`, and the half width of its interval."""
    found = sign * np.array(differences)
    n = len(found)
    reach = float(student.quantile(LEVEL / 2, n - 1)) * float(found.std(ddof=1)) / math.sqrt(n)
    return float(found.mean()), reach


def score_of(log: Path, command: Command, pattern: re.Pattern[str]) -> float:
    """The last score that a run has printed. Raises ConfigError: a missing one is no loss."""
    found = [*pattern.finditer(tail(log, LARGEST_LOG))]
    said = (found[-1].group(1) if pattern.groups else found[-1].group()) if found else "no match"
    try:
        score = float(said or "")
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise command.failure(
            f"its score is {said}; the last match of {pattern.pattern} has to be a number; "
            f"correct the pattern, see {log}"
        )
    return score


def require_seed(commands: Sequence[Command]) -> None:
    """Raise ConfigError unless two commands take the seed."""
    if len(commands) != 2:
        raise ConfigError("--score", len(commands), "commands were given; it takes two; give these")
    for command in commands:
        if "{seed}" not in command.text:
            raise command.failure(
                "it has no {seed}; runs of one seed show nothing; write --seed {seed} or the like"
            )


def compare(commands: Sequence[Command], rule: Rule, keep: Path) -> Judgement:
    """Run both commands with one seed after another until it is decided. Raises Failure."""
    require_seed(commands)
    scores: list[tuple[float, float]] = []
    seconds: list[tuple[float, float]] = []
    for seed in range(SEEDS[-1]):
        of: dict[str, tuple[float, float]] = {}
        for command in mirrored([*commands], "seeds", seed):
            ran = run_whole(command, seed, keep)
            of[command.name] = score_of(ran.log, command, rule.pattern), ran.seconds
        first, second = (of[command.name] for command in commands)
        scores.append((first[0], second[0]))
        seconds.append((first[1], second[1]))
        if len(scores) in SEEDS:
            found = judge(scores, rule, seconds)
            found = replace(found, names=(commands[0].name, commands[1].name))
            if found.verdict != MORE:
                break
    return found
