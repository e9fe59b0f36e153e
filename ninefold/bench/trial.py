"""What would make a script faster: changes that are tried, each beside the script as it is.

Where workers can read the data they are tried first: while steps wait for data, other changes have
no visible effect. All others are tried then, with the workers if these look faster. What looks
slower than the script is left after each round, the rest is also tried together. What goes on is
compared as any commands are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from ninefold.answer.decision import are_decided
from ninefold.answer.words import clause, content, interval, shown
from ninefold.bench.change import Change
from ninefold.bench.changes import AS_IT_IS, PARTS, TOGETHER, WORKERS, of_machine, with_changes
from ninefold.bench.command import Command
from ninefold.bench.measurements import Helps, Measurements, Options
from ninefold.bench.messages import Script
from ninefold.bench.precisions import NETWORK
from ninefold.bench.rounds import Alive, Bench
from ninefold.errors import Failure
from ninefold.machine import cores
from ninefold.numbers import counted
from ninefold.stats.verdicts import UNDECIDED, Pair
from ninefold.tournament.contestant import Look
from ninefold.types import LEAST_ROUNDS

LEAST_TURNS = 12  # of each in a round
NO_NETWORK = "no network was seen to train"


class ChangesTrial(Bench):
    """Compares one command with copies of it, each with one change, or with all that help.

    script: facts about the script, learned in its first step. not_tried: changes that the script
    cannot use, and why. given_up: what looked slower than the script, or than a similar change,
    which is named: as a pair with its base when it was left.
    """

    def __init__(self, command: Command, options: Options, keep: Path) -> None:
        self._command, self._changes = command, of_machine(cores() or 1)
        each_alone = (Change(AS_IT_IS), *PARTS, *self._changes)
        commands = [with_changes(command, [change]) for change in each_alone]
        super().__init__(Measurements(commands, options), keep, turns_at_least=LEAST_TURNS)
        self.script: Script | None = None
        self.not_tried = dict[str, str]()
        self.given_up = dict[str, tuple[Pair, str | None]]()
        self._tried = {change.name: change for change in self._changes}  # by command
        self._waiting = list[Change]()  # that are tried once it is known whether workers help
        self._first_steps = dict[str, float]()  # seconds until it ended, of its first process

    def start(self, left: Sequence[str], number: int) -> Sequence[Alive]:
        """Start what is left; in the first round the command first, which says what may help it."""
        if self.script is not None:
            return super().start(left, number)
        [script] = super().start([AS_IT_IS], number)
        try:
            self.choose()
            others = [name for name in left if name in self.measured.names and name != AS_IT_IS]
            return [script, *super().start(others, number)]
        except BaseException:
            script.close()
            raise

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.measured = replace(self.measured, helps=self.helps())

    @property
    def names(self) -> Sequence[str]:
        """Those that take part; none once nothing is left to try."""
        names = super().names
        return names if len(names) > 1 or not self.given_up else []

    def has_one_optimizer(self, name: str) -> bool:
        """Whether the command was seen to have one alone: the others train as it does."""
        return super().has_one_optimizer(AS_IT_IS)

    def watches_pauses(self, names: Sequence[str], number: int) -> bool:
        """Whether the effect of a pause (SIGSTOP) is measured: only for the unchanged command."""
        return number == 0 and list(names) == [AS_IT_IS]

    def note_arrival(self, started: Sequence[Alive]) -> None:
        """Note what the command has, and how long each took to its first step."""
        for each in started:
            self._first_steps.setdefault(each.name, each.first_step_seconds)
            if each.name == AS_IT_IS:
                self.script = self.script or each.hellos[0]["script"]

    def require_effect(self, each: Alive) -> None:
        """Raise ConfigError where a script does not compute in the precision that is tried."""
        for change in each.command.changes:
            seen = change.took_effect(each.hellos)
            if seen is not None and not seen.took:
                raise each.command.failure(
                    f"it still computes in {seen.value or 'float32'}",
                    "autocast around a network of torch.nn, or a framework's variable, is tried",
                    "try its own option, as commands: --each P=V,V",
                )

    def note_batches(self, started: Sequence[Alive]) -> None:
        """Note nothing: no change that is tried is to the batch."""

    def drop(self, name: str, failure: Failure) -> None:
        """Leave out what fails, and what is held against it."""
        if name == AS_IT_IS:
            raise failure
        self.failed[name] = failure
        held = [each for each in self.measured.names if self.measured.base(each) == name]
        self._leave_out([name, *held])

    def round_ended(self, number: int) -> None:
        super().round_ended(number)
        if not self.measured.paced:
            self._give_up()
            if self._waiting:
                self._add_waiting()
            else:
                self._combine()

    def choose(self) -> None:
        """Leave out what does not apply to the command, and what waits for the workers."""
        if self.script is None:
            wrong, do = "it takes its steps without torch", "compare commands: --each K=V,V"
            raise self._command.failure(wrong, "changes to a use of torch are tried", do)
        unseen = self.script["threads"] is None  # as in a function that is compiled
        lacks = dict[str, str]()
        for change in (*PARTS, *self._changes):
            no_network = unseen and change.where == NETWORK
            if why := NO_NETWORK if no_network else change.unavailable(self.script):
                lacks[change.name] = why
        apply = [change for change in self._changes if change.name not in lacks]
        if any(change.kind == WORKERS for change in apply):
            self._waiting = [change for change in apply if change.kind != WORKERS]
        self.not_tried |= {name: why for name, why in lacks.items() if name in self._tried}
        self._leave_out([*lacks, *(change.name for change in self._waiting)])

    def _pairs(self) -> dict[str, Pair]:
        """Each other command against its base."""
        times = self.measured.times()
        names = [name for name in self.measured.names if name != AS_IT_IS]
        pairs = {name: times.pair(self.measured.base(name), name) for name in names}
        return {name: pair for name, pair in pairs.items() if pair is not None}

    def _give_up(self) -> None:
        """Go on with what does not look slower than its base, of each kind with the best.

        Once there is an interval, with what is not shown to be slower or as fast: who goes on
        because he looks faster looks faster than he is.
        """
        pairs = self._pairs()
        bases = {self.measured.base(name) for name in pairs}
        known = {name: pair.speedup for name, pair in pairs.items() if pair.speedup is not None}
        best = dict[str, str]()  # by kind
        for name in sorted(known, key=lambda name: -known[name]):
            change = self._tried.get(name)
            rival = None if change is None else best.setdefault(change.kind, name)
            few = pairs[name].rounds < LEAST_ROUNDS
            no_faster = known[name] < 1 if few else pairs[name].verdict in ("slower", "tie")
            if (no_faster or rival not in (None, name)) and name not in bases:
                self.given_up[name] = pairs[name], None if rival == name else rival
        self._leave_out(self.given_up)

    def _add_waiting(self) -> None:
        """Have the changes tried that have waited, with the workers if these look faster."""
        pairs, base, workers = self._pairs(), AS_IT_IS, list[Change]()
        for name, pair in pairs.items():
            if name in self._tried and (pair.speedup or 0.0) > 1 + self.measured.options.same:
                base, workers = name, [self._tried[name]]
        for change in self._waiting:
            command = with_changes(self._command, [*workers, change])
            self._tried[command.name], self.measured.bases[command.name] = change, base
            self._add(command)
        self._waiting = []

    def _combine(self) -> None:
        """Have those that are left tried together as well."""
        changes = [self._tried[name] for name in self.measured.names if name in self._tried]
        both = with_changes(self._command, changes)
        names = self.measured.names
        others = [name for name in names if TOGETHER in name and name not in self._tried]
        new = len(changes) > 1 and both.name not in {*names, *self.given_up, *self.failed}
        kept = others[-1:] if new else [both.name]  # the last one until the new one has turns
        self._leave_out({*others} - {*kept})
        if new:
            self._add(both)

    def _leave_out(self, names: Collection[str]) -> None:
        commands = [each for each in self.measured.commands if each.name not in names]
        self.measured = replace(self.measured, commands=commands)

    def _add(self, command: Command) -> None:
        self.measured = replace(self.measured, commands=[*self.measured.commands, command])

    def look(self) -> Look:
        """Whether it is known of each that is left how fast it is."""
        pairs = self._pairs()
        rounds = [pair.rounds for pair in pairs.values()]
        enough = min(rounds, default=self.measured.rounds) >= LEAST_ROUNDS
        return Look(enough and are_decided(pairs.values()))

    def _named(self, pairs: Mapping[str, Pair]) -> list[tuple[str, Pair]]:
        """What is shown to help, by command, the best first."""
        faster = [
            (name, pair)
            for name, pair in pairs.items()
            if name in self._tried and pair.verdict == "faster"
            and pair.low is not None and pair.low > 1 + self.measured.options.same
        ]  # fmt: skip
        return sorted(faster, key=lambda each: -(each[1].speedup or 0.0))

    def helps(self) -> Helps:
        """What is said of the changes."""
        pairs = self._pairs()
        named = self._named(pairs)
        changes = [
            {
                "name": (change := self._tried[name]).name,
                "line": self._line(change),
                "where": self._where(change),
                **content(pair),
            }
            for name, pair in named
        ]
        open_ = [pair for pair in pairs.values() if pair.verdict in UNDECIDED]
        together = self._together([name for name, _ in named])
        lines = [*self._lines(pairs, named, together)]
        return Helps(lines, [*self._notes()], changes, together, open_)

    def _lines(
        self, pairs: Mapping[str, Pair], named: Sequence[tuple[str, Pair]], together: Pair | None
    ) -> Iterator[str]:
        """What helps, and with which line; what it could bring at most; what is not decided."""
        if not self._tried.keys() & pairs.keys():
            yield f"No change looked faster after {counted(self.measured.rounds, 'round')}."
        elif together is not None:
            yield f"With {together.second} it is {times_as_fast(together)}."
        elif not named:
            yield f"No change is shown to help after {counted(self.measured.rounds, 'round')}."
        for name, pair in named:
            change, base = self._tried[name], self.measured.base(name)
            line = ", ".join(filter(None, (self._line(change), self._where(change))))
            than = "" if base == AS_IT_IS else f" as with {base} alone"
            yield f"{change.does} it is {times_as_fast(pair, than)}: {line}."
            yield from self._costs(name, pair)
        for part in PARTS:
            if part.name in pairs and pairs[part.name].verdict == "faster":
                most = "that is the most to gain there"
                yield f"{part.does} it would be {times_as_fast(pairs[part.name])}: {most}."
        names = {name for name, _ in named}
        for name, pair in pairs.items():
            if name in self._tried and name not in names and pair.speedup is not None:
                yield f"{clause(pair, self.measured.settings)}."

    def _together(self, named: Sequence[str]) -> Pair | None:
        """All that helps, or as much of it as was tried in one command, if that is faster.

        If nothing is shown to help alone, the fastest of the commands with several changes.
        """
        several = [name for name in self.measured.names if TOGETHER in name]
        rest = [name for name in several if name not in self._tried]
        on_top = [name for name in named if TOGETHER in name]
        times = self.measured.times()
        tried = (*reversed(rest), *on_top) if named else several
        pairs = [times.pair(AS_IT_IS, name) for name in tried]
        faster = [pair for pair in pairs if pair and pair.verdict == "faster"]
        if not named:
            faster.sort(key=lambda pair: -(pair.speedup or 0.0))
        return faster[0] if faster else None

    def _notes(self) -> Iterator[str]:
        """What was given up, and what does not apply."""
        left = [self._left(name) for name in self.given_up if name in self._tried]
        if left:
            yield f"Not tried to the end: {'; '.join(left)}."
        for name, failure in self.failed.items():
            yield f"{name} was left out: {failure.wrong}; {failure.allowed}."
        left_out = [f"{name} ({why})" for name, why in self.not_tried.items()]
        if left_out:
            yield f"Not tried: {', '.join(left_out)}."

    def _left(self, name: str) -> str:
        """When and why a change was left."""
        pair, rival = self.given_up[name]
        looked = f"it looked {shown(pair.speedup)} times as fast"
        if pair.low is not None:
            looked = f"it is {times_as_fast(pair)}"
        after = f"{name} was left after {counted(pair.rounds, 'round')}, as"
        return f"{after} {rival} looked faster" if rival else f"{after} {looked}"

    def _where(self, change: Change) -> str | None:
        """The line of the script that a change is about."""
        where: dict[str, Any] = {**self.script} if self.script else {}
        lines: str | None = where.get(change.where)
        return lines.partition(",")[0] if lines and change.kind == "threads" else lines

    def _line(self, change: Change) -> str:
        """What to write."""
        framework = str(self.script and self.script.get("framework"))
        return change.in_framework.get(framework, change.line)

    def _costs(self, name: str, pair: Pair) -> Iterator[str]:
        """From which step on compiling saves time; that numbers change."""
        change = self._tried[name]
        if change.name == "compile":
            first, seconds = self._first_steps, self.measured.times().seconds[name]
            beside = [first[each] for each in first if each not in (name, AS_IT_IS)]
            spent = max(first[name] - median(beside or [first[AS_IT_IS]]), 0.0)
            won = seconds * ((pair.speedup or 1.0) - 1)
            from_step = f"it breaks even at step {spent / won:,.0f}"
            yield f"Its first step took {spent:.0f} s longer: {from_step}."
        if change.alters:
            yield f"{name} changes rounding: --score tests whether the final score is as good."


def times_as_fast(pair: Pair, than: str = "") -> str:
    return f"{shown(pair.speedup)} times as fast{than} ({interval(pair)})"
