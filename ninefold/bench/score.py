"""Judges whether a change is worth keeping by the scores of whole runs, paired by their seed."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ninefold.bench.contestant import Command, tail
from ninefold.bench.whole import run_whole
from ninefold.errors import ConfigError
from ninefold.stats.needed import OF_SEEDS, number_needed
from ninefold.stats.statistics import compare as compare_values
from ninefold.stats.verdicts import Settings
from ninefold.tournament.plan import drawn
from ninefold.types import SEEDS

KEEP, DISCARD, MORE = "keep", "discard", "more runs"
OPEN_WORD = "not shown to differ"
LARGEST_LOG = 1 << 28  # bytes in which the last score is looked for
LARGEST = 1e15  # of a score: the variance of larger ones may be no float
Numbers = Sequence[tuple[float, float]]  # of A and B, a pair for each seed


@dataclass(frozen=True)
class Rule:
    """When a change is kept.

    pattern: of the score in the output; its last match counts. better: which scores are, "less" or
    "more". margin: a gain of less is not worth keeping.
    """

    pattern: re.Pattern[str]
    better: str
    margin: float


@dataclass(frozen=True)
class Judgement:
    """What is known after so many seeds.

    verdict: KEEP, DISCARD or MORE. difference: of B's scores from A's, the mean over seeds; low,
    high: its interval, which holds at all looks; None: not known. word: better, worse, or not shown
    to differ. needed: seeds that would decide it; None: not known, or it is.
    """

    verdict: str
    seeds: int
    difference: float
    low: float | None
    high: float | None
    word: str
    needed: int | None
    names: Sequence[str]

    def __str__(self) -> str:
        first, second = self.names
        more = "" if self.needed is None else f"; about {self.needed} in all would decide it"
        sure = "interval not known yet"
        if self.low is not None and self.high is not None:
            sure = f"95 % interval {self.low:+.4g} to {self.high:+.4g}"
        side = "higher" if self.difference > 0 else "lower"
        return (
            f"{self.verdict}: {second}'s score is {abs(self.difference):.4g} {side} than {first}'s "
            f"({sure}; {self.word}) after {self.seeds} seeds{more}"
        )


def judge(scores: Numbers, rule: Rule, names: Sequence[str] = "AB") -> Judgement:
    """Judge B against A by paired scores, of three seeds at least, as a study judges its scores.

    A change is kept if its gain is shown to be above 0, and discarded if the gain is shown to be
    below the margin; of a gain between the two, the second is what counts.
    """
    sign = -1.0 if rule.better == "less" else 1.0
    values = {
        name: dict(enumerate(of)) for name, of in zip(names, zip(*scores, strict=True), strict=True)
    }
    settings = Settings(margin=rule.margin, better=rule.better, looks=len(SEEDS))
    [pair] = compare_values([], values, settings).accuracy
    found, low, high = pair.difference or 0.0, pair.low, pair.high
    if low is None or high is None or low == high:  # scores of few digits: how they vary is unknown
        return Judgement(MORE, pair.n, found, low, high, OPEN_WORD, None, names)
    gain, least, most = sign * found, *sorted((sign * low, sign * high))
    verdict, needed = MORE, None
    if most < rule.margin:
        verdict = DISCARD
    elif least > 0:
        verdict = KEEP
    else:
        distance = max(abs(gain), abs(rule.margin - gain))
        needed = number_needed(pair.n, most - gain, distance, SEEDS[-1], OF_SEEDS)
    word = "better" if least > 0 else "worse" if most < 0 else OPEN_WORD
    return Judgement(verdict, pair.n, found, low, high, word, needed, names)


def score_of(log: Path, command: Command, pattern: re.Pattern[str]) -> float:
    """The last score that a run has printed. Raises ConfigError: a missing one is no loss."""
    found = [*pattern.finditer(tail(log, LARGEST_LOG))]
    said = (found[-1].group(1) if pattern.groups else found[-1].group()) if found else "no match"
    try:
        score = float(said or "")
    except ValueError:
        score = math.nan
    if not abs(score) <= LARGEST:
        raise command.failure(
            f"its score is {said}",
            f"the last match of {pattern.pattern} has to be a number of at most {LARGEST:g}",
            f"correct the pattern, see {log}",
        )
    return score


def compare(commands: Sequence[Command], rule: Rule, keep: Path) -> Judgement:
    """Run both commands with one seed after another until it is decided. Raises Failure."""
    if len(commands) != 2:
        raise ConfigError(
            "--score", len(commands), "commands were given", "it takes two", "give these"
        )
    for command in commands:
        if "{seed}" not in command.text:
            raise command.failure(
                "it has no {seed}",
                "runs of one seed show nothing",
                "write --seed {seed} or the like",
            )
    names, order = [command.name for command in commands], secrets.token_hex(8)
    scores = list[tuple[float, float]]()
    for seed in range(SEEDS[-1]):
        score = dict[str, float]()
        for name in drawn(names, order, seed):
            command = commands[names.index(name)]
            run_whole(command, seed, keep)
            score[name] = score_of(command.log(keep, seed), command, rule.pattern)
        scores.append((score[names[0]], score[names[1]]))
        if len(scores) in SEEDS:
            found = judge(scores, rule, names)
            if found.verdict != MORE:
                break
    return found
