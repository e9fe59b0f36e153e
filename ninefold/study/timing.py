"""The timing rounds of a study: its configurations are alive at once and train in short turns."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ninefold.config.job import Asked, Settled
from ninefold.config.spec import RunSpec
from ninefold.errors import ConfigError, Failure, PeerError, ResourceError
from ninefold.launch.ready import ready_or_failure, require_few_processes
from ninefold.launch.run import Outcome, spec_of
from ninefold.launch.run_folder import record
from ninefold.numbers import counted
from ninefold.progress import milliseconds
from ninefold.result import TIMING
from ninefold.study.plan import Plan, PlannedCell
from ninefold.study.record import StudyFolder
from ninefold.study.screen import Screen
from ninefold.study_record import Round
from ninefold.tournament.budget import MOST_ROUNDS, Budget, shortest
from ninefold.tournament.contestant import Contestant, Entries, Look
from ninefold.tournament.rounds import BUDGET, DECIDED, Tournament
from ninefold.types import LEAST_ROUNDS

if TYPE_CHECKING:
    from ninefold.launch.turns import TurnTaker

RESERVE = 1.25  # another cell is started if this times the most that one has taken is free


def budget_of(settings: Mapping[str, Any]) -> Budget:
    """Return the budget of the timing rounds of a study with these settings."""
    return Budget(
        seconds=60.0 * settings["time_budget"],
        rounds=MOST_ROUNDS,
        usual=8 if settings["pairs"] == "all" else 6,
        turns=None if settings["turns"] == "auto" else int(settings["turns"]),
    )


class Timing(Entries):
    """Runs timing rounds until the answer is decided, the plan is done or the time is up.

    It is the `Entries` of a tournament. screen: shows how far it is.
    failed: takes how a cell failed, and its folder; the cell is not timed any more.
    """

    def __init__(
        self,
        plan: Plan,
        recording: StudyFolder,
        screen: Screen,
        failed: Callable[[Outcome, Path], None],
    ) -> None:
        self._plan, self._recording = plan, recording
        self._settings = recording.settings["study"]
        self._screen, self._failed = screen, failed
        self._cells = {c.name: c for c in plan.timed if c.name not in recording.untimed}
        self._budget = budget_of(self._settings)
        self._jobs: dict[str, Settled] = {}
        self._folders: list[Path] = []  # of the runs of this round
        self._groups = 0  # of it
        self._on_gpu = False
        self._alone = set[str]()  # cells that have failed beside others
        self._shown = ""  # what is under way
        rounds = recording.timing
        self.done = len(rounds)
        self._tournament = Tournament(
            self,
            self._budget,
            self._look,
            recording.timing_seed,
            recording.timing_seconds,
            recording.timing_looks,
            len(rounds[0].runs) if rounds else 0,
        )
        recording.timing_seed = self._tournament.seed

    def run(self) -> None:
        """Make the rounds that are left."""
        recording, tournament = self._recording, self._tournament
        recording.timing_ended = None
        last = max(recording.timing_looks, default=self.done)
        if last < self.done:  # who was eliminated there stays out; a look now would cost level
            self._look(last)
        with ExitStack() as self._stack:
            tournament.run()
        recording.timing_ended = tournament.ended
        done = self.done
        if tournament.ended == DECIDED:
            self._screen.note(f"the speed comparison is decided after {counted(done, 'round')}")
        if tournament.ended == BUDGET and done < LEAST_ROUNDS:
            enough = math.ceil(LEAST_ROUNDS * tournament.last_round / 30) / 2
            text = f"an answer takes {LEAST_ROUNDS} rounds; study.time_budget={enough:g} makes them"
            self._screen.note(f"study.time_budget={self._settings['time_budget']:g}: {text}")

    @property
    def names(self) -> Sequence[str]:
        return [*self._cells]

    @property
    def _folder(self) -> Path:
        """That of this round."""
        return self._recording.folder / TIMING / str(self.done)

    def _look(self, rounds: int | None = None) -> Look:
        """Look at what is known; leave out the cells whose times cannot change the answer.

        Nothing is decided while one has no run that has ended, as one that failed before the study
        was resumed.

        rounds: at what was known after so many; None: now.
        """
        from ninefold.answer.study import look_at  # here, because it imports SciPy

        recording = self._recording
        recording.write()  # with this look
        known = replace(recording, timing=recording.timing[:rounds])
        found = look_at(known.known_runs(), known, self._settings["pairs"])
        runs = [name for entry in recording.timing for name in entry.runs]
        timed = {Path(name).name for name in runs if recording.has_ended(name)}
        untimed = {name for name, cell in self._cells.items() if cell.folder not in timed}
        if found.left is not None and (untimed or not found.decided):
            # The answer promises the time of the named one.
            kept = {*found.left, found.named, *untimed}
            if untimed:
                kept.add(self._plan.timed[0].name)  # which speedups are over
            self._cells = {name: cell for name, cell in self._cells.items() if name in kept}
        return replace(found, decided=found.decided and not untimed)

    def _forget_failures(self) -> None:
        """Take failed runs of cells that are timed again out of their rounds, to superseded/."""
        recording, again = self._recording, {cell.folder for cell in self._cells.values()}
        for entry in recording.timing:
            for name in list(entry.runs):
                if Path(name).name in again and not recording.has_ended(name):
                    entry.runs.remove(name)
                    if (recording.folder / name).exists():
                        recording.supersede(name)

    def start(self, left: Sequence[str], number: int) -> Sequence[Contestant]:
        """Start as many cells of `left` as may be alive together.

        One after another: at once, their warm-up steps would take each other's cores. So each also
        shows how much memory it takes.
        """
        from ninefold.launch.turns import TurnTaker  # here, because it imports torch

        if not self._jobs:
            self._forget_failures()
        folder = self._folder
        if not self._groups:  # what an interrupted round has left
            shutil.rmtree(folder, ignore_errors=True)
        self._groups += 1
        self._shown = f"round {self.done + 1}  {counted(len(self._cells), 'configuration')}"
        ready: list[TurnTaker] = []
        warmed_up = ""
        free, most = dict[str, int](), dict[str, int]()  # bytes, by whose memory they are
        cells = [self._cells[name] for name in left]
        while cells and all(there >= RESERVE * most.get(of, 0) for of, there in free.items()):
            cell = cells.pop(0)
            if ready and {cell.name, ready[-1].name} & self._alone:
                break
            self._shows(f"{self._shown}  starting {cell.name}{warmed_up}")
            try:
                spec = self._spec(cell, folder)
                alive = [*(each.name for each in ready), cell.name]
                require_few_processes([self._jobs[name] for name in alive])
                processes = self._jobs[cell.name].processes
                run = TurnTaker(spec, processes, cell.name, self._settings["turn"])
                self._stack.callback(run.close)
            except Failure as failure:
                # There may be room for it when these have ended. On a GPU that is nearly full,
                # libraries say many things, but not that a configuration is wrong.
                may_fit = self._on_gpu and not isinstance(failure, ConfigError | PeerError)
                if ready and (isinstance(failure, ResourceError) or may_fit):
                    break
                self.drop(cell.name, failure, folder / cell.folder)
                continue
            ready.append(run)
            if (step := run.step_seconds) is not None:
                warmed_up = f"  {run.name} {milliseconds(step)} a step"
            self._folders.append(run.spec.folder)
            for of, there in run.free.items():
                taken = max(free.get(of, there) - there, run.taken.get(of, 0))
                most[of] = max(most.get(of, 0), taken)
            free = run.free
            self._on_gpu |= bool(run.taken)
        self._shows(f"{self._shown}{warmed_up}")
        return ready

    def warm(
        self, alive: Sequence[Contestant], takes: Mapping[str, float], own: float
    ) -> Sequence[str]:
        """Leave out those that only repeat the work of others.

        So does dp on one device: one is the control, and further ones would tell no more. Where
        time is short, this one is left out too, and a GradScaler with bfloat16.
        """
        if self._budget.turns is not None or self._recording.timing:
            return []
        names = [each.name for each in alive]
        control = self._plan.control  # it was asked for
        repeats, first = dict[str, str](), dict[tuple[Any, ...], str]()
        order = [cell.name for cell in self._plan.timed]
        for each in sorted(alive, key=lambda each: order.index(each.name)):
            if (base := first.setdefault(self._work(each), each.name)) != each.name:
                repeats[each.name] = base
        copies = [name for name in repeats if control is None or name != control.name]
        least = shortest(own, {name: takes[name] for name in names})
        if least <= self._budget.seconds / LEAST_ROUNDS:
            strategy = {name: self._cells[name].keys["parallel"] for name in names}
            again = [name for name in copies if strategy[name] != strategy[repeats[name]]]
            copies = again if control else again[1:]
        for name in copies:
            self._recording.untimed[name] = repeats[name]
            self._screen.note(f"{name} repeats {repeats[name]}, and is not timed any more")
            folder = self._folder_of(name)
            self._folders.remove(folder)
            shutil.rmtree(folder, ignore_errors=True)
            del self._cells[name]
        return copies

    def shows(self, number: int, nth: int, left: float) -> None:
        """Show that the nth turns of a round begin."""
        self._screen.running(f"{self._shown}  turn {nth}", max(self._tournament.seconds_left, left))

    def drop(self, name: str, failure: Failure, folder: Path | None = None) -> None:
        """Report and record a failure of a cell, which is not timed any more.

        One that fails in its turns beside others on a GPU may lack memory, whatever it says: it has
        one more chance, alone, from the next round on.
        """
        beside = folder is None and self._tournament.alive
        folder = folder or self._folder_of(name)
        if beside and self._on_gpu and name not in self._alone:
            self._alone.add(name)
            self._folders.remove(folder)
            again = "it may lack memory, and is alone from the next round on"
            self._screen.note(f"{name}: {failure.cause}; {again}")
            return
        self._failed(Outcome(failure.code, (failure,)), folder)
        cell = self._cells.pop(name)
        if folder not in self._folders:
            self._folders.append(folder)
        with suppress(Failure, OSError):  # of a job or a folder that no result is made of
            job: Asked | Settled = self._jobs.get(name) or self._plan.job(cell, 0)
            record([failure], job.choices, job.resolved, job.variant, folder, time.time())

    def round_ended(self, number: int) -> None:
        """Record a round, and tell that it has ended."""
        recording, tournament = self._recording, self._tournament
        entry = Round(number, self._plan.seeds[0], shuffled=True)
        entry.runs = [path.relative_to(recording.folder).as_posix() for path in self._folders]
        names = {cell.folder: cell.name for cell in self._plan.timed}
        taken = [turn for turn in tournament.log.turns if turn.round == number]
        for folder in entry.runs:
            cell = names[Path(folder).name]
            recording.turns[folder] = [turn for turn in taken if turn.name == cell]
        groups, self._folders, self._groups = self._groups, [], 0
        if entry.runs:
            recording.timing_groups = max(groups, recording.timing_groups)
            recording.timing.append(entry)
        self.done = len(recording.timing)
        recording.timing_seconds = tournament.elapsed
        recording.write()
        if self._cells:
            self._screen.ended(self._shown, left=tournament.expected_seconds())

    def _shows(self, what: str) -> None:
        self._screen.running(what, self._tournament.expected_seconds())

    def _folder_of(self, name: str) -> Path:
        """The folder of the run of a cell in this round."""
        return self._folder / self._cells[name].folder

    def _work(self, run: Any) -> tuple[Any, ...]:
        """What a cell does, whatever it is called. run: of it, a TurnTaker."""
        keys = dict(self._cells[run.name].keys)
        parallel, _ = keys.pop("parallel"), keys.pop("amp")
        return (None if run.alone else parallel, *run.computes, *sorted(keys.items()))

    def _spec(self, cell: PlannedCell, folder: Path) -> RunSpec:
        """What the processes of a cell run. Raises the first failure of its job."""
        own = folder / cell.folder
        own.mkdir(parents=True, exist_ok=True)
        if cell.name not in self._jobs:
            self._jobs[cell.name] = ready_or_failure(self._plan.job(cell, 0), own)
        job = self._jobs[cell.name]
        evaluates = "score" in self._recording.asked and not self._recording.timing
        return spec_of(job, own, command="time", quiet=True, evaluates=evaluates)
