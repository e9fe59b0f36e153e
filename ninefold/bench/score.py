"""Judges whether a change is worth keeping by the scores of whole runs, paired by their seed."""

from __future__ import annotations

import math
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ninefold.answer.facts import facts_of
from ninefold.answer.screen import screen
from ninefold.answer.times import Times, times
from ninefold.bench.change import require_effect
from ninefold.bench.command import CHANGES, NO_HOOK, OUT, SEED, Command
from ninefold.bench.held import LOOK_SECONDS, HeldCommand
from ninefold.bench.messages import Hello
from ninefold.bench.printed import tail
from ninefold.bench.turns import MARKS
from ninefold.bench.whole import run_whole
from ninefold.errors import Failure, Slower, Undecided, one_line
from ninefold.files import read_json, read_text
from ninefold.numbers import counted, digits
from ninefold.process import scratch
from ninefold.progress import aligned
from ninefold.stats.needed import OF_SEEDS, number_needed
from ninefold.stats.statistics import compare as compare_values
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import Settings
from ninefold.tournament.plan import drawn
from ninefold.tournament.taken import TurnLog
from ninefold.types import SEEDS
from ninefold.waits import poll_until, telling

KEEP, DISCARD, MORE = "keep", "discard", "more runs"
OPEN_WORD = "not shown to differ"
LARGEST_LOG = 1 << 28  # bytes in which the last score is looked for
LARGEST = 1e15  # of a score: the variance of larger ones may be no float
LEVEL = 0.05  # of a judgement that is in no series
Numbers = Sequence[tuple[float, float]]  # of A and B, a pair for each seed


@dataclass(frozen=True)
class Rule:
    """When a change is kept.

    score: where it is: a pattern whose last match in the output counts; or {out}/FILE.json:KEY; or
    {out}:TAG of TensorBoard. better: which scores are, "less" or "more". margin: a gain of less is
    not worth keeping. as_good: whether the change aims at something else, such as speed: then it is
    kept unless its score is worse by the margin or more. level: the chance that a change is kept,
    or discarded, that should not be.
    """

    score: re.Pattern[str] | str
    better: str
    margin: float
    as_good: bool = False
    level: float = LEVEL


@dataclass(frozen=True)
class Judgement:
    """What is known after so many seeds.

    verdict: KEEP, DISCARD or MORE. difference: of B's scores from A's, the mean over seeds; low,
    high: its interval, which holds at all looks; None: not known. word: better, worse, as good, or
    not shown to differ. needed: seeds that would decide it; None: not known, or it is.
    """

    verdict: str
    seeds: int
    difference: float
    low: float | None
    high: float | None
    word: str
    needed: int | None
    names: Sequence[str]
    confidence: float = 100 * (1 - LEVEL)

    def __str__(self) -> str:
        first, second = self.names
        more = "" if self.needed is None else f"; about {self.needed} in all would decide it"
        sure = "interval not known yet"
        if self.low is not None and self.high is not None:
            sure = f"{self.confidence:.4g} % interval {self.low:+.4g} to {self.high:+.4g}"
        size, side = abs(self.difference), "higher" if self.difference > 0 else "lower"
        than = f"{size:.4g} {side} than" if size else "equal to"
        return (
            f"{self.verdict}: {second}'s score is {than} {first}'s "
            f"({sure}; {self.word}) after {self.seeds} seeds{more}"
        )


