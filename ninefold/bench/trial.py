"""What would make a script faster: changes that are tried, each beside the script as it is.

Those that do not apply are not started, those that bring nothing are given up after a round, and
the rest are also tried together. What is left is compared as any commands are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from ninefold.bench.contestant import Command, Script
from ninefold.bench.cures import (
    AS_IT_IS,
    BOUNDS,
    READING,
    TOGETHER,
    Cure,
    as_it_is,
    of_machine,
    with_cures,
    without_parts,
)
from ninefold.bench.engine import Alive, Bench, Found, Helps
from ninefold.errors import Failure
from ninefold.machine import cores
from ninefold.stats.verdicts import Pair
from ninefold.tournament import rule
from ninefold.tournament.budget import LEAST_ROUNDS
from ninefold.tournament.times import clause, content, interval, shown

FIRST_TURNS = 12  # of each in the first round, at least
STRETCHES = 0.05  # share of the time that long stretches may take
COSTS_NOTHING = 1.02  # speedup without a part up to which a cure of that part is given up


class Trial(Bench):
    """Compares one command with copies of it, each of which has one cure.

    script: what the script has, known after its first step. not_tried: cures that it cannot use,
    and why. given_up: cures that looked no faster, or slower than another of their kind, with their
    speedup then.
    """

    def __init__(self, command: Command, found: Found, keep: Path, ranks: bool) -> None:
        self._command, self._cures = command, {cure.name: cure for cure in of_machine(cores() or 1)}
        found.commands = [
            as_it_is(command),
            *without_parts(command, ranks),
            *(with_cures(command, [cure]) for cure in self._cures.values()),
        ]
        # All start in the first round alone, which decides who goes on.
        super().__init__(found, keep, first_turns=FIRST_TURNS, stretch_share=STRETCHES)
        self.script: Script | None = None
        self.not_tried = dict[str, str]()
        self.given_up = dict[str, float]()
        self._first_steps = dict[str, float]()  # seconds until it ended, of the first round

    def start(self, left: Sequence[str], number: int) -> Sequence[Alive]:
        """Start what is left; in the first round the command first, which says what may help it."""
        if self.script is not None:
            return super().start(left, number)
        with ExitStack() as started:
            alive = list(super().start([AS_IT_IS], number))
            for each in alive:
                started.callback(each.close)
            self._choose()
            others = [name for name in left if name in self.found.names and name != AS_IT_IS]
            alive += super().start(others, number)
            started.pop_all()
        return alive

    @property
    def names(self) -> Sequence[str]:
        """Those that take part; none once nothing is left to try."""
        names = super().names
        return names if len(names) > 1 or not self.given_up else []

    def watches_pauses(self, names: Sequence[str], number: int) -> bool:
        """Whether the effect of a pause (SIGSTOP) is measured: only for the unchanged command."""
        return number == 0 and list(names) == [AS_IT_IS]

    def note_arrival(self, these: Sequence[Alive]) -> None:
        """Note what the command has, and how long each took to its first step."""
        for each in these:
            self._first_steps.setdefault(each.name, each.held.first_step_seconds)
            if each.name == AS_IT_IS:
                self.script = self.script or each.held.script

    def drop(self, name: str, failure: Failure) -> None:
        """Leave a cure out with which the command fails."""
        if name == AS_IT_IS:
            raise failure
        self.failed[name] = failure
        self._keep_only([other for other in self.found.names if other != name])

    def round_ended(self, number: int) -> None:
        super().round_ended(number)
        if not self.found.paced:
            self._give_up()
            self._combine()

    def _choose(self) -> None:
        """Leave out what does not apply to the command."""
        assert self.script is not None
        lacks = {name: cure.lacks(self.script) for name, cure in self._cures.items()}
        self.not_tried |= {name: why for name, why in lacks.items() if why is not None}
        without_loader = {READING} if self.script["workers"] is None else set()
        left_out = {*self.not_tried, *without_loader}
        self._keep_only([name for name in self.found.names if name not in left_out])

    def _pairs(self) -> dict[str, Pair]:
        """Each other command against the command as it is."""
        return {str(pair.second): pair for pair in self.found.pairs(self.found.times())}

    def _give_up(self) -> None:
        """Go on without cures that are not faster so far, and with the best of each kind."""
        pairs, kept, kinds = self._pairs(), [AS_IT_IS], set[str]()
        speed = {name: pair.speedup or 0.0 for name, pair in pairs.items()}
        for name in sorted(speed, key=lambda name: -speed[name]):
            cure, pair = self._cures.get(name), pairs[name]
            if cure is None:  # a bound, or several together
                goes_on = speed[name] > COSTS_NOTHING
            else:
                pointless = speed.get(str(cure.bound), 2.0) <= COSTS_NOTHING
                helps = speed[name] > 1 and pair.verdict not in ("tie", "slower")
                goes_on = helps and cure.kind not in kinds and not pointless
                if goes_on:
                    kinds.add(cure.kind)
            if goes_on:
                kept.append(name)
            else:
                self.given_up[name] = speed[name]
        self._keep_only(kept)

    def _combine(self) -> None:
        """Have those that are left tried together as well."""
        cures = [self._cures[name] for name in self.found.names if name in self._cures]
        both = with_cures(self._command, cures)
        others = [each.name for each in self.found.commands if TOGETHER in each.name]
        if both.name in others or both.name in self.given_up or both.name in self.failed:
            return
        self._keep_only([name for name in self.found.names if name not in others])
        if len(cures) > 1:
            self.found.commands = [*self.found.commands, both]

    def _keep_only(self, names: Sequence[str]) -> None:
        self.found.commands = [each for each in self.found.commands if each.name in names]

    def is_enough(self) -> bool:
        """Whether it is known of each that is left how fast it is."""
        pairs = self._pairs()
        rounds = [pair.rounds for pair in pairs.values()]
        return min(rounds, default=self.found.rounds) >= LEAST_ROUNDS and rule.are_known(
            [*pairs.values()]
        )

    def _named(self, pairs: Mapping[str, Pair]) -> list[tuple[Cure, Pair]]:
        """The cures that are shown to help, the best first."""
        found = [
            (self._cures[name], pair)
            for name, pair in pairs.items()
            if name in self._cures and pair.verdict == "faster"
            and pair.low is not None and pair.low > 1 + self.found.same
        ]  # fmt: skip
        return sorted(found, key=lambda each: -(each[1].speedup or 0.0))

    def helps(self) -> Helps:
        """What is said of the cures."""
        pairs = self._pairs()
        named = self._named(pairs)
        cures = [
            {
                "name": cure.name,
                "line": self._line(cure),
                "where": self._where(cure),
                **content(pair),
            }
            for cure, pair in named
        ]
        return Helps([*self._lines(pairs, named)], [*self._notes()], cures)

    def _lines(
        self, pairs: Mapping[str, Pair], named: Sequence[tuple[Cure, Pair]]
    ) -> Iterator[str]:
        """What helps, and with which line; what it could bring at most; what is not decided."""
        for cure, pair in named:
            line = ", ".join(filter(None, (self._line(cure), self._where(cure))))
            yield f"{cure.does} it is {times_as_fast(pair)}: {line}."
            yield from self._costs(cure, pair)
        for name, pair in pairs.items():
            if TOGETHER in name and pair.verdict == "faster":
                yield f"Together ({name}) they are {times_as_fast(pair)}."
        for bound, (does, _) in BOUNDS.items():
            if bound in pairs and pairs[bound].verdict == "faster":
                yield f"{does} it would be {times_as_fast(pairs[bound])}: that is the limit there."
        names = {cure.name for cure, _ in named}
        for name, pair in pairs.items():
            if name in self._cures and name not in names:
                yield f"{clause(pair, self.found.settings)}."

    def _notes(self) -> Iterator[str]:
        """What was given up, and what does not apply."""
        nothing = [
            f"{name} ({shown(speedup)} times as fast)"
            for name, speedup in self.given_up.items()
            if name in self._cures
        ]
        if nothing:
            yield f"Given up, as no faster or not the best of its kind: {', '.join(nothing)}."
        for name, failure in self.failed.items():
            yield f"{name} was left out, as it failed: {failure.wrong}; {failure.allowed}."
        left_out = [f"{name} ({why})" for name, why in self.not_tried.items()]
        if left_out:
            yield f"Not tried: {', '.join(left_out)}."

    def _where(self, cure: Cure) -> str | None:
        """The line of the script that a cure is about."""
        where = {} if self.script is None else dict(self.script)
        return None if (line := where.get(cure.where)) is None else str(line)

    def _line(self, cure: Cure) -> str:
        """What to write."""
        framework = str(self.script and self.script.get("framework"))
        return cure.in_framework.get(framework, cure.line)

    def _costs(self, cure: Cure, pair: Pair) -> Iterator[str]:
        """From which step on compiling pays; that numbers change."""
        seconds = self.found.times().seconds
        if cure.name == "compile":
            first = self._first_steps
            beside = [first[each] for each in first if each in BOUNDS] or [first[AS_IT_IS]]
            spent = max(first["compile"] - median(beside), 0.0)  # these started with it
            won = seconds[AS_IT_IS] - seconds["compile"]
            from_step = f"it pays from step {spent / won:,.0f} on"
            yield f"Its first step took {spent:.0f} s longer: {from_step}."
        if cure.alters:
            yield f"{cure.name} rounds differently: --score says whether the result is kept."


def times_as_fast(pair: Pair) -> str:
    return f"{shown(pair.speedup)} times as fast ({interval(pair)})"
