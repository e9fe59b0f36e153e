"""The timing rounds of a study: all cells are alive at once and train in short turns.

What changes with the moment (a neighbor, heat) then slows all cells alike, as in the duet
benchmarking of Bulej et al. (2020), which runs two programs at the same time. What differs between
processes, such as where their memory lies, stays while they live: each round starts new ones, as
Kalibera and Jones (2013) advise. docs/method.md has the figures.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from ninefold.config.job import TrainJob
from ninefold.config.spec import RunSpec
from ninefold.errors import ConfigError, Failure, ResourceError
from ninefold.launch import Outcome
from ninefold.launch.run import check, freeze
from ninefold.launch.run_folder import record
from ninefold.result import TIMING, TIMING_LOOKS, location
from ninefold.study.one_run import write_composed
from ninefold.study.plan import Cell, Plan
from ninefold.study.record import Recording, Round
from ninefold.study.screen import Screen

if TYPE_CHECKING:
    from ninefold.launch.turns import Paused, Turns

HERE = "basic", "joblib"  # Hydra's launchers that start runs on this host
LEAD = 0.005  # seconds of a turn that are not timed: its threads wake in another cell's caches
APART = 1.5  # a cell is of another speed if its step takes so many times the next faster one's
LONG = 0.2  # seconds of a step so long that it does not matter how it begins: all are timed
LEAST = 2  # timed steps of a turn
ROUNDS, MOST = 12, TIMING_LOOKS[-1]  # how many rounds turns=auto plans for
LONG_ENOUGH = 4  # a round that takes so many times what is not turns; then more rounds do better
FEWEST = 4  # turns that turns=auto gives at least
LOOKED = TIMING_LOOKS[0] + 1  # rounds that it makes room for: one more than the first look takes
PART = 0.75  # of a round's time that must be left for another one, which then has fewer turns
TRIAL = 3, 5  # untimed and timed steps of the first turn of a cell, which sets those of the others
RESERVE = 1.25  # another cell is started if this times the most that one has taken is free


def problems(config: DictConfig) -> list[Failure]:
    """What keeps a study with this configuration from timing its cells in turns."""
    if "time" not in (config.study.ask or []):
        return []
    launcher = config.hydra.runtime.choices["hydra/launcher"]
    wrong = None
    if launcher not in HERE:
        wrong, do = f"hydra/launcher={launcher} may start runs on other hosts", "leave it out"
    elif config.launch.inline:
        wrong, do = "launch.inline=true has one process for all runs", "leave it out"
    elif config.launch.engine == "srun":
        wrong, do = "launch.engine=srun starts runs on several hosts", "leave it out"
    if wrong is None:
        return []
    asked = f"[{','.join(config.study.ask)}]"
    allowed = "cells are timed in turns, in processes that are alive at the same time"
    return [ConfigError("study.ask", asked, wrong, allowed, f"{do}, or set study.ask=null")]


class Timing:
    """Runs timing rounds until the answer is settled, the plan is done or the time is up.

    settings: the section `study` of the configuration.
    screen: shows how far it is.
    failed: takes how a cell failed, and its folder; the cell is not timed any more.
    """

    def __init__(
        self,
        plan: Plan,
        recording: Recording,
        settings: Mapping[str, Any],
        screen: Screen,
        failed: Callable[[Outcome, Path], None],
    ) -> None:
        self._plan, self._recording, self._settings = plan, recording, settings
        self._screen, self._failed = screen, failed
        self._cells = list(plan.cells)
        self._jobs: dict[str, TrainJob] = {}
        self._dropped: list[Path] = []  # folders of runs of this round that failed
        self._trials: dict[str, float] = {}  # seconds of a step in the first turn of a cell
        self._steps: dict[str, tuple[int, int]] = {}  # of a turn: not timed, and timed
        self._seconds: dict[str, float] = {}  # that the latest turn of a cell took
        self._began = 0.0  # when it would have begun if nothing had interrupted it
        self._lasted = 0.0  # seconds of the latest round
        self._turned: float | None = None  # when its last turn ended

    def run(self) -> None:
        """Make the rounds that are left."""
        recording = self._recording
        self._began = time.monotonic() - recording.timing_seconds
        if recording.timing_rounds():  # of a command before
            self._lasted = recording.timing_seconds / len(recording.timing)
            self._leave_out()
        turns = None
        with ExitStack() as stack:
            while self._is_open() and self._is_within_budget():
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

    def _leave_out(self) -> None:
        """Where the best is asked, keep the cells of the last round, and those that failed."""
        rounds = self._recording.timing_rounds()
        left = {Path(name).name for name in rounds[-1].runs}
        left |= {Path(name).name for _, name in self._failed_runs()}
        if self._settings["pairs"] == "best":
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
        recording = self._recording
        named = [(entry, name) for entry in recording.timing_rounds() for name in entry.runs]
        return [(entry, name) for entry, name in named if not recording.has_ended(name)]

    def _is_open(self) -> bool:
        """Whether another round could change the answer; leaves out the cells that cannot."""
        from ninefold import report  # here, because it imports SciPy

        done = len(self._recording.timing_rounds())
        if done in TIMING_LOOKS:
            state = report.timing(self._recording.folder, self._settings["pairs"])
            if state.settled:
                self._screen.note(f"the time question is settled after {done} timing rounds")
                return False
            self._cells = [cell for cell in self._cells if cell.name in state.cells]
        return bool(self._cells) and done < TIMING_LOOKS[-1]

    def _is_within_budget(self) -> bool:
        """Whether another round is expected to end in time. There are at least two."""
        if len(self._recording.timing_rounds()) < 2:
            return True  # a single round decides nothing
        part = PART if self._settings["turns"] == "auto" else 1.0
        return part * self._lasted <= self._seconds_left()

    def _seconds_left(self) -> float:
        """How long the timing rounds may still take."""
        spent = time.monotonic() - self._began
        return float(max(60 * self._settings["time_budget"] - spent, 0.0))

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
        groups, cells, to_spend = 0, len(left), self._seconds_left()
        while left:
            groups += 1
            into = recording.folder / TIMING / str(number)
            timed = self._group(turns, left, into, what, to_spend, cells)
            folders = [run.spec.folder for run in timed] + self._dropped
            entry.runs += [path.relative_to(recording.folder).as_posix() for path in folders]
            self._dropped = []
        if entry.runs:
            recording.timing_groups = max(groups, recording.timing_groups)
            recording.timing.append(entry)

    def _group(
        self, turns: Turns, left: list[Cell], folder: Path, what: str, to_spend: float, every: int
    ) -> list[Paused]:
        """Time as many cells of `left` as fit into memory together, and remove them from it.

        to_spend: seconds of the budget that were left when the round began. every: its cells.
        """
        began = time.monotonic()
        ending = 0.0 if self._turned is None else began - self._turned
        runs = self._start(turns, left, folder, what)
        self._in_turn(runs, 0, self._first_turn)
        self._set_steps()
        seconds: dict[str, list[float]] = {cell.name: [] for cell, _ in runs}

        def take(cell: Cell, run: Paused) -> None:
            seconds[cell.name].append(self._turn(cell, run))

        spent = time.monotonic() - began + ending
        count = self._turns([cell for cell, _ in runs], to_spend, spent, len(runs) / every)
        for number in range(1, count + 1):
            self._screen.running(f"{what}  turn {number} of {count}", (), self._seconds_left())
            self._in_turn(runs, number, take)
        self._turned = time.monotonic()

        def end(cell: Cell, run: Paused) -> None:
            run.end(seconds[cell.name], location(seconds[cell.name]))

        self._in_turn(runs, 0, end)
        turns.clear()
        return [run for _, run in runs]

    def _in_turn(
        self,
        runs: list[tuple[Cell, Paused]],
        number: int,
        take: Callable[[Cell, Paused], None],
    ) -> None:
        """Let each run take its turn, every other time backwards; removes those that fail."""
        for cell, run in runs[:: -1 if number % 2 else 1]:
            try:
                take(cell, run)
            except Failure as failure:
                self._drop(cell, failure, run.spec.folder)
                runs.remove((cell, run))

    def _first_turn(self, cell: Cell, run: Paused) -> None:
        """A turn that does not count."""
        if cell.name in self._steps:
            lead, _ = self._steps[cell.name]
            run.turn(lead, 1, self._seconds[cell.name])
        else:
            self._trials[cell.name] = run.turn(*TRIAL)

    def _set_steps(self) -> None:
        """Set how many steps a turn has for the cells that have had their first."""
        for name, steps in steps_of_turns(self._trials, self._settings["slice"]).items():
            if name not in self._steps:
                self._steps[name] = steps
                self._seconds[name] = sum(steps) * self._trials[name]

    def _turn(self, cell: Cell, run: Paused) -> float:
        """A turn that counts; returns its seconds per step."""
        began = time.monotonic()
        seconds = run.turn(*self._steps[cell.name], self._seconds[cell.name])
        self._seconds[cell.name] = time.monotonic() - began
        return seconds

    def _turns(self, cells: Sequence[Cell], left: float, spent: float, share: float) -> int:
        """How many turns a process has.

        left: seconds that timing rounds may take from this one on. spent: seconds that starting
        these cells' processes took and that ending them will take. share: of the round's cells.
        """
        if self._settings["turns"] != "auto":
            return int(self._settings["turns"])
        each = sum(self._seconds[cell.name] for cell in cells)
        return turn_count(60 * self._settings["time_budget"] * share, left * share, each, spent)

    def _start(
        self, turns: Turns, left: list[Cell], folder: Path, what: str
    ) -> list[tuple[Cell, Paused]]:
        """Start as many cells of `left` as fit into memory together, and remove them from it.

        One after another: at once, their warm-up steps would take each other's cores. So each also
        shows how much memory it takes.
        """
        ready: list[tuple[Cell, Paused]] = []
        free: int | None = None
        most = 0.0
        while left and (free is None or free >= RESERVE * most):
            cell = left[0]
            self._screen.running(f"{what}  starting {cell.name}", (), self._seconds_left())
            try:
                run = turns.begin(self._spec(cell, folder), self._jobs[cell.name].processes)
                turns.wait(run)
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

    def _spec(self, cell: Cell, folder: Path) -> RunSpec:
        """What the processes of a cell run. Raises the first failure of its job."""
        own = folder / cell.folder
        own.mkdir(parents=True, exist_ok=True)
        if cell.name not in self._jobs:
            job = self._plan.job(cell, 0)
            if failures := check(job, own):
                raise failures[0]
            if job.in_a_step:
                raise ConfigError(
                    "parallel.processes",
                    job.processes,
                    "this node has fewer tasks",
                    "cells are timed in turns, in processes on one node",
                    "leave this cell out, or set study.ask=null",
                )
            self._jobs[cell.name] = job
            config = self._plan.config(self._plan.overrides(cell, 0), 0)
            composed = OmegaConf.to_container(config, enum_to_str=True)
            assert isinstance(composed, dict)
            write_composed(own / ".hydra", composed)  # for recommended.yaml
        job = self._jobs[cell.name]
        return RunSpec(
            command="time",
            job=freeze(job, own),
            folder=own,
            started=time.time(),
            overrides=job.variant,
            notes=job.notes,
            grace=job.values["launch"]["grace"],
            cache=job.cache,
            quiet=True,
        )

    def _drop(self, cell: Cell, failure: Failure, folder: Path) -> None:
        """Report and record a failure of a cell, which is not timed any more."""
        self._failed(Outcome(failure.code, (failure,)), folder)
        if cell in self._cells:
            self._cells.remove(cell)
        self._dropped.append(folder)
        with suppress(Failure, OSError):  # of a job or a folder that no result is made of
            job = self._jobs.get(cell.name) or self._plan.job(cell, 0)
            record([failure], job.choices, job.values, folder, time.time())


def steps_of_turns(seconds: Mapping[str, float], slice_: float) -> dict[str, tuple[int, int]]:
    """How many steps of a turn are not timed, and how many are, by cell.

    Cells of about the same speed take as many as the fastest of these: in which step of a turn the
    clock starts must not make a difference between them. (It may between cells that do not fit
    into memory together.)

    seconds: of a step, by cell. slice_: seconds that are timed in a turn.
    """
    found: dict[str, tuple[int, int]] = {}
    like = before = 0.0
    for name, each in sorted(seconds.items(), key=lambda item: item[1]):
        if each >= APART * before:
            like = each
        before = each
        lead = max(1, round(LEAD / like)) if like < LONG else 0
        found[name] = lead, max(LEAST, round(slice_ / like))
    return found


def turn_count(budget: float, left: float, each: float, spent: float) -> int:
    """How many turns each process has in a round of a study with a budget of so many seconds.

    As many as let ROUNDS rounds fill it, or up to MOST that are LONG_ENOUGH. So the fewer cells are
    left, the more turns each of them has. Where starting the processes takes most of a round, turns
    for as long as that took, unless fewer than LOOKED rounds would fit. What is left is divided
    into whole rounds.

    left: seconds of the budget that are left. each: seconds of a turn of all cells.
    spent: seconds of the round that are not turns.
    """
    if not each:  # no cell is left
        return FEWEST
    enough = max(budget / MOST, min(budget / ROUNDS, LONG_ENOUGH * spent))
    planned = max(enough, min(2 * spent, budget / LOOKED))
    seconds = left / max(1, int(left / planned + 1 - PART))
    return max(FEWEST, int((seconds - spent) / each))