@dataclass(frozen=True)
class Judged:
    """The judgement of two commands, and the runs that it rests on.

    scores: by command and seed. times: of their whole runs. seconds: that all took.
    """

    judgement: Judgement
    commands: Sequence[Command]
    scores: Mapping[str, Mapping[int, float]]
    times: Times
    seconds: float

    def failure(self, score: str) -> Failure | None:
        """What ends the command unless the change is kept. score: where it is."""
        kind = {DISCARD: Slower, MORE: Undecided}.get(self.judgement.verdict)
        runs = f"{self.judgement.seeds} seeds were run"
        return kind and kind("--score", score, self.judgement.verdict, runs, "see above")

    def notes(self) -> Iterator[str]:
        """What a reader should know."""
        for name, of in self.scores.items():
            if len({*of.values()}) == 1:
                yield (
                    f"{name} has the same score with each seed: no seed that is set from outside "
                    "moves it; write {seed} where it takes one."
                )

    def text(self, more: Sequence[str]) -> str:
        """What a terminal shows. more: notes, which come first."""
        rows = [("", "score", "s per run", "speedup", "95 % interval", "command")]
        for command in self.commands:
            name, mean = command.name, estimate(self.scores[command.name]).mean
            seconds, cells = self.times.seconds.get(name), self.times.cells(name)
            took = "" if seconds is None else digits(seconds)
            rows.append((name, f"{mean:.6g}", took, *cells[:2], one_line(command.text)))
        after = f"{counted(self.judgement.seeds, 'seed')} in {self.seconds / 60:.1f} min."
        notes = [*more, *self.notes()]
        return screen(f"{self.judgement}.", aligned(rows), notes, after, most=None)

    def data(self, exit_code: int) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "version": 3,
            "exit": exit_code,
            **asdict(self.judgement),
            "scores": {name: [*of.values()] for name, of in self.scores.items()},
            "seconds": dict(self.times.seconds),
        }


def judge(scores: Numbers, rule: Rule, names: Sequence[str] = "AB") -> Judgement:
    """Judge B against A by paired scores, of three seeds at least, as a study judges its scores.

    A change is kept if its gain is shown to be above 0, and discarded if the gain is shown to be
    below the margin; if both are shown, it is discarded, and if neither, more runs are asked for.
    Of a change that is to be as good both limits are a loss of the margin.
    """
    sign = -1.0 if rule.better == "less" else 1.0
    columns = zip(names, zip(*scores, strict=True), strict=True)
    values = {name: dict(enumerate(of)) for name, of in columns}
    settings = Settings(margin=rule.margin, better=rule.better, looks=len(SEEDS), level=rule.level)
    [pair] = compare_values([], values, settings).score
    difference, low, high = pair.difference or 0.0, pair.low, pair.high
    sure = settings.confidence
    varies = len({of for of, _ in scores}) == len(scores)  # those of few digits may be equal
    if low is None or high is None or (low == high and (difference or not varies)):
        return Judgement(MORE, pair.n, difference, None, None, OPEN_WORD, None, names, sure)
    gain, least, most = sign * difference, *sorted((sign * low, sign * high))
    keeps, discards = (-rule.margin, -rule.margin) if rule.as_good else (0.0, rule.margin)
    verdict, needed = MORE, None
    if most < discards:
        verdict = DISCARD
    elif least > keeps:
        verdict = KEEP
    else:
        distance = max(abs(gain - keeps), abs(gain - discards))
        needed = number_needed(pair.n, most - gain, distance, SEEDS[-1], OF_SEEDS)
    near = -rule.margin < least and most < rule.margin
    word = "better" if least > 0 else "worse" if most < 0 else "as good" if near else OPEN_WORD
    word += f": less than {rule.margin:g} apart" if near else ""
    return Judgement(verdict, pair.n, difference, low, high, word, needed, names, sure)


def score_of(log: Path, command: Command, score: re.Pattern[str] | str) -> float:
    """The score of a run that has ended. Raises ConfigError: a missing one is no loss.

    log: with its output. score: as of `Rule`.
    """
    if isinstance(score, re.Pattern):
        text = last_match(score, tail(log, LARGEST_LOG))
        where = f"the last match of {score.pattern}"
    else:
        text, where = str(in_folder(log, score)), score
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not abs(number) <= LARGEST:
        wrong = f"its score is {one_line(text)[:100]}"
        allowed = f"{where} has to be a number of at most {LARGEST:g}"
        raise command.failure(wrong, allowed, f"correct it, see {log}")
    return number


def last_match(pattern: re.Pattern[str], text: str) -> str:
    """What a pattern matches last."""
    matches = deque(pattern.finditer(text), maxlen=1)
    return (matches[0].group(bool(pattern.groups)) if matches else None) or "no match"


