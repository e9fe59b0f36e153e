"""What would make an answer surer: the command that measures more, and how long it takes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from ninefold.answer.answer import NextStep
from ninefold.answer.decision import Decision
from ninefold.answer.needed import rounds_for_best, seeds_for_scores
from ninefold.answer.runs import finite
from ninefold.answer.study_facts import StudyFacts
from ninefold.numbers import counted
from ninefold.places import trained_with
from ninefold.stats.verdicts import OPEN
from ninefold.study_record import StudyRecord
from ninefold.words import as_value

MAX_SEEDS = 20  # seeds in all that a command proposes at most


@dataclass(frozen=True)
class NextSteps:
    """What a study may measure further.

    sweep: what it recorded of itself. folder: its own; empty of a recording, which has no run
    folders.
    trust: whether its words need trust=true, and may be repeated with it.
    """

    sweep: StudyRecord
    folder: str
    trust: bool

    def surer(self, found: Decision[StudyFacts]) -> NextStep | None:
        """What measures more; None where the answer is decided, or more would not change it."""
        facts, sweep = found.facts, self.sweep
        if not (sweep.rounds or sweep.timing):
            return None
        if facts.unfinished:
            words = self._budget(self._seconds_of_a_seed)
            return self._step(words, None, "The study is not finished.")
        asked = found.unscored if facts.asks_time else facts.open_scores
        if facts.scored and asked:
            tests = [test for test in facts.comparison.safety if test.cell in asked]
            measured = max((test.n for test in tests), default=0)
            done = max(measured, len(sweep.rounds))
            open_ = [test for test in tests if test.verdict == OPEN]
            needed = seeds_for_scores(open_, facts.settings, done, MAX_SEEDS)
            seeds = needed or min(2 * done, MAX_SEEDS)
            would = "would" if needed else "may"
            text = f"Scores are open: {counted(seeds, 'seed')} in all {would} decide them."
            return self.of_seeds(seeds, text) if seeds > done and measured else None
        if found.decided or not facts.timed or found.named is None:
            return None
        return self.of_time(facts, found)

    def of_seeds(self, seeds: int, text: str) -> NextStep | None:
        """What trains so many seeds in all; None where nothing can. text: what they are for."""
        sweep = self.sweep
        # A resumed study goes on with the seeds that it has run; a round may have been repeated.
        own = list(dict.fromkeys(e.seed for e in sweep.rounds if isinstance(e.seed, int)))
        after = max(own, default=-1) + 1
        words = {"seed": ",".join(map(str, [*own, *range(after, after + seeds - len(own))]))}
        if isinstance(self._setting("rounds"), int):
            words["study.rounds"] = str(seeds)
        further = self._seconds_of_a_seed * (seeds - len(sweep.rounds))
        words |= self._budget(further)
        return self._step(words, further / 60 or None, text)

    def of_time(
        self, facts: StudyFacts, found: Decision[StudyFacts] | None = None
    ) -> NextStep | None:
        """What measures more of the times of a study; None where nothing can.

        found: the decision, if the study asks for the fastest.
        """
        sweep = self.sweep
        if facts.group.on_hosts > 1:
            return None
        if not facts.timed:
            words = {"study.ask": "[time,score]"}
            return self._step(words, None, "This also compares speed, interleaved.")
        budget = finite(self._setting("time_budget"))
        if budget is None or sweep.timing_ended == "rounds":
            return None
        if found is None and sweep.timing_ended == "decided":
            return None  # an extension's answer is open, and which is the fastest is not
        done = len(sweep.timing)
        made = counted(done, "round")
        # study.time_budget is that of all commands of a study together.
        spent = sweep.timing_seconds / 60
        each, text = spent / max(done, 1), "further ones are added to them"
        more = max(budget, 2 * each)  # at least two rounds fit
        if found and (needed := rounds_for_best(found, done)):
            more = each * (max(needed - done, 2) + 0.5)  # a half: starts differ in length
            text = f"{needed} in all would decide it"
        words = {"study.time_budget": f"{math.ceil(100 * (spent + more)) / 100:g}"}
        return self._step(words, more, f"{made} so far: {text}.")

    @property
    def _seconds_of_a_seed(self) -> float:
        """What a round of training runs has taken, of all that the study compares; 0: not known."""
        return self._seconds_of_training / max(len(self.sweep.rounds), 1)

    @property
    def _seconds_of_training(self) -> float:
        return self.sweep.wall_seconds - self.sweep.timing_seconds

    def _setting(self, name: str) -> object:
        return self.sweep.settings.get("study", {}).get(name)

    def _budget(self, further: float) -> dict[str, str]:
        """The budget of a command that trains so many seconds more: none if it would end it."""
        budget = finite(self._setting("budget"))
        ends = budget is not None and self._seconds_of_training + further > 60 * budget
        return {"study.budget": "null"} if ends else {}

    def _step(self, words: Mapping[str, str], minutes: float | None, text: str) -> NextStep | None:
        """The command that goes on with the study, with these keys; None where nothing can."""
        if not (self.folder and self.sweep.command):
            return None
        trust = {"trust": "true"} if self.trust else {}
        words = {"study.resume": as_value(self.folder), **trust, **words}
        command = shlex.join(f"{key}={value}" for key, value in words.items())
        return NextStep(f"{trained_with(self.sweep.command)} {command}", minutes, text)
