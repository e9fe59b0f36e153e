"""What is asked of a bench, and what is seen of its commands."""

from __future__ import annotations

import math
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ninefold.answer.decision import are_decided
from ninefold.answer.facts import facts_of
from ninefold.answer.times import Times, times
from ninefold.bench import change
from ninefold.bench.batches import PER_EXAMPLE, StepBatch
from ninefold.bench.command import Command
from ninefold.bench.gate import FAILS, MEMORY, TIME, UNDECIDED, Gate, memory_pair
from ninefold.bench.messages import Hello
from ninefold.bench.pacing import Pause
from ninefold.diff.compare import Training
from ninefold.stats.verdicts import Pair, Settings
from ninefold.tournament.contestant import Look
from ninefold.tournament.taken import Counted, TakenTurn, TurnLog, counted
from ninefold.types import LEAST_ROUNDS

BESIDE = "other programs computed on it"  # of a turn on a GPU


@dataclass(frozen=True)
class Options:
    """What is asked.

    minutes: that all takes, starts included. same: share of time within which commands tie. apart:
    whether commands are alive one after another. whole: whether full runs are timed. allowed: the
    slow-down that a gate allows, if it is one. allowed_memory: the same of the peak of memory.
    """

    minutes: float = 2.0
    same: float = 0.02
    apart: bool = False
    whole: bool = False
    allowed: float | None = None
    allowed_memory: float | None = None


class Helps(NamedTuple):
    """What makes a command faster.

    lines: what is said. notes: what was not tried to its end. changes: those that are named, as
    data. together: all of them, or as much of it as was tried in one command, if that is faster.
    open: what is not decided.
    """

    lines: Sequence[str]
    notes: Sequence[str]
    changes: Sequence[Mapping[str, Any]]
    together: Pair | None
    open: Sequence[Pair]


