"""Runs a study: a burn-in, rounds of all cells, drifted rounds again; and goes on with one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from ninefold.study.max_batch import FAILED, Largest
from ninefold.study.plan import Cell, Plan
from ninefold.study.record import BURN_IN, Round, Sitting
from ninefold.study.rounds import Agenda, duration

# The overrides of some runs, and the number of the first -> what they returned.
Launch = Callable[[Sequence[Sequence[str]], int], Sequence[Any]]


class Study:
    """A sitting on its way to what is planned.

    settings: the section `study`. launch: runs jobs. largest: finds the largest batch of a cell.
    beside: whether jobs are run side by side; a round is then handed over as a whole, and its times
    tell nothing of drift.
    """

    def __init__(
        self, plan: Plan, sitting: Sitting, settings: dict[str, Any], launch: Launch,
        largest: Callable[[Cell], Largest], beside: bool,
    ) -> None:  # fmt: skip
        self._plan, self._sitting, self._settings = plan, sitting, settings
        self._launch, self._largest, self._beside = launch, largest, beside
        self._guarded = plan.compares and not beside
        self._agenda = Agenda(plan, sitting, settings, self._guarded)
        self.finished = False

    @property
    def folder(self) -> Path:
        return self._sitting.folder

    @property
    def cut_short(self) -> bool:
        """Whether its budget ended it before the plan was done."""
        return self._agenda.cut_short

    def run(self) -> list[Any]:
        """Make the runs that are planned and not there yet. Returns what they returned."""
        returned: list[Any] = []
        played = False
        self._judge()  # a command may have been stopped after the last run of a round
        self._sitting.write()
        try:
            if self._burn_in_is_due():
                returned += self._burn_in()
            for stage in self._stages():
                while (entry := self._agenda.next(stage)) is not None:
                    if played and self._plan.compares:
                        print(_progress_table(self.folder), flush=True)
                    returned += self._play(entry, stage)
                    played = True
                if self._agenda.cut_short or (self._plan.looks > 1 and _settled(self.folder)):
                    break
            if self._settings["max_batch"]:
                self._find_largest_batches()
            self.finished = not self._agenda.cut_short
        finally:
            self._sitting.write()
        return returned

    def _stages(self) -> Sequence[int]:
        """Those that are left: with more rounds than a stage has, its look is over."""
        begun = max((entry.round + 1 for entry in self._sitting.rounds), default=0)
        return [stage for stage in self._plan.stages if stage >= begun] or self._plan.stages[-1:]

    def _burn_in_is_due(self) -> bool:
        """Before the first round of a part: whatever runs first is slower, or faster, than usual.

        Where no cells are compared over several rounds there is nothing that it could spoil.
        """
        begun = any(entry.part == self._sitting.part for entry in self._sitting.rounds)
        return self._plan.compares and self._settings["burn_in"] > 0 and not begun

    def _burn_in(self) -> Sequence[Any]:
        """A short run of the first job, into a folder of its own, which is not counted."""
        sitting, cell = self._sitting, self._plan.order(0, shuffled=True)[0]
        if (sitting.folder / BURN_IN).exists():
            sitting.supersede(BURN_IN)
        sitting.burn_in = BURN_IN
        sitting.write()
        steps = self._settings["burn_in"]
        given = self._plan.job(cell, 0).values["max_steps"]
        steps = steps if given is None else min(steps, given)
        print(f"burn-in  {cell.name}, {steps} steps, not counted", flush=True)
        instead = (f"max_steps={steps}", f"hydra.sweep.subdir={BURN_IN}")
        return self._returned([self._plan.overrides(cell, 0, *instead)], 0)

    def _play(self, entry: Round, stage: int) -> list[Any]:
        """Make the runs of a round that are left."""
        returned: list[Any] = []
        sitting, order = self._sitting, self._plan.order(entry.round, entry.shuffled)
        left = self._agenda.left(entry)
        for batch in self._batches(list(left)):
            jobs = [self._job(entry, index, order[index]) for index in batch]
            sitting.write()
            self._announce(entry, order[batch[0]], batch, stage)
            returned += self._returned(jobs, sitting.number(entry, batch[0]))
            del left[: len(batch)]
            sitting.write()
        sitting.count(entry)
        self._judge()
        sitting.write()
        return returned

    def _batches(self, indices: list[int]) -> Iterator[list[int]]:
        """Which runs are handed over together: numbers that follow one another, or one by one."""
        if not self._beside:
            yield from ([index] for index in indices)
            return
        for _, group in groupby(enumerate(indices), lambda pair: pair[1] - pair[0]):
            yield [index for _, index in group]

    def _job(self, entry: Round, index: int, cell: Cell) -> list[str]:
        """The overrides of a run of a round, and its folder ready for it.

        A run with a checkpoint and no end goes on in its folder. Any other folder that is there is
        kept elsewhere.
        """
        sitting, overrides = self._sitting, self._plan.overrides(cell, entry.round)
        if index == len(entry.runs):
            number = sitting.number(entry, index)
            entry.runs.append(self._plan.folder_name(cell, entry.round, number))
        else:
            overrides.append(f"hydra.sweep.subdir={quoted(entry.runs[index])}")
        name = entry.runs[index]
        run = self.folder / name
        if sitting.can_go_on(name):
            overrides.append(f"resume={quoted(str(run.absolute()))}")
        elif run.exists():
            sitting.supersede(name)
        return overrides

    def _announce(self, entry: Round, cell: Cell, batch: list[int], stage: int) -> None:
        """A line about what comes and how much is left."""
        to_come, done = self._agenda.to_come(stage), self._agenda.done()
        which = f"run {done + 1}" if len(batch) == 1 else f"runs {done + 1} to {done + len(batch)}"
        words = [f"{which} of {done + to_come}"]
        if self._plan.stages[-1] > 1:
            words.append(f"round {entry.round + 1}" + " again" * (entry.attempt > 0))
        name = f"{cell.name} " if len(batch) == 1 else ""
        words += [f"{name}seed {entry.seed}", f"|  {done} done, {to_come - len(batch)} left"]
        line = "  ".join(words)
        if (each := self._sitting.seconds_of_a_run()) and not self._beside:
            line += f", about {duration(each * to_come)} left"
        print(line, flush=True)

    def _judge(self) -> None:
        """Find out which rounds drifted, and say so."""
        for entry, why in self._sitting.judge(self._settings["drift"] if self._guarded else None):
            retries = self._settings["retries"]
            then = "it is to be repeated" if self._sitting.attempts(entry) <= retries else (
                f"it counts all the same, study.retries={retries} being used up"
            )  # fmt: skip
            print(f"round {entry.round + 1} (seed {entry.seed}): {why}; {then}", flush=True)

    def _find_largest_batches(self) -> None:
        """Of the cells of which it is not known yet, or of which a search came to no end."""
        found = self._sitting.max_batch = self._sitting.max_batch or {}
        for cell in self._plan.cells:
            if cell.name not in found or found[cell.name]["why"].startswith(FAILED):
                largest = self._timed_search(cell)
                print(f"max_batch  {cell.name}  {largest}", flush=True)
                found[cell.name] = asdict(largest)
                self._sitting.write()

    def _timed_search(self, cell: Cell) -> Largest:
        """Its seconds are none of the runs', nor of their budget."""
        began = time.time()
        try:
            return self._largest(cell)
        finally:
            self._sitting.search_seconds += time.time() - began

    def _returned(self, jobs: Sequence[Sequence[str]], number: int) -> list[Any]:
        done = self._launch(jobs, number)
        for each in done:
            _ = each.return_value  # raises what the run did not catch, which is a bug
        return list(done)


def quoted(text: str) -> str:
    """`text` as a value of an override."""
    return "'" + text.replace("'", "\\'") + "'"


def _progress_table(folder: Path) -> str:
    from ninefold import report  # here, because it imports SciPy

    return report.progress_table(folder)


def _settled(folder: Path) -> bool:
    from ninefold import report

    return report.settled(folder)
