"""The timing rounds of a study: all cells are alive at once and train in short turns.

What changes with the moment (a neighbor, heat) then slows all cells alike, as in the duet
benchmarking of Bulej et al. (2020), which runs two programs at the same time. What differs between
processes, such as where their memory lies, stays while they live: each round starts new ones, as
Kalibera and Jones (2013) advise. docs/method.md has the figures.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ninefold.config.job import Asked, Settled
from ninefold.config.spec import RunSpec
from ninefold.errors import Failure, ResourceError
from ninefold.launch import Outcome
from ninefold.launch.ready import ready_or_failure
from ninefold.launch.run import spec_of, write_job
from ninefold.launch.run_folder import record
from ninefold.result import TIMING, TIMING_LOOKS
from ninefold.study.load import Load
from ninefold.study.plan import Plan, PlannedCell
from ninefold.study.record import StudyFolder
from ninefold.study.screen import Screen
from ninefold.study.turn_plan import (
    LATE,
    SHARE,
    TRIAL,
    planned_seconds,
    round_seconds,
    steps_of_turn,
    stretch_steps,
)
from ninefold.study_record import Round

if TYPE_CHECKING:
    from ninefold.launch.turns import Turns, TurnTaker

    Runs = list[tuple[PlannedCell, TurnTaker]]

RESERVE = 1.25  # another cell is started if this times the most that one has taken is free


class Timing:
    """Runs timing rounds until the answer is settled, the plan is done or the time is up.

    settings: the section `study` of the configuration.
    screen: shows how far it is.
    failed: takes how a cell failed, and its folder; the cell is not timed any more.
    """

    def __init__(
        self,
        plan: Plan,
        recording: StudyFolder,
        settings: Mapping[str, Any],
        screen: Screen,
        failed: Callable[[Outcome, Path], None],
    ) -> None:
        self._plan, self._recording, self._settings = plan, recording, settings
        self._screen, self._failed = screen, failed
        self._budget = 60.0 * settings["time_budget"]  # seconds
        self._cells = list(plan.cells)
        self._jobs: dict[str, Settled] = {}
        self._dropped: list[Path] = []  # folders of runs of this round that failed
        self._steps: dict[str, tuple[int, int]] = {}  # of a turn: not timed, and timed
        self._each: dict[str, float] = {}  # seconds that a turn of a cell is expected to take
        self._began = 0.0  # when it would have begun if nothing had interrupted it
        self._lasted = 0.0  # seconds of the latest round
        self._apart = 0.0  # seconds of it that were not turns: starts, long stretches, ends
        self._turned: float | None = None  # when its last turn ended
        self._stretches: Counter[str | None] = Counter()  # long ones so far, by cell
        self._stretched = 0.0  # seconds of these
        self._named: str | None = None  # the cell that the latest look named
        self._settled = False  # whether it found the answer
        self._whole: float | None = None  # seconds of this round

    def run(self) -> None:
        """Make the rounds that are left."""
        recording = self._recording
        self._began = time.monotonic() - recording.timing_seconds
        if recording.timing_rounds():  # of a command before
            self._lasted = recording.timing_seconds / len(recording.timing)
            self._leave_out()
        turns, recording.timing_ended = None, None
        with ExitStack() as stack:
            while (ended := self._ended()) is None:
                started = time.monotonic()
                what = f"timing round {len(recording.timing) + 1}  {len(self._cells)} cells"
                self._screen.running(what, (), self._seconds_left())
                if turns is None:
                    from ninefold.launch.turns import Turns  # here, because it imports torch

                    turns = stack.enter_context(Turns())
                    self._forget_failures()
                self._round(turns, what)
                self._lasted = time.monotonic() - started
                recording.timing_seconds = time.monotonic() - self._began
                recording.write()
                if self._cells:
                    self._screen.ended(what, (), self._seconds_left())
                    self._update()
        recording.timing_ended = ended

    def _leave_out(self) -> None:
        """Keep the cells of the last round, and those that failed; all if other pairs are asked."""
        left = {Path(name).name for name in self._recording.timing_rounds()[-1].runs}
        left |= {Path(name).name for _, name in self._failed_runs()}
        if self._settings["pairs"] == self._recording.pairs_before:
            self._cells = [cell for cell in self._cells if cell.folder in left]

    def _forget_failures(self) -> None:
        """Take failed runs of cells that are timed again out of their rounds, to superseded/."""
        again = {cell.folder for cell in self._cells}
        for entry, name in self._failed_runs():
            if Path(name).name in again:
                entry.runs.remove(name)
                if (self._recording.folder / name).exists():
                    self._recording.supersede(name)

    def _failed_runs(self) -> list[tuple[Round, str]]:
        ended, rounds = self._recording.has_ended, self._recording.timing_rounds()
        return [(entry, name) for entry in rounds for name in entry.runs if not ended(name)]

    def _ended(self) -> str | None:
        """Why there is no further round: "settled", "rounds", "failed" or "budget"; None: one is.

        Leaves out the cells whose times cannot change the answer.
        """
        from ninefold import report  # here, because it imports SciPy

        done = len(self._recording.timing_rounds())
        if done in TIMING_LOOKS:
            state = report.timing(self._recording.folder, self._settings["pairs"])
            self._named, self._settled = state.named, state.settled
            if not state.settled:
                kept = {*state.cells, state.named}  # the answer promises the time of that one
                self._cells = [cell for cell in self._cells if cell.name in kept]
        if done >= TIMING_LOOKS[-1]:
            return "rounds"
        if not self._cells:
            return "failed"
        fits = self._is_within_budget(done)
        # One more if the named cell has trained no long stretch yet.
        if self._settled and not (fits and self._stretches and not self._stretches[self._named]):
            self._screen.note(f"the time question is settled after {done} timing rounds")
            return "settled"
        return None if fits else "budget"

    def _is_within_budget(self, done: int) -> bool:
        """Whether another round fits. There are two wherever they take little more than it."""
        if done == 0:
            return True
        left = self._seconds_left()
        least = self._apart + sum(self._each[cell.name] for cell in self._cells if self._each)
        if self._settings["turns"] != "auto" or not self._each:  # of a command before
            return self._lasted <= left + (LATE if done < 2 else 0.0)
        enough = done < 2 or left >= planned_seconds(self._budget, self._apart) / 2
        return enough and least <= left + LATE

    def _seconds_left(self) -> float:
        """How long the timing rounds may still take."""
        return float(max(self._budget - (time.monotonic() - self._began), 0.0))

    def _update(self) -> None:
        """Show the figures so far."""
        if self._screen.live:
            from ninefold import report

            measured = {cell.name for cell in self._cells}
            self._screen.update(report.standings(self._recording.folder), measured)

    def _round(self, turns: Turns, what: str) -> None:
        """Time each cell in new processes, in an order that every second round reverses."""
        recording = self._recording
        number = recording.next_timing_round()
        left = list(self._cells)
        random.Random(f"{self._settings['seed']}/timing/{number // 2}").shuffle(left)
        if number % 2:
            left.reverse()
        entry = Round(number, self._plan.seeds[0], segment=recording.segment, shuffled=True)
        groups, cells, load = 0, len(left), Load()
        self._apart, self._whole = 0.0, None
        while left:
            groups += 1
            into = recording.folder / TIMING / str(number)
            timed = self._group(turns, left, into, what, cells, load)
            folders = [run.spec.folder for run in timed] + self._dropped
            entry.runs += [path.relative_to(recording.folder).as_posix() for path in folders]
            self._dropped = []
        if entry.runs:
            entry.others = load.others
            recording.timing_groups = max(groups, recording.timing_groups)
            recording.timing.append(entry)

    def _group(
        self, turns: Turns, left: list[PlannedCell], folder: Path, what: str, every: int, load: Load
    ) -> list[TurnTaker]:
        """Time as many cells of `left` as fit into memory together, and remove them from it.

        every: cells of the round. load: takes what other programs did meanwhile.
        """
        began = time.monotonic()
        ending = 0.0 if self._turned is None else began - self._turned
        runs = self._start(turns, left, folder, what)
        self._let(runs, self._first_turn)
        own = time.monotonic() - began + ending
        if not runs:
            turns.close()
            return []
        chosen, long = self._to_stretch([cell for cell, _ in runs], own)
        self._apart += own + long
        share = len(runs) / every
        if self._whole is None:  # other groups of the round take as long, for as many cells
            rounds = TIMING_LOOKS[-1] - len(self._recording.timing_rounds())
            left_over = self._seconds_left() + own
            self._whole = round_seconds(self._budget, left_over, self._apart / share, rounds)
        training = self._whole * share - own - long
        with load.during([pid for _, run in runs for pid in run.processes()]):
            seconds = self._take_turns(runs, training, what)
        alone: dict[str, float] = {}

        def stretch(cell: PlannedCell, run: TurnTaker) -> None:
            if cell.name in chosen:
                (lead, _), each = self._steps[cell.name], fmean(seconds[cell.name])
                steps = stretch_steps(each)
                alone[cell.name] = run.turn(lead, steps, (lead + steps) * each, counted=False)
                self._stretches[cell.name] += 1

        self._let(runs, stretch)
        self._turned = time.monotonic()

        def end(cell: PlannedCell, run: TurnTaker) -> None:
            run.end(seconds[cell.name], alone.get(cell.name))
            self._set_steps(cell, fmean(seconds[cell.name]))  # of its turns in the next round

        self._let(runs, end)
        turns.close()
        return [run for _, run in runs]

    def _take_turns(self, runs: Runs, training: float, what: str) -> dict[str, list[float]]:
        """Let cells train in turns; return the seconds per step of each turn, by cell.

        The numbers of turns are set before: that a cell has fewer because some took long would make
        their mean too large. All cells train for about as long, in turns that are spread evenly
        over these seconds of `training`. Removes runs that fail.
        """
        found: dict[str, list[float]] = {cell.name: [] for cell, _ in runs}
        counts = {name: self._count(name, training / len(runs)) for name in found}

        def take(cell: PlannedCell, run: TurnTaker) -> None:
            found[cell.name].append(run.turn(*self._steps[cell.name], self._each[cell.name]))

        while waiting := [
            ((len(found[cell.name]) + 0.5) / counts[cell.name], index)
            for index, (cell, _) in enumerate(runs)
            if self._has_another(found[cell.name], counts[cell.name])
        ]:
            _, index = min(waiting)
            number = len(found[runs[index][0].name])
            if number == max(map(len, found.values())):  # no cell has had this one
                self._screen.running(f"{what}  turn {number + 1}", (), self._seconds_left())
            self._let(runs, take, index)
        return found

    def _count(self, name: str, training: float) -> int:
        """How many turns a cell has that trains for so many seconds."""
        if self._settings["turns"] != "auto":
            return int(self._settings["turns"])
        return max(1, round(training / self._each[name]))

    def _has_another(self, turns: Sequence[float], count: int) -> bool:
        """Whether a cell that has had these turns has another; one if the machine became slow."""
        late = time.monotonic() - self._began > self._budget + LATE / 2
        return len(turns) < (1 if late and self._settings["turns"] == "auto" else count)

    def _to_stretch(self, cells: Sequence[PlannedCell], own: float) -> tuple[list[str], float]:
        """The cells that train a long stretch in this round, and the seconds that these take.

        They are the first cell of each strategy (and of what else is swept), none-fp32 among them,
        and the one that is named: those first that had the fewest, as many as make stretches a
        given share of all rounds. own: seconds of the round that are not training.
        """
        first: dict[tuple[str, ...], str] = {}
        for cell in sorted(cells, key=self._plan.cells.index):
            first.setdefault(tuple(v for k, v in cell.keys.items() if k != "amp"), cell.name)
        wanted = {*first.values(), *(cell.name for cell in cells if cell.name == self._named)}
        most = SHARE * (self._recording.timing_seconds + planned_seconds(self._budget, own))
        chosen, long = list[str](), 0.0
        for name in sorted(wanted, key=lambda name: (self._stretches[name], name != self._named)):
            lead, timed = self._steps[name]
            each = self._each[name] / (lead + timed)
            takes = each * (lead + stretch_steps(each))
            if self._stretched + takes > most and not (self._settled and name == self._named):
                break  # it is the next in a later round
            chosen.append(name)
            long, self._stretched = long + takes, self._stretched + takes
        return chosen, long

    def _let(self, runs: Runs, take: Callable[[PlannedCell, TurnTaker], None], *those: int) -> None:
        """Let runs of these indices, or all, do something; removes those that fail."""
        for cell, run in [runs[index] for index in those] or list(runs):
            try:
                take(cell, run)
            except Failure as failure:
                self._drop(cell, failure, run.spec.folder)
                runs.remove((cell, run))

    def _first_turn(self, cell: PlannedCell, run: TurnTaker) -> None:
        """A turn that does not count."""
        if cell.name in self._steps:
            lead, _ = self._steps[cell.name]
            run.turn(lead, 1, self._each[cell.name])
        else:
            self._set_steps(cell, run.turn(*TRIAL))

    def _set_steps(self, cell: PlannedCell, seconds: float) -> None:
        """Set how many steps a turn of a cell has whose steps take so many seconds."""
        several = self._jobs[cell.name].processes > 1
        steps = steps_of_turn(seconds, self._settings["slice"], several)
        self._steps[cell.name], self._each[cell.name] = steps, sum(steps) * seconds

    def _start(self, turns: Turns, left: list[PlannedCell], folder: Path, what: str) -> Runs:
        """Start as many cells of `left` as fit into memory together, and remove them from it.

        One after another: at once, their warm-up steps would take each other's cores. So each also
        shows how much memory it takes.
        """
        ready: Runs = []
        free: int | None = None
        most = 0.0
        while left and (free is None or free >= RESERVE * most):
            cell = left[0]
            self._screen.running(f"{what}  starting {cell.name}", (), self._seconds_left())
            try:
                run = turns.start(self._spec(cell, folder), self._jobs[cell.name].processes)
            except Failure as failure:
                if isinstance(failure, ResourceError) and ready:
                    break  # there may be room for it when these have ended
                self._drop(cell, failure, folder / cell.folder)
            else:
                ready.append((cell, run))
                if free is not None and run.free is not None:
                    most = max(most, free - run.free)
                free = run.free
            left.remove(cell)
        return ready

    def _spec(self, cell: PlannedCell, folder: Path) -> RunSpec:
        """What the processes of a cell run. Raises the first failure of its job."""
        own = folder / cell.folder
        own.mkdir(parents=True, exist_ok=True)
        if cell.name not in self._jobs:
            job = ready_or_failure(self._plan.job(cell, 0), own)
            self._jobs[cell.name] = job
        job = self._jobs[cell.name]
        first = cell is self._plan.cells[0] and not self._recording.timing_rounds()
        spec = spec_of(job, own, command="time", quiet=True, tries_one_thread=first)
        write_job(spec, job)
        return spec

    def _drop(self, cell: PlannedCell, failure: Failure, folder: Path) -> None:
        """Report and record a failure of a cell, which is not timed any more."""
        self._failed(Outcome(failure.code, (failure,)), folder)
        if cell in self._cells:
            self._cells.remove(cell)
        self._dropped.append(folder)
        with suppress(Failure, OSError):  # of a job or a folder that no result is made of
            job: Asked | Settled = self._jobs.get(cell.name) or self._plan.job(cell, 0)
            record([failure], job.choices, job.resolved, folder, time.time())
