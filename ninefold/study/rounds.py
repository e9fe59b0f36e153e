"""What a study is to do next: which round, which of its runs, and how much is left."""

from __future__ import annotations

from typing import Any

from ninefold.study.plan import Plan
from ninefold.study.record import Round, Sitting


class Agenda:
    """What there is to do of a sitting in this part, until the plan is done or the budget spent.

    settings: the section `study`. guarded: whether rounds in which the machine drifted are told and
    repeated. cut_short: by the budget.
    """

    def __init__(
        self, plan: Plan, sitting: Sitting, settings: dict[str, Any], guarded: bool
    ) -> None:
        self._plan, self._sitting, self._settings = plan, sitting, settings
        self._guarded = guarded
        self._left: dict[int, list[int]] = {}  # by place in sitting.rounds: the runs to be made
        self.cut_short = False
        self._count_ended()
        self._find_holes()

    def next(self, stage: int) -> Round | None:
        """The round to play: one with holes, the next of the first `stage`, or a drifted one again.

        Drifted rounds are repeated when all others are there. What disturbed one is likely to last
        for a while, and how fast the machine is at its best is known best at the end.
        """
        sitting, rounds = self._sitting, self._sitting.rounds
        for place, left in self._left.items():
            if left:
                return rounds[place]
        due = self._due(stage)
        number = due[0] if due else self._to_repeat()
        if number is None or not self._may_begin(due):
            return None
        same = [entry for entry in rounds if entry.round == number]
        entry = Round(number, self._plan.seeds[number], attempt=len(same), part=sitting.part)
        entry.shuffled = self._plan.compares
        entry.counted = not any(other.part == entry.part for other in same)
        self._left[len(rounds)] = list(range(len(self._plan.cells)))
        rounds.append(entry)
        return entry

    def left(self, entry: Round) -> list[int]:
        """The places in a round's order of the runs to be made. Whoever makes one takes it out."""
        return self._left[self._sitting.rounds.index(entry)]

    def to_come(self, stage: int) -> int:
        """How many runs are to be made, unless more rounds drift."""
        return sum(map(len, self._left.values())) + len(self._plan.cells) * len(self._due(stage))

    def done(self) -> int:
        """How many runs have been made of the rounds that there are."""
        return sum(
            len(entry.runs) - sum(index < len(entry.runs) for index in self._left.get(place, ()))
            for place, entry in enumerate(self._sitting.rounds)
        )

    def _count_ended(self) -> None:
        """Have the last attempt at a round count if it is complete.

        A command that is told to stop as the last run ends comes no further than that run.
        """
        last = {(entry.round, entry.part): entry for entry in self._sitting.rounds}
        for entry in last.values():
            if not self._missing(entry):
                self._sitting.count(entry)

    def _missing(self, entry: Round) -> list[int]:
        """The places in a round's order of the runs that have not ended well."""
        return [
            index for index in range(len(self._plan.cells))
            if index >= len(entry.runs) or not self._sitting.has_ended(entry.runs[index])
        ]  # fmt: skip

    def _find_holes(self) -> None:
        """Note which runs of the rounds of this part have not ended well: they are made again.

        A round of an earlier part is as it is; one that was cut short there is begun anew. One that
        is not planned any more is left as it is, too.
        """
        for place, entry in enumerate(self._sitting.rounds):
            missing, goes_on = self._missing(entry), self._goes_on(entry)
            replaced = not entry.counted and any(
                other.round == entry.round for other in self._sitting.rounds[place + 1 :]
            )
            if goes_on and not replaced:
                self._left[place] = missing
            elif missing and not goes_on:
                entry.counted = entry.counted and self._was_tried(entry)

    def _goes_on(self, entry: Round) -> bool:
        """Whether runs of a round may be made: it is of this part, and planned."""
        return entry.part == self._sitting.part and entry.round < len(self._plan.seeds)

    def _was_tried(self, entry: Round) -> bool:
        """Whether each run of a round came to some end, be it a failure."""
        results = [self._sitting.result(name) for name in entry.runs]
        tried = [result for result in results if result and result.status != "preempted"]
        return len(tried) == len(self._plan.cells)

    def _due(self, stage: int) -> list[int]:
        """The numbers of the rounds of a stage that were not begun, or not finished in a part."""
        begun = {entry.round for entry in self._sitting.rounds
                 if entry.part == self._sitting.part or entry.counted}  # fmt: skip
        return [number for number in range(stage) if number not in begun]

    def _to_repeat(self) -> int | None:
        """The number of a round that drifted and can be repeated, if there is one."""
        if not self._guarded:
            return None
        sitting, retries = self._sitting, self._settings["retries"]
        for entry in sitting.rounds:
            drifted = self._goes_on(entry) and entry.counted and entry.drifted
            if drifted and sitting.attempts(entry) <= retries:
                return entry.round
        return None

    def _may_begin(self, due: list[int]) -> bool:
        """Whether the budget has room for another round. If it has not, that is said."""
        budget = self._settings["budget"]
        expected = self._sitting.seconds_of_a_run() * len(self._plan.cells)
        spent = self._sitting.seconds - self._sitting.search_seconds
        if budget is None or spent + expected <= budget * 60:
            return True
        if not self.cut_short:
            seeds = ", ".join(str(self._plan.seeds[number]) for number in due)
            what = f"seeds {seeds} were not run" if due else "drifted rounds were not repeated"
            print(
                f"study.budget={budget}: {duration(spent)} are spent, and a round "
                f"takes about {duration(expected)}: {what}",
                flush=True,
            )
        self.cut_short = True
        return False


def duration(seconds: float) -> str:
    """`seconds` for a person."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
