"""What a bench says: one sentence, a table, notes; as text, markdown and JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from ninefold.answer.needed import rounds_for_pair
from ninefold.answer.screen import NOTES, narrowed, screen
from ninefold.answer.times import Times
from ninefold.answer.words import clause, content, speedup
from ninefold.bench import batches, gate, output
from ninefold.bench.measurements import Measurements
from ninefold.bench.notes import MOSTLY, compared, left_out, notes
from ninefold.errors import Failure, Slower, Undecided, one_line
from ninefold.numbers import counted, digits, plural
from ninefold.progress import aligned
from ninefold.stats.verdicts import UNDECIDED, Pair
from ninefold.tables import code, grid, plain
from ninefold.types import LEAST_ROUNDS

VERSION = 3  # of the JSON
QUIETER, FEW, BOUND = "a quieter machine", "too few rounds", "upper bound"
LINES = 12  # of all that is shown on a terminal
MARK = "<!-- ninefold bench -->"  # by which a later comment finds the one that it replaces


@dataclass(frozen=True)
class Summary:
    """What is said of measurements. stopped: whether a signal or a failure has ended them."""

    measured: Measurements
    stopped: bool = False

    @cached_property
    def times(self) -> Times:
        return self.measured.times()

    @cached_property
    def notes(self) -> list[str]:
        return [*notes(self.measured, self.times)]

    @property
    def verdict(self) -> str | None:
        """Of the gates together; None without one."""
        found = [each.verdict for each in self.measured.gates(self.times)]
        if found and (self.measured.paced or self.stopped):
            return gate.UNDECIDED
        return next((each for each in gate.WORST_FIRST if each in found), None)

    @property
    def is_early(self) -> bool:
        """Whether there were too few rounds to say anything, and there is something left to say."""
        measured = self.measured
        if measured.helps is not None and len(measured.commands) == 1 and measured.rounds:
            return False
        return measured.rounds < LEAST_ROUNDS

    @property
    def too_few(self) -> tuple[str, str]:
        """How many rounds there were, and how many it takes."""
        rounds = counted(self.measured.rounds, "round")
        time = "it was stopped after" if self.stopped else "there was time for"
        return f"{time} {rounds}", f"an answer takes {LEAST_ROUNDS} that count"

    @property
    def told(self) -> Pair:
        """The pair that the sentence tells: the fastest of those that are faster than the first;
        else of those that are open, else of all.
        """
        pairs = self.times.against_baseline
        faster = [pair for pair in pairs if pair.verdict == "faster"]
        open_ = [pair for pair in pairs if pair.verdict in UNDECIDED]
        return max(faster or open_ or pairs, key=lambda pair: pair.speedup or 0.0)

    # What to do next.

    @property
    def next_step(self) -> str:
        """What to do now: use a command, or what would decide it; empty: nothing is left to do."""
        measured, helps = self.measured, self.measured.helps
        if self.stopped:
            return ""
        if measured.paced:
            return "--apart, one command at a time"
        if self.is_early:
            return f"--minutes {self.minutes_for(max(LEAST_ROUNDS, measured.rounds + 1)):g}"
        pairs = self.times.against_baseline if helps is None else helps.open
        if open_ := [pair for pair in pairs if pair.verdict in UNDECIDED]:
            return self.would_decide(open_)
        used = self.to_use
        unsure = ", if it trains as well" if measured.examples.get(used, 1.0) != 1 else ""
        return used and f"use {used}{unsure}"

    @property
    def to_use(self) -> str:
        """What is to be used once nothing is open."""
        helps = self.measured.helps
        if helps is not None:
            if helps.together:
                return str(helps.together.second)
            return str(helps.changes[0]["name"]) if helps.changes else ""
        best = self.told
        if best.verdict == "tie":
            return "either" if len(self.measured.commands) == 2 else str(best.first)
        return str(best.second if best.verdict == "faster" else best.first)

    def would_decide(self, pairs: Sequence[Pair]) -> str:
        """What would decide these pairs, or give each as many rounds as that takes."""
        same, done = self.measured.options.same, self.measured.rounds
        rounds = [done + LEAST_ROUNDS - pair.rounds for pair in pairs if has_few(pair)]
        needed: Sequence[int | None] = rounds or [rounds_for_pair(p, same, done) for p in pairs]
        known = [number for number in needed if number is not None]
        return f"--minutes {self.minutes_for(max(known)):g}" if known == needed else QUIETER

    def minutes_for(self, rounds: int) -> float:
        """Minutes for so many rounds, in halves."""
        minutes = self.measured.seconds / max(self.measured.rounds, 1) / 60
        return math.ceil(2 * minutes * rounds) / 2

    # The answer in one line, and in an error.

    @property
    def lead(self) -> str:
        """The answer in one line."""
        measured = self.measured
        if measured.paced:
            names = " and ".join(measured.paced)
            return (
                f"Not decided: {names} catches up after each pause, so that taking turns misleads."
            )
        if self.verdict is not None and not self.stopped:
            said = "; ".join(said for _, said in self._gates())
            return f"Gate {self.verdict}: {said}."
        if self.is_early:
            return f"Not decided: {', and '.join(self.too_few)}."
        return self.sentence if measured.helps is None else measured.helps.lines[0]

    def _gates(self) -> Iterator[tuple[gate.Gate, str]]:
        """Each gate, and what it shows."""
        for each in self.measured.gates(self.times):
            yield each, gate.clause(each, self.measured.settings, self.measured.what)

    @property
    def sentence(self) -> str:
        """What was shown, and no more: of several commands how the best compares with the first."""
        measured, best = self.measured, self.told
        pairs, said = self.times.against_baseline, self.against_first(best)
        if len(pairs) > 1 and best.verdict not in ("faster", *UNDECIDED):
            number = speedup(best, measured.settings)
            said = f"No command is faster than {best.first}; the closest is {best.second}, {number}"
        more = [
            f"{count} more {plural(count, 'is', 'are')} {what}"
            for verdicts, what in ((("faster",), "faster, too"), (UNDECIDED, "not decided"))
            if (count := sum(pair.verdict in verdicts for pair in pairs if pair is not best))
        ]
        share = max(left_out(measured, name).share for name in measured.names)
        alone = f"in steps alone, without {100 * share:.0f} % of the time"
        how = ["one after another"] * measured.options.apart + [alone] * (share > MOSTLY)
        return "; ".join([said, *more]) + (f" ({'; '.join(how)})." if how else ".")

    def against_first(self, pair: Pair) -> str:
        """How another command compares with the first, how sure that is, what would decide it."""
        measured, first, other = self.measured, str(pair.first), str(pair.second)
        said = clause(pair, measured.settings, measured.what)
        one, several = (measured.told[name].get("world", 1) for name in (first, other))
        seen = [batches.examples(measured.batches.get(name)) for name in (first, other)]
        if several != one == 1 and pair.speedup and all(seen):
            share = 100 * pair.speedup * one / several
            said += f"; each of its {several} processes does {share:.0f} %"
        rounds = rounds_for_pair(pair, measured.options.same, measured.rounds)
        if pair.verdict in UNDECIDED and rounds:
            return f"{said}; about {rounds} rounds would decide it"
        return said

    @property
    def failure(self) -> Failure | None:
        """What ends the command with an exit code of its own: a gate that fails comes first."""
        found = filter(None, self._failures())
        return min(found, key=lambda each: not isinstance(each, Slower), default=None)

    def _failures(self) -> Iterator[Failure | None]:
        measured, options = self.measured, self.measured.options
        for name, pause in measured.paced.items():
            yield Undecided(
                "command",
                next(each.text for each in measured.commands if each.name == name),
                f"its steps catch up after a pause: {1000 * pause.first:.4g} ms right after one of "
                f"{pause.pause:.1f} s, {1000 * pause.later:.4g} ms later",
                "steps are compared in turns if they wait for no clock and for nothing from "
                "outside",
                "--apart pauses no command for another, --whole times full runs"
                if measured.helps is None
                else "have them wait for nothing, or give two commands and --apart",
            )
        if measured.paced:
            return
        if self.is_early:
            yield Undecided("minutes", f"{options.minutes:g}", *self.too_few, self.next_step)
        for each, said in self._gates():
            yield gate.failure(each, said, measured.seconds / 60, measured.rounds)

    # The whole of it.

    def table(self) -> list[tuple[str, ...]]:
        """Header and a row for each command; examples a second where all are known."""
        measured, times = self.measured, self.times
        seen = [batches.examples(measured.batches.get(name)) for name in measured.names]
        known = all(seen) and measured.names == [*times.seconds]
        of_steps = ("examples/s",) if known else ()
        peaks = {name: fmean(of.values()) for name, of in measured.memory.items() if of}
        of_memory = ("memory, GiB",) if peaks.keys() >= {*measured.names} else ()
        unit = "ms per run" if measured.options.whole else "ms per step"
        sure = f"{measured.settings.confidence:g} % interval"
        cells: tuple[str, ...] = (f"speedup{measured.what}", sure, "verdict")
        rows: list[tuple[str, ...]] = [("", *of_steps, unit, *cells, *of_memory, "command")]
        for command in measured.commands:
            name = command.name
            wall = digits(1000 * times.seconds[name]) if name in times.seconds else ""
            # Other numbers of examples may be as many in another form: those of the first are told.
            examples = (seen[0] or 0) * measured.examples.get(name, 1.0)
            rate = [digits(examples / times.seconds[name]) for _ in of_steps]
            cells = times.cells(name)
            if measured.paced and name != times.baseline:
                cells = "", "", "not decided"
            elif has_few(times.pair(times.baseline, name)):
                cells = cells[0], "", FEW
            elif command.leaves_out:
                cells = *cells[:2], BOUND
            memory = [f"{peaks[name] / 2**30:.2f}" for _ in of_memory]
            rows.append((name, *rate, wall, *cells, *memory, one_line(command.text)))
        return rows

    def text(self, keep: Path, whole: bool) -> str:
        """What a terminal shows. keep: the folder of details. whole: with all rows and notes."""
        rows = self.table()
        shown_rows = rows if whole else narrowed(rows, self.times.seconds)
        most = None if whole else min(NOTES, LINES - 5 - len(shown_rows[1:]))
        rounds, minutes = counted(self.measured.rounds, "round"), self.measured.seconds / 60
        after = f"{rounds} in {minutes:.1f} min"
        if self.next_step and self.verdict is None:
            after += f"; next: {self.next_step}"
        left = len(rows) - len(shown_rows)
        more = f", with {counted(left, 'more row')}" if left else ""
        details = f"{after}. Details{more}: {os.path.relpath(keep / output.DETAILS)}"
        return screen(self.lead, aligned(shown_rows), self.notes, details, most=most)

    def markdown(self) -> str:
        """A comment on a pull request."""
        mark = {"passes": "✅ ", "fails": "❌ ", "undecided": "❔ "}.get(self.verdict or "", "")
        said, rows, more = self._parts()
        return (
            f"{MARK}\n{mark}{said}\n\n{rows}\n\n<details><summary>Conditions</summary>\n\n"
            f"{more}\n\n</details>\n"
        )

    def details(self) -> str:
        """All that is known, as Markdown."""
        return "\n\n".join(self._parts()) + "\n"

    def _parts(self) -> tuple[str, str, str]:
        """The lead; the table; the notes and the commands, as Markdown."""
        header, *rows = ([plain(cell) for cell in row[:-1]] for row in self.table())
        commands = [f"{plain(c.name)}: {code(c.text)}" for c in self.measured.commands]
        more = [f"- {line}" for line in (*self.notes, *commands)]
        return self.lead, grid(header, rows), "\n".join(more)

    def data(self, exit_code: int) -> dict[str, Any]:
        """The answer as JSON."""
        measured, times, apart = self.measured, self.times, compared(self.measured)
        commands = [
            {
                "name": (name := command.name),
                "command": command.text,
                "torch": measured.told[name].get("torch"),
                "world": measured.told[name].get("world"),
                "examples": batches.examples(measured.batches.get(name)),
                "seconds": times.seconds.get(name),
                "memory": [*measured.memory[name].values()],
                "revision": command.copy and command.copy.commit,
                "restarts": measured.restarts[name],
                "apart": apart.get(name),
                "catches_up": name in measured.paced,
                "not_counted": {
                    what: {"steps": len(seconds), "seconds": sum(seconds)}
                    for what, seconds in measured.not_counted(name).items()
                },
            }
            for command in measured.commands
        ]
        turns = measured.counted().turns
        return {
            "version": VERSION,
            "sentence": self.lead,
            "notes": self.notes,
            "exit": exit_code,
            "seed": measured.seed,
            "commands": commands,
            "pairs": [self.pair_as_data(pair) for pair in times.against_baseline],
            "changes": measured.helps and measured.helps.changes,
            "gate": self.verdict
            and {
                "allowed": measured.options.allowed,
                "allowed_memory": measured.options.allowed_memory,
                "verdict": self.verdict,
            },
            "others": times.busy,
            "turns": [[t.round, t.turn, t.name, t.seconds, t.steps, t.left_out] for t in turns],
        }

    def pair_as_data(self, pair: Pair) -> dict[str, Any]:
        """A pair as JSON has it."""
        command = next(each for each in self.measured.commands if each.name == pair.second)
        said: dict[str, str | None] = {"verdict": BOUND} if command.leaves_out else {}
        if has_few(pair):
            said = {"low": None, "high": None, "verdict": FEW}
        needed = rounds_for_pair(pair, self.measured.options.same, self.measured.rounds)
        sure = {"confidence": self.measured.settings.confidence, "needed": needed}
        return {**content(pair), **said, **sure}


def has_few(pair: Pair | None) -> bool:
    """Whether a pair had too few rounds for a verdict."""
    return pair is not None and pair.rounds < LEAST_ROUNDS