@dataclass(frozen=True)
class Measurements:
    """What was seen of commands. Those who measure add to what is in it.

    commands: the first is the one that others are held against, but where `bases` names another.
    seed: of what was drawn. log: all turns. looks: the share of the time at each look, by rounds.
    ends: seconds that had passed then, by the number of complete rounds.

    By command: hellos: what each rank said after its first step. told: what the hook said last.
    recorded: the first steps, with fixed seeds. batches: what a step takes. examples: how many
    times as many a step takes as one of the first; empty: as many, or not seen. alone: seconds of a
    step in a long stretch, by round. memory: bytes, the peak of the process with the most, by
    round. marked: of each step that is not counted the round, what it contained, and its seconds.
    own_work: seconds of each rank's, of steps of the warm-ups. restarts: of its process within a
    round. paced: what was seen of one whose steps catch up after a pause. waits: those that wait
    for the host.

    places: steps that a process had taken, by the order of turns. on_gpu: turns, by what lowered
    the clocks of a GPU, or who computed on it. helps: of `--try`, what makes its command faster.
    """

    commands: Sequence[Command]
    options: Options = Options()
    seed: str = field(default_factory=lambda: secrets.token_hex(8))
    log: TurnLog = field(default_factory=TurnLog)
    looks: dict[int, float] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)
    hellos: dict[str, Sequence[Hello]] = field(default_factory=dict)
    told: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    recorded: dict[str, Training] = field(default_factory=dict)
    batches: dict[str, StepBatch | None] = field(default_factory=dict)
    examples: dict[str, float] = field(default_factory=dict)
    alone: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    memory: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    marked: dict[str, list[tuple[int, str, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    own_work: dict[str, list[list[float]]] = field(default_factory=lambda: defaultdict(list))
    restarts: Counter[str] = field(default_factory=Counter)
    paced: dict[str, Pause] = field(default_factory=dict)
    waits: set[str] = field(default_factory=set)
    bases: dict[str, str] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    on_gpu: Counter[str] = field(default_factory=Counter)
    helps: Helps | None = None

    @property
    def names(self) -> list[str]:
        return [command.name for command in self.commands]

    @property
    def rounds(self) -> int:
        """How many were complete."""
        return max(self.ends, default=0)

    @property
    def seconds(self) -> float:
        """That all took."""
        return self.ends.get(self.rounds, 0.0)

    @property
    def what(self) -> str:
        """What else than the time of a step they are compared by: a part of a sentence."""
        differ = any(factor != 1 for factor in self.examples.values())
        return PER_EXAMPLE if differ else ""

    @property
    def changes(self) -> change.Changes:
        """What was changed of each command."""
        return {command.name: command.changes for command in self.commands}

    @property
    def settings(self) -> Settings:
        """Of the comparison."""
        first, *others = self.names
        asked = {frozenset((base, name)) for name in others for base in (first, self.base(name))}
        return Settings(same=self.options.same, asked=asked)

    def base(self, name: str) -> str:
        """The command that another one is held against."""
        return self.bases.get(name, self.names[0])

    @property
    def turns(self) -> list[TakenTurn]:
        """Those of complete rounds."""
        return [turn for turn in self.log.turns if turn.round < self.rounds]

    def counted(self) -> Counted:
        """Which turns of complete rounds count."""
        return counted(self.turns)

    def not_counted(self, name: str) -> dict[str, list[float]]:
        """Seconds of a command's steps in complete rounds that are not counted, by content."""
        found = dict[str, list[float]]()
        for number, what, seconds in self.marked[name]:
            if number < self.rounds:
                found.setdefault(what, []).append(seconds)
        return found

    def times(self) -> Times:
        """The speedups of all commands so far, for as many examples, and the seconds of a step."""
        facts = facts_of(
            self.names,
            self.turns,
            self.looks,
            self.rounds,
            self.settings,
            stretches=self.alone,
            waits=self.waits,
            work=self.examples,
        )
        made, examples = times(facts), self.examples
        steps = {name: examples.get(name, 1.0) * each for name, each in made.seconds.items()}
        return replace(made, seconds=steps)

    def look(self) -> Look:
        """Whether the answer is known."""
        if self.rounds < LEAST_ROUNDS:
            return Look(decided=False)
        found = self.times()
        verdicts = [each.verdict for each in self.gates(found)]
        if verdicts:  # one that fails decides
            return Look(FAILS in verdicts or UNDECIDED not in verdicts)
        return Look(are_decided(found.against_baseline))

    def gates(self, found: Times) -> Iterator[Gate]:
        """The gates on time and on memory, where they are asked for."""
        if (allowed := self.options.allowed) is not None:
            yield Gate(TIME, found.pairs[0], allowed)
        if (allowed := self.options.allowed_memory) is not None:
            pair = memory_pair(self.names, self.memory, self.looks, self.rounds, self.settings)
            yield Gate(MEMORY, pair, allowed)

    def drift(self, name: str) -> float:
        """By how much a command's steps take longer at the end of a round than at its start.

        A share, from a line through the logarithms of its turns; 0 if it is within `same`, or
        within 4 standard errors.
        """
        turns = [t for t in self.counted().turns if t.name == name and t.left_out is None]
        places = np.array([self.places.get(turn.order, 0) for turn in turns], float)
        logs = np.log([turn.seconds for turn in turns])
        rounds = np.array([turn.round for turn in turns])
        for number in {*rounds}:
            places[rounds == number] -= places[rounds == number].mean()
            logs[rounds == number] -= logs[rounds == number].mean()
        spread, free = float(places @ places), len(turns) - len({*rounds}) - 1
        if free < 6 or not spread:
            return 0.0
        slope = float(places @ logs) / spread
        share = math.expm1(slope * float(np.ptp(places)))
        clear = abs(slope) > 4 * np.linalg.norm(logs - slope * places) / math.sqrt(free * spread)
        return share if clear and abs(share) > self.options.same else 0.0