def in_folder(log: Path, score: str) -> object:
    """What a score in the folder of a run is; why there is none, in words."""
    name, _, key = score.removeprefix(OUT).partition(":")
    folder = max(log.parent.glob(f"{log.stem}-*"), default=None)
    if folder is None:
        return "no folder: it is gone"
    if name.endswith(".json"):
        try:
            value: Any = read_json(folder / name.lstrip("/"))
            for part in key.split("."):
                value = value[int(part)] if isinstance(value, list) else value[part]
        except (OSError, ValueError, LookupError, TypeError) as error:
            return f"{type(error).__name__} {error}"
        return value
    from tensorboard.backend.event_processing import event_accumulator  # here, as it takes seconds

    events = event_accumulator.EventAccumulator(str(folder / name.lstrip("/")))
    try:
        return events.Reload().Scalars(key)[-1].value
    except Exception as error:  # whatever a folder that is none of its own makes it raise
        return f"no scalar of TensorBoard: {type(error).__name__} {error}"


def seeds_of(command: Command, seed: int) -> dict[str, str]:
    """The variables of a run with the seeds of a round."""
    return {
        "PYTHONPATH": command.python_path,
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", str(seed)),
        "NINEFOLD_BENCH_SEED": str(seed),
        CHANGES: command.told,
    }


def judge_runs(
    commands: Sequence[Command], rule: Rule, keep: Path, told: Callable[[Judged], None]
) -> None:
    """Run two commands with one seed after another until it is decided.

    told: called with what is known at each look. Raises Failure.
    """
    names, order, began = [command.name for command in commands], secrets.token_hex(8), time.time()
    scores: dict[str, dict[int, float]] = {name: {} for name in names}
    log = TurnLog()
    if any(change.axis for command in commands for change in command.changes):
        require_changes(commands, keep)
    for seed in range(SEEDS[-1]):
        for name in drawn(names, order, seed):
            command = commands[names.index(name)]
            (loaded := scratch() / "loaded").unlink(missing_ok=True)
            seconds = run_whole(command, seed, keep, seeds_of(command, seed))
            if loaded.exists():
                command.require_environment(read_text(loaded).splitlines())
            elif SEED not in command.text:
                wrong, do = "its seeds cannot be set", "write {seed} in it, or leave that out"
                raise command.failure(f"{NO_HOOK[0]}: {wrong}", NO_HOOK[1], do)
            log.add(name, seed, seconds=seconds, steps=1)
            scores[name][seed] = score_of(command.log(keep, seed), command, rule.score)
        if seed + 1 in SEEDS:
            pairs = [(scores[names[0]][n], scores[names[1]][n]) for n in range(seed + 1)]
            judgement = judge(pairs, rule, names)
            facts = facts_of(names, log.turns, {}, seed + 1, Settings())
            of_seeds = {name: dict(of) for name, of in scores.items()}
            seconds = time.time() - began
            told(Judged(judgement, commands, of_seeds, times(facts), seconds))
            fixed = all(len({*of.values()}) == 1 for of in scores.values())
            if judgement.verdict != MORE or (fixed and seed + 1 > SEEDS[0]):
                return  # no further seed would move what none has moved


def require_changes(commands: Sequence[Command], keep: Path) -> None:
    """Raise ConfigError unless the first step of each command shows that it is changed."""
    hellos = dict[str, Sequence[Hello]]()
    for command in commands:
        with (
            closing(HeldCommand(command, SEEDS[-1], keep, {*MARKS})) as held,  # no run's number
            telling(f"the first step of {command.name}; its output is in {held.log}"),
        ):
            try:
                poll_until(held.arrived, interval=LOOK_SECONDS)
            except Failure as failure:
                if "--whole" in failure.do:  # which --score is already
                    do = "leave that option out, or give two commands"
                    raise command.failure(failure.wrong, failure.allowed, do) from failure
                raise
            hellos[command.name] = held.hellos
    require_effect({each.name: each.changes for each in commands}, hellos)
