"""Decides what a study runs next: unfinished rounds, then new ones, within the budget.

A round is one run of each cell with one seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ninefold.study.plan import Plan
from ninefold.study.record import StudyFolder
from ninefold.study.screen import duration
from ninefold.study_record import Round


class RoundSchedule:
    """The rounds and runs still to be made in this segment, until the plan or the budget ends.

    settings: the section `study` of the configuration (budget in minutes).
    note: tells why a round is not begun.
    cut_short: whether the budget ended the study.
    """

    def __init__(
        self,
        plan: Plan,
        recording: StudyFolder,
        settings: dict[str, Any],
        note: Callable[[str], None],
    ) -> None:
        self._plan, self._recording, self._settings = plan, recording, settings
        self._note = note
        self._left: dict[int, list[int]] = {}  # index in recording.rounds -> runs to be made
        self.cut_short = False
        self._find_missing_runs()

    def next(self, stage: int) -> Round | None:
        """The round to run: an incomplete one, or else a new one of the first `stage`."""
        recording = self._recording
        for place, left in self._left.items():
            if left:
                return recording.rounds[place]
        due = self._due(stage)
        if not due or not self._is_within_budget(due):
            return None
        number = due[0]
        entry = Round(
            number,
            self._plan.seeds[number],
            segment=recording.segment,
            shuffled=self._plan.compares,
        )
        self._left[len(recording.rounds)] = list(range(len(self._plan.cells)))
        recording.rounds.append(entry)
        return entry

    def left(self, entry: Round) -> list[int]:
        """Indices, in the round's order, of the runs left; the caller removes those done."""
        return self._left[self._recording.rounds.index(entry)]

    def to_come(self, stage: int) -> int:
        """Number of runs left."""
        return sum(map(len, self._left.values())) + len(self._plan.cells) * len(self._due(stage))

    def done(self) -> int:
        """How many runs have been made, in all segments (commands) of the study."""
        return sum(
            len(entry.runs) - sum(index < len(entry.runs) for index in self._left.get(place, ()))
            for place, entry in enumerate(self._recording.rounds)
        )

    def _missing(self, entry: Round) -> list[int]:
        """Places in a round's order of the runs that were not made, or failed."""
        return [
            index
            for index in range(len(self._plan.cells))
            if index >= len(entry.runs) or not self._recording.has_ended(entry.runs[index])
        ]

    def _find_missing_runs(self) -> None:
        """Find the runs of this segment's rounds that are to be made, or made again.

        Rounds of an earlier segment stay as they are; those that were interrupted there are run
        again from scratch. Rounds that are not planned any more stay as they are, too.
        """
        rounds = self._recording.rounds
        for place, entry in enumerate(rounds):
            missing = self._missing(entry)
            if self._continues(entry):
                self._left[place] = missing
            elif missing:
                entry.counted = entry.counted and self._was_tried(entry)

    def _continues(self, entry: Round) -> bool:
        """Whether runs of a round may be made: it is of this segment, and planned."""
        current = entry.segment == self._recording.segment
        return current and entry.round < len(self._plan.seeds)

    def _was_tried(self, entry: Round) -> bool:
        """Whether each run of a round ended, failures included."""
        results = [self._recording.result(name) for name in entry.runs]
        tried = [result for result in results if result and result.status != "preempted"]
        return len(tried) == len(self._plan.cells)

    def _due(self, stage: int) -> list[int]:
        """Numbers of the rounds of a stage that this segment has to begin."""
        begun = {
            entry.round
            for entry in self._recording.rounds
            if entry.segment == self._recording.segment or entry.counted
        }
        return [number for number in range(stage) if number not in begun]

    def _is_within_budget(self, due: list[int]) -> bool:
        """Whether another round is expected to end within the budget; notes it if it is not."""
        budget = self._settings["budget"]
        expected = self._recording.seconds_of_a_run() * len(self._plan.cells)
        recording = self._recording
        spent = recording.seconds - recording.timing_seconds
        if budget is None or spent + expected <= budget * 60:
            return True
        if not self.cut_short:
            seeds = ", ".join(str(self._plan.seeds[number]) for number in due)
            self._note(
                f"study.budget={budget}: {duration(spent)} are spent, and a round "
                f"takes about {duration(expected)}: seeds {seeds} were not run"
            )
        self.cut_short = True
        return False
