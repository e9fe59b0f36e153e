"""The timing rounds of a study: all cells are alive at once and train in short turns.

What changes with the moment (a neighbor, heat) then slows all cells alike, as in the duet
benchmarking of Bulej et al. (2020), which runs two programs at the same time. What differs between
processes, such as where their memory lies, stays while they live: each round starts new ones, as
Kalibera and Jones (2013) advise. docs/method.md has the figures.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ninefold.config.job import Asked, Settled
from ninefold.config.spec import RunSpec
from ninefold.errors import Failure, ResourceError
from ninefold.launch import Outcome
from ninefold.launch.ready import ready_or_failure
from ninefold.launch.run import failure_of, spec_of, write_job
from ninefold.launch.run_folder import record
from ninefold.result import TIMING, TIMING_LOOKS
from ninefold.stats.turns import TurnLog, step_seconds
from ninefold.study.load import NeighborLoad
from ninefold.study.plan import Plan, PlannedCell
from ninefold.study.record import StudyFolder
from ninefold.study.screen import Screen
from ninefold.study.turns import (
    FIRST_TURN,
    LATE,
    STRETCH_SHARE,
    Turn,
    mirrored,
    planned_seconds,
    round_seconds,
    spread,
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
        self._log = TurnLog()
        self._turns: dict[str, Turn] = {}  # the next one of each cell
        self._turn_seconds: dict[str, float] = {}  # that it is expected to take
        self._failed_folders: list[Path] = []  # of this round
        self._began = 0.0  # when it would have begun if nothing had interrupted it
        self._last_round_seconds = 0.0
        self._overhead_seconds = 0.0  # of that round: starts, long stretches, ends
        self._last_turn_ended: float | None = None
        self._round_seconds: float | None = None  # that this round is to take
        self._stretches: Counter[str | None] = Counter()  # long ones so far, by cell
        self._stretch_seconds = 0.0  # of all of these
        self._named_cell: str | None = None  # by the latest look
        self._settled = False  # whether it found the answer

    def run(self) -> None:
        """Make the rounds that are left."""
        recording = self._recording
        self._began = time.monotonic() - recording.timing_seconds
        if recording.timing:  # of a command before
            self._last_round_seconds = recording.timing_seconds / len(recording.timing)
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
                self._last_round_seconds = time.monotonic() - started
                recording.timing_seconds = time.monotonic() - self._began
                recording.write()
                if self._cells:
                    self._screen.ended(what, (), self._seconds_left())
                    self._update()
        recording.timing_ended = ended

    def _forget_failures(self) -> None:
        """Take failed runs of cells that are timed again out of their rounds, to superseded/."""
        recording, again = self._recording, {cell.folder for cell in self._cells}
        for entry in recording.timing:
            for name in list(entry.runs):
                if Path(name).name in again and not recording.has_ended(name):
                    entry.runs.remove(name)
                    if (recording.folder / name).exists():
                        recording.supersede(name)

    def _ended(self) -> str | None:
        """Why there is no further round: "settled", "rounds", "failed" or "budget"; None: one is.

        Leaves out the cells whose times cannot change the answer.
        """
        from ninefold import report  # here, because it imports SciPy

        done = len(self._recording.timing)
        if done in TIMING_LOOKS:
            state = report.timing(self._recording.folder, self._settings["pairs"])
            self._named_cell, self._settled = state.named, state.settled
            if not state.settled:
                kept = {*state.cells, state.named}  # the answer promises the time of that one
                self._cells = [cell for cell in self._cells if cell.name in kept]
        if done >= TIMING_LOOKS[-1]:
            return "rounds"
        if not self._cells:
            return "failed"
        fits = self._is_within_budget(done)
        # One more if the named cell has trained no long stretch yet.
        stretched = not self._stretches or self._stretches[self._named_cell]
        if self._settled and (stretched or not fits):
            self._screen.note(f"the time question is settled after {done} timing rounds")
            return "settled"
        return None if fits else "budget"

    def _is_within_budget(self, done: int) -> bool:
        """Whether another round fits. There are two wherever they take little more than it."""
        if done == 0:
            return True
        left = self._seconds_left()
        if self._settings["turns"] != "auto" or not self._turn_seconds:  # of a command before
            return self._last_round_seconds <= left + (LATE if done < 2 else 0.0)
        one_each = sum(self._turn_seconds[cell.name] for cell in self._cells)
        enough = done < 2 or left >= planned_seconds(self._budget, self._overhead_seconds) / 2
        return enough and self._overhead_seconds + one_each <= left + LATE

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
        left = mirrored(self._cells, f"{self._settings['seed']}/timing", number)
        entry = Round(number, self._plan.seeds[0], shuffled=True)
        groups, cells, load = 0, len(left), NeighborLoad()
        self._overhead_seconds, self._round_seconds = 0.0, None
        while left:
            groups += 1
            timed = self._group(turns, left, number, what, cells, load)
            folders = [run.spec.folder for run in timed] + self._failed_folders
            entry.runs += [path.relative_to(recording.folder).as_posix() for path in folders]
            self._failed_folders = []
        if entry.runs:
            entry.others = load.others
            recording.timing_groups = max(groups, recording.timing_groups)
            recording.timing.append(entry)

    def _group(
        self,
        turns: Turns,
        left: list[PlannedCell],
        number: int,
        what: str,
        cells: int,
        load: NeighborLoad,
    ) -> list[TurnTaker]:
        """Time as many cells of `left` as fit into memory together, and remove them from it.

        number: of the round. cells: of the round. load: counts what other programs do meanwhile.
        """
        began = time.monotonic()
        ending = 0.0 if self._last_turn_ended is None else began - self._last_turn_ended
        runs = self._start(turns, left, self._recording.folder / TIMING / str(number), what)
        for cell, run in list(runs):
            with self._dropping(runs, cell, run):
                self._take_first_turn(cell, run)
        own = time.monotonic() - began + ending
        if not runs:
            turns.close()
            return []
        chosen, long = self._to_stretch([cell for cell, _ in runs], own)
        self._overhead_seconds += own + long
        share = len(runs) / cells
        if self._round_seconds is None:  # other groups of the round take as long, per cell
            rounds = TIMING_LOOKS[-1] - len(self._recording.timing)
            left_over = self._seconds_left() + own
            overhead = self._overhead_seconds / share
            self._round_seconds = round_seconds(self._budget, left_over, overhead, rounds)
        training = self._round_seconds * share - own - long
        with load.during([pid for _, run in runs for pid in run.processes()]):
            self._take_turns(runs, number, training, what)
        seconds = step_seconds(turn for turn in self._log.turns if turn.round == number)
        alone: dict[str, float] = {}
        for cell, run in list(runs):
            with self._dropping(runs, cell, run):
                if cell.name in chosen:
                    lead, each = self._turns[cell.name].lead, seconds[cell.name][number]
                    steps = stretch_steps(each)
                    alone[cell.name] = run.turn(lead, steps, (lead + steps) * each, counted=False)
                    self._stretches[cell.name] += 1
        self._last_turn_ended = time.monotonic()
        for cell, run in list(runs):
            with self._dropping(runs, cell, run):
                each = seconds[cell.name][number]
                taken = [t for t in self._log.turns if (t.name, t.round) == (cell.name, number)]
                write_result(run, [turn.seconds for turn in taken], each, alone.get(cell.name))
                self._plan_turn(cell, each)  # of the next round
        turns.close()
        return [run for _, run in runs]

    def _take_turns(self, runs: Runs, number: int, training: float, what: str) -> None:
        """Let cells train in turns, and log these.

        The numbers of turns are set before: that a cell has fewer because some took long would make
        their mean too large. All cells train for about as long, in turns that are spread evenly
        over these seconds of `training`. Removes runs that fail.
        """
        counts = {cell.name: self._count(cell.name, training / len(runs)) for cell, _ in runs}
        seed = f"{self._settings['seed']}/turns/{number}"
        taken: Counter[str] = Counter()
        for name in spread(counts, lambda n: mirrored(list(counts), seed, n)):
            for cell, run in [each for each in runs if each[0].name == name]:
                if taken[name] and self._is_late():
                    continue
                if taken[name] == max(taken.values(), default=0):  # no cell has had this one
                    shown = f"{what}  turn {taken[name] + 1}"
                    self._screen.running(shown, (), self._seconds_left())
                taken[name] += 1
                with self._dropping(runs, cell, run):
                    turn = self._turns[name]
                    seconds = run.turn(turn.lead, turn.timed, self._turn_seconds[name])
                    self._log.add(name, number, seconds, turn.timed)

    def _count(self, name: str, training: float) -> int:
        """How many turns a cell has that trains for so many seconds."""
        if self._settings["turns"] != "auto":
            return int(self._settings["turns"])
        return max(1, round(training / self._turn_seconds[name]))

    def _is_late(self) -> bool:
        """Whether each cell is to have one turn only, as the machine became slow."""
        late = time.monotonic() - self._began > self._budget + LATE / 2
        return bool(late and self._settings["turns"] == "auto")

    def _to_stretch(self, cells: Sequence[PlannedCell], own: float) -> tuple[list[str], float]:
        """The cells that train a long stretch in this round, and the seconds that these take.

        They are the first cell of each strategy (and of what else is swept), none-fp32 among them,
        and the one that is named: those first that had the fewest, as many as make stretches a
        given share of all rounds. own: seconds of the round that are not training.
        """
        first: dict[tuple[str, ...], str] = {}
        for cell in sorted(cells, key=self._plan.cells.index):
            first.setdefault(tuple(v for k, v in cell.keys.items() if k != "amp"), cell.name)
        wanted = {*first.values(), *(cell.name for cell in cells if cell.name == self._named_cell)}
        most = STRETCH_SHARE * (self._recording.timing_seconds + planned_seconds(self._budget, own))
        chosen, long = list[str](), 0.0
        named = self._named_cell
        for name in sorted(wanted, key=lambda name: (self._stretches[name], name != named)):
            turn = self._turns[name]
            each = self._turn_seconds[name] / turn.steps
            takes = each * (turn.lead + stretch_steps(each))
            if self._stretch_seconds + takes > most and not (self._settled and name == named):
                break  # it is the next in a later round
            chosen.append(name)
            long, self._stretch_seconds = long + takes, self._stretch_seconds + takes
        return chosen, long

    @contextmanager
    def _dropping(self, runs: Runs, cell: PlannedCell, run: TurnTaker) -> Iterator[None]:
        """Drop a run, and its cell from the rounds to come, if the block raises Failure."""
        try:
            yield
        except Failure as failure:
            self._drop(cell, failure, run.spec.folder)
            runs.remove((cell, run))

    def _take_first_turn(self, cell: PlannedCell, run: TurnTaker) -> None:
        """Take a turn that does not count."""
        if (turn := self._turns.get(cell.name)) is not None:
            run.turn(turn.lead, 1, self._turn_seconds[cell.name])
        else:
            self._plan_turn(cell, run.turn(*FIRST_TURN))

    def _plan_turn(self, cell: PlannedCell, seconds: float) -> None:
        """Set the next turn of a cell whose steps take so many seconds."""
        several = self._jobs[cell.name].processes > 1
        turn = Turn.of(cell.name, seconds, self._settings["slice"], several)
        self._turns[cell.name], self._turn_seconds[cell.name] = turn, turn.steps * seconds

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
        first = cell is self._plan.cells[0] and not self._recording.timing
        spec = spec_of(job, own, command="time", quiet=True, tries_one_thread=first)
        write_job(spec, job)
        return spec

    def _drop(self, cell: PlannedCell, failure: Failure, folder: Path) -> None:
        """Report and record a failure of a cell, which is not timed any more."""
        self._failed(Outcome(failure.code, (failure,)), folder)
        if cell in self._cells:
            self._cells.remove(cell)
        self._failed_folders.append(folder)
        with suppress(Failure, OSError):  # of a job or a folder that no result is made of
            job: Asked | Settled = self._jobs.get(cell.name) or self._plan.job(cell, 0)
            record([failure], job.choices, job.resolved, folder, time.time())


def write_result(
    run: TurnTaker, turns: Sequence[float], seconds: float, stretch: float | None
) -> None:
    """Write the result of a run; there are no more turns. Raises Failure.

    turns, seconds, stretch: seconds of a step in each turn, in all of them and in a long stretch.
    """
    result = run.end()
    result = replace(
        result,
        turns=len(turns),
        turn_seconds=list(turns),
        stretch_seconds=stretch,
        train_seconds=(result.steps or 0) * seconds,
        images_per_second=(result.batch_size or 0) / seconds,
    )
    try:
        result.write(run.spec.folder)
    except OSError as error:
        raise failure_of(error) from error
