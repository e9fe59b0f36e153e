"""Runs a study: timing rounds, then rounds of whole runs of all cells; or resumes it.

A round is one run of each cell with one seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from ninefold.checkpoint.manifest import has_checkpoint
from ninefold.errors import ConfigError
from ninefold.numbers import counted
from ninefold.progress import duration
from ninefold.result import Result
from ninefold.score import SHARE
from ninefold.study.plan import AXES, Plan, PlannedCell
from ninefold.study.record import StudyFolder
from ninefold.study.screen import Screen, how_ended
from ninefold.study.timing import Timing
from ninefold.study_record import Round
from ninefold.words import as_text

# Makes runs with these overrides; the number is that of the first.
Launch = Callable[[Sequence[Sequence[str]], int], None]


def require_reachable(target: float | None, result: Result) -> None:
    """Raise ConfigError where report.target is no value of the score, which a run first tells."""
    score = result.scoring
    if target is not None and score.unit == SHARE and not 0 < target < 1:
        wrong = f"the {score.name} is a share and cannot be that"
        allowed = "a number above 0 and below 1 is allowed"
        raise ConfigError("report.target", target, wrong, allowed, "correct it, or leave it out")


class Study:
    """A recording, and what remains to be run of it.

    launch: makes runs, and waits for them.
    timing: runs the timing rounds; None where no times were asked.
    concurrent: whether the launcher makes runs at the same time. It is then given whole rounds.
    screen: shows how far it is.
    cut_short: whether the budget ended it. finished: whether everything planned has been run.
    """

    def __init__(
        self,
        plan: Plan,
        recording: StudyFolder,
        launch: Launch,
        timing: Timing | None,
        concurrent: bool,
        screen: Screen,
    ) -> None:
        self._plan, self.recording = plan, recording
        self._budget = recording.settings["study"]["budget"]  # minutes
        self._launch, self._concurrent = launch, concurrent
        self._timing, self._screen = timing, screen
        self.cut_short = self.finished = False
        # Of each planned round the places in its order of the runs that are to be made, or made
        # again. Rounds that are not planned any more stay as they are.
        self._left = {
            entry.round: [
                place
                for place in range(len(plan.cells))
                if place >= len(entry.runs) or not recording.has_ended(entry.runs[place])
            ]
            for entry in recording.rounds[: len(plan.seeds)]
        }

    def run(self) -> None:
        """Make the planned runs that are still missing."""
        self.recording.write()
        self._screen.begin([cell.name for cell in self._plan.cells])
        if self._timing is not None and self.recording.settings["study"]["control"]:
            control, first = self._plan.control, self._plan.cells[0].name
            said = (
                "no A/A control: it takes a first configuration with parallel=none, and a sweep of "
                "strategies, precisions or processes alone"
            )
            if control is not None:
                said = f"and {control.name}, a copy of {first}, for the A/A test"
            self._screen.note(said)
        try:
            if self._timing is not None:
                self._timing.run()
            if "score" in self.recording.asked:
                self._train()
            self.finished = not self.cut_short
        finally:
            self._screen.close()
            self.recording.shown = len(self.recording.rounds) > 1  # one seed has no verdict
            self.recording.write()

    def _train(self) -> None:
        """Make the planned training runs that are still missing."""
        plan, budget = self._plan, self._budget
        if budget is not None and (further := len(plan.seeds) - 1):
            self._screen.note(
                f"study.budget={budget}: one seed of {counted(plan.cells, 'configuration')}, then "
                f"{further} more if they fit into {duration(60 * budget)}"
            )
        for entry in self._rounds():
            self._run_round(entry)

    def _rounds(self) -> Iterator[Round]:
        """The rounds to run: incomplete ones, then new ones until the plan or the budget ends."""
        rounds, seeds = self.recording.rounds, self._plan.seeds
        yield from [entry for entry in rounds if self._left.get(entry.round)]
        for number in range(len(rounds), len(seeds)):
            if number and not self._is_within_budget(seeds[number:]):
                self.cut_short = True
                return
            rounds.append(Round(number, seeds[number], shuffled=self._plan.compares))
            self._left[number] = list(range(len(self._plan.cells)))
            yield rounds[number]

    def _is_within_budget(self, seeds: Sequence[Any]) -> bool:
        """Whether another round is expected to end within the budget; notes it if it is not."""
        budget, recording = self._budget, self.recording
        expected = recording.seconds_of_a_run() * len(self._plan.cells)
        spent = recording.seconds - recording.timing_seconds
        if budget is None or spent + expected <= budget * 60:
            return True
        self._screen.note(
            f"study.budget={budget}: {duration(spent)} are spent, and a round takes about "
            f"{duration(expected)}: seeds {', '.join(map(str, seeds))} were not run"
        )
        return False

    def _run_round(self, entry: Round) -> None:
        """Make the runs of a round that are left."""
        recording, order = self.recording, self._plan.order(entry.round, entry.shuffled)
        left = self._left[entry.round]
        if recording.shown:
            recording.looks, recording.shown = recording.looks + 1, False
        for batch in self._batches(list(left)):
            jobs = [self._prepare(entry, index, order[index]) for index in batch]
            recording.write()
            cells = [order[index].name for index in batch]
            what = self._name(entry, cells)
            self._screen.running(what, self._seconds_left())
            self._launch(jobs, recording.number(entry, batch[0]))
            del left[: len(batch)]
            results = [recording.result(entry.runs[index]) for index in batch]
            for result in filter(None, results):
                require_reachable(recording.settings["report"].get("target"), result)
            how = how_ended(results[0]) if len(results) == 1 else ""
            self._screen.ended(what, how, self._seconds_left())

    def _batches(self, indices: list[int]) -> Iterator[list[int]]:
        """Runs that are launched together: one, or with concurrent runs all consecutive ones."""
        if not self._concurrent:
            yield from ([index] for index in indices)
            return
        for _, group in groupby(enumerate(indices), lambda pair: pair[1] - pair[0]):
            yield [index for _, index in group]

    def _prepare(self, entry: Round, index: int, cell: PlannedCell) -> list[str]:
        """The overrides of a run of a round, whose folder is made ready for it.

        A run that did not end, and has a checkpoint, is resumed in its folder. Any other folder
        that exists is moved to superseded/.
        """
        recording, overrides = self.recording, self._plan.overrides(cell, entry.round)
        planned = len(entry.runs)
        if index == len(entry.runs):
            number = recording.number(entry, index)
            entry.runs.append(self._plan.folder_name(cell, entry.round, number))
        if index < planned or cell.keys.keys() > set(AXES):  # Hydra names others itself
            overrides.append(f"hydra.sweep.subdir={as_text(entry.runs[index])}")
        name = entry.runs[index]
        run = recording.folder / name
        if has_checkpoint(run):  # also of one that has failed
            overrides.append(f"resume={as_text(str(run.absolute()))}")
        elif run.exists():
            recording.supersede(name)
        return overrides

    def _name(self, entry: Round, cells: Sequence[str]) -> str:
        """What the screen calls the next runs: `run 5 of 27  round 2  ddp-fp32 seed 1`."""
        done, count = self._done(), len(cells)
        numbers = f"run {done + 1}" if count == 1 else f"runs {done + 1} to {done + count}"
        words = [f"{numbers} of {done + self._to_come()}"]
        if len(self._plan.seeds) > 1:
            words.append(f"round {entry.round + 1}")
        words.append(f"{cells[0]} seed {entry.seed}" if count == 1 else f"seed {entry.seed}")
        return "  ".join(words)

    def _seconds_left(self) -> float | None:
        """How long the runs that are left will take, None if that is not known."""
        if self._concurrent:
            return None
        return self.recording.seconds_of_a_run() * self._to_come() or None

    def _to_come(self) -> int:
        """The number of runs left; with a budget, of rounds begun: the rest may not fit."""
        due = len(self._plan.seeds) - len(self.recording.rounds) if self._budget is None else 0
        return sum(map(len, self._left.values())) + len(self._plan.cells) * max(due, 0)

    def _done(self) -> int:
        """How many runs have been made, in all commands of the study."""
        return sum(
            len(entry.runs) - sum(place < len(entry.runs) for place in self._left.get(number, ()))
            for number, entry in enumerate(self.recording.rounds)
        )
