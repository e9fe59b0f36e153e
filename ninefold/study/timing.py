"""The timing rounds of a study: all cells are alive at once and train in short turns.

What changes with the moment (a neighbor, heat) then slows all cells alike, as in the duet
benchmarking of Bulej et al. (2020), which runs two programs at the same time. What differs between
processes, such as where their memory lies, stays while they live: each round starts new ones, as
Kalibera and Jones (2013) advise. benchmarks/LOG.md has the figures.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ninefold.config.job import Asked, Settled
from ninefold.config.spec import RunSpec
from ninefold.errors import Failure, ResourceError
from ninefold.launch import Outcome
from ninefold.launch.ready import ready_or_failure, require_few_processes
from ninefold.launch.run import failure_of, spec_of, write_job
from ninefold.launch.run_folder import record
from ninefold.progress import duration
from ninefold.result import TIMING, TIMING_LOOKS
from ninefold.stats.counted_turns import BUSY, TakenTurn, TurnLog, counted, in_columns
from ninefold.study.load import NeighborLoad
from ninefold.study.plan import Plan, PlannedCell
from ninefold.study.record import StudyFolder
from ninefold.study.screen import Screen
from ninefold.study.turn_plan import (
    FIRST_TURN,
    FIRST_TURN_STEP,
    LATE,
    MIN_TURNS,
    ROUNDS,
    STRETCH_SHARE,
    Turn,
    mirrored,
    planned_seconds,
    round_seconds,
    spread,
    stretch_steps,
    turn_counts,
)
from ninefold.study_record import Round

if TYPE_CHECKING:
    from ninefold.launch.turns import TurnTaker, TurnTakers

    Runs = list[tuple[PlannedCell, TurnTaker]]

RESERVE = 1.25  # another cell is started if this times the most that one has taken is free
SLOW = 1.5  # times its share of the budget that a round takes where there is time for few
USUAL_ROUNDS = 3  # before which, where there is time for more, no cell is out and nothing settled
MORE = 0.25  # share of the budget that one more round may take


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
        self._cells = [cell for cell in plan.timed if cell.name not in recording.untimed]
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
        self._tried_one_thread = bool(
            recording.timing
        )  # whether a process has, see `choose_threads`
        self._extended = False  # whether there was one more round than fits into the budget
        self._first_to_do: dict[tuple[Any, ...], str] = {}  # work -> the first cell that does it
        self._repeats: dict[str, str] = {}  # cell -> the one whose work it repeats

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
                what = f"repetition {len(recording.timing) + 1}  {len(self._cells)} configurations"
                self._screen.running(what, (), self._expected_seconds())
                if turns is None:
                    from ninefold.launch.turns import TurnTakers  # here, because it imports torch

                    turns = stack.enter_context(TurnTakers())
                    self._forget_failures()
                self._round(turns, what)
                self._last_round_seconds = time.monotonic() - started
                recording.timing_seconds = time.monotonic() - self._began
                recording.write()
                if self._cells:
                    self._screen.ended(what, (), self._expected_seconds())
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
        fits = self._is_within_budget(done)
        few = self._is_auto and self._last_round_seconds > SLOW * self._budget / ROUNDS
        if done in TIMING_LOOKS and (few or not fits or done >= USUAL_ROUNDS):
            state = report.timing(self._recording.folder, self._settings["pairs"])
            self._named_cell, self._settled = state.named, state.settled
            if not state.settled:
                kept = {*state.cells, state.named}  # the answer promises the time of that one
                self._cells = [cell for cell in self._cells if cell.name in kept]
        if done >= TIMING_LOOKS[-1]:
            return "rounds"
        if not self._cells:
            return "failed"
        # One more if the named cell has trained no long stretch yet.
        stretched = not self._stretches or self._stretches[self._named_cell]
        if self._settled and (stretched or not fits):
            unit = "repetition" if done == 1 else "repetitions"
            self._screen.note(f"the speed comparison is decided after {done} {unit}")
            return "settled"
        if fits or self._extends():
            return None
        if done < USUAL_ROUNDS:
            takes, left = map(duration, (self._least_seconds(), self._seconds_left()))
            text = f"another repetition takes about {takes}, and {left} are left"
            self._screen.note(f"study.time_budget={self._settings['time_budget']:g}: {text}")
        return "budget"

    @property
    def _is_auto(self) -> bool:
        """Whether the study chooses how many turns a round has."""
        return bool(self._settings["turns"] == "auto")

    @property
    def _left(self) -> float:
        """The share of the first round's cells that are still timed."""
        rounds = self._recording.timing
        return min(len(self._cells) / max(len(rounds[0].runs), 1), 1.0) if rounds else 1.0

    def _is_within_budget(self, done: int) -> bool:
        """Whether another round fits. The second may end late: one round decides little."""
        if done == 0:
            return True
        left = self._seconds_left() + (LATE if done < 2 else 0.0)
        planned = planned_seconds(self._budget, self._overhead_seconds, self._left)
        enough = done < 2 or not (self._is_auto and self._turn_seconds) or left >= planned / 2
        return enough and self._least_seconds() <= left

    def _least_seconds(self) -> float:
        """How long another round takes at least, by the last one."""
        if not self._is_auto or not self._turn_seconds:  # of a command before
            return self._last_round_seconds
        turns = sum(self._turn_seconds.get(cell.name, 0.0) for cell in self._cells)
        return self._overhead_seconds + MIN_TURNS * turns

    def _extends(self) -> bool:
        """Whether there is one more round: for a cell that others have disturbed in most of them.

        Only if the machine is quiet now, and was most of the time.
        """
        turns, done = self._log.turns, len(self._recording.timing)
        if self._extended or done < USUAL_ROUNDS or not turns:
            return False
        found = counted(turns)
        rounds, names = found.seconds(), {cell.name for cell in self._cells}
        disturbed = any(len(of) < USUAL_ROUNDS for name, of in rounds.items() if name in names)
        last = [turn.others or 0.0 for turn in turns[-len(names) :]]
        short = self._last_round_seconds <= MORE * self._budget
        self._extended = disturbed and short and not found.busy and max(last) <= BUSY
        return self._extended

    def _seconds_left(self) -> float:
        """How long the timing rounds may still take."""
        return float(max(self._budget - (time.monotonic() - self._began), 0.0))

    def _expected_seconds(self) -> float:
        """How long they are expected to take: a round that begins in time may end late."""
        further = self._is_within_budget(len(self._recording.timing))
        return max(self._seconds_left(), self._least_seconds() * further)

    def _update(self) -> None:
        """Show the figures so far."""
        if self._screen.live:
            from ninefold import report

            measured = {cell.name for cell in self._cells}
            self._screen.update(report.progress(self._recording.folder), measured)

    def _round(self, turns: TurnTakers, what: str) -> None:
        """Time each cell in new processes, in an order that every second round reverses."""
        recording = self._recording
        number = recording.next_timing_round()
        left = mirrored(self._cells, f"{self._settings['seed']}/timing", number)
        entry = Round(number, self._plan.seeds[0], shuffled=True)
        groups, cells = 0, len(left)
        self._overhead_seconds, self._round_seconds = 0.0, None
        while left:
            groups += 1
            timed = self._group(turns, left, number, what, cells)
            folders = [run.spec.folder for run in timed] + self._failed_folders
            entry.runs += [path.relative_to(recording.folder).as_posix() for path in folders]
            self._failed_folders = []
        if entry.runs:
            shares = [turn.others for turn in self._log.turns if turn.round == number]
            entry.others = fmean(known) if (known := [s for s in shares if s is not None]) else None
            recording.timing_groups = max(groups, recording.timing_groups)
            recording.timing.append(entry)

    def _group(
        self,
        turns: TurnTakers,
        left: list[PlannedCell],
        number: int,
        what: str,
        cells: int,
    ) -> list[TurnTaker]:
        """Time as many cells of `left` as may be alive together, and remove them from it.

        number: of the round. cells: of the round.
        """
        began = time.monotonic()
        ending = 0.0 if self._last_turn_ended is None else began - self._last_turn_ended
        runs = self._start(turns, left, self._recording.folder / TIMING / str(number), what)
        for cell, run in list(runs):
            with self._dropping(runs, cell, run):
                self._take_first_turn(cell, run)
        own = time.monotonic() - began + ending
        self._leave_copies_out(runs, own)
        if not runs:
            turns.close()
            return []
        chosen, long = self._to_stretch([cell for cell, _ in runs], own)
        self._overhead_seconds += own + long
        self._stretch_seconds += long
        share = len(runs) / cells
        if self._round_seconds is None:  # other groups of the round take as long, per cell
            rounds = TIMING_LOOKS[-1] - len(self._recording.timing)
            left_over = self._seconds_left() + own
            overhead = self._overhead_seconds / share
            self._round_seconds = round_seconds(
                self._budget, left_over, overhead, rounds, self._left
            )
        training = self._round_seconds * share - own - long
        self._take_turns(runs, number, training, what)
        taken: dict[str, list[TakenTurn]] = {}
        for turn in self._log.turns:
            if turn.round == number:
                taken.setdefault(turn.name, []).append(turn)
        seconds = {name: fmean(turn.seconds for turn in of) for name, of in taken.items()}
        alone: dict[str, float] = {}
        for cell, run in list(runs):
            with self._dropping(runs, cell, run):
                if cell.name in chosen:
                    lead, each = self._turns[cell.name].lead, seconds[cell.name]
                    steps = stretch_steps(each)
                    alone[cell.name] = run.turn(lead, steps, (lead + steps) * each, counted=False)
                    self._stretches[cell.name] += 1
        self._last_turn_ended = time.monotonic()
        for cell, run in list(runs):
            with self._dropping(runs, cell, run):
                write_result(run, taken[cell.name], alone.get(cell.name))
                self._plan_turn(cell, seconds[cell.name])  # of the next round
        turns.close()
        return [run for _, run in runs]

    def _take_turns(self, runs: Runs, number: int, training: float, what: str) -> None:
        """Let cells train in turns, and log these.

        The numbers of turns are set before: that a cell has fewer because some took long would make
        their mean too large. They are spread evenly over these seconds of `training`. Removes runs
        that fail.
        """
        counts = self._counts([cell.name for cell, _ in runs], training)
        to_take = sum(count * self._turn_seconds[name] for name, count in counts.items())
        load = NeighborLoad()
        seed = f"{self._settings['seed']}/turns/{number}"
        taken: Counter[str] = Counter()
        late = self._began + self._budget + LATE / 2  # each has one turn then: the machine is slow
        for name in spread(counts, lambda n: mirrored(list(counts), seed, n)):
            for cell, run in [each for each in runs if each[0].name == name]:
                if taken[name] and self._is_auto and time.monotonic() > late:
                    continue
                if taken[name] == max(taken.values(), default=0):  # no cell has had this one
                    shown = f"{what}  time slice {taken[name] + 1}"
                    self._screen.running(shown, (), max(self._seconds_left(), to_take))
                taken[name] += 1
                to_take -= self._turn_seconds[name]
                with self._dropping(runs, cell, run):
                    turn, begin = self._turns[name], time.time()
                    load.begin(run.processes)
                    seconds = run.turn(turn.lead, turn.timed, self._turn_seconds[name])
                    own = {"begin": begin, "end": time.time(), "others": load.share()}
                    self._log.add(name, number, seconds=seconds, steps=turn.timed, **own)

    def _counts(self, names: Sequence[str], training: float) -> dict[str, int]:
        """How many turns each cell has if they train for so many seconds together."""
        if not self._is_auto:
            return dict.fromkeys(names, int(self._settings["turns"]))
        return turn_counts({name: self._turn_seconds[name] for name in names}, training)

    def _leave_copies_out(self, runs: Runs, own: float) -> None:
        """Where time is short, end the runs that only repeat the work of others.

        So does dp on one device, and a GradScaler with bfloat16: they are the controls of a study
        that has time for several rounds. own: seconds of the round that are not turns.
        """
        names = {cell.name for cell, _ in runs}
        least = MIN_TURNS * sum(self._turn_seconds[name] for name in names)
        if not self._is_auto or self._recording.timing:
            return
        if own + least <= self._budget / USUAL_ROUNDS:
            return
        for cell, run in [each for each in runs if self._repeats.get(each[0].name) in names]:
            if cell == self._plan.control:  # it was asked for
                continue
            runs.remove((cell, run))
            self._cells.remove(cell)
            self._recording.untimed[cell.name] = self._repeats[cell.name]
            run.close()
            shutil.rmtree(run.spec.folder, ignore_errors=True)

    def _to_stretch(self, cells: Sequence[PlannedCell], own: float) -> tuple[list[str], float]:
        """The cells that train a long stretch in this round, and the seconds that these take.

        They are the first cell of each strategy (and of what else is swept), none-fp32 among them,
        and the one that is named: those first that had the fewest, as many as make stretches a
        given share of all rounds. own: seconds of the round that are not training.
        """
        first: dict[tuple[str, ...], str] = {}
        for cell in [each for each in self._plan.cells if each in cells]:
            first.setdefault(tuple(v for k, v in cell.keys.items() if k != "amp"), cell.name)
        wanted = {*first.values(), *(cell.name for cell in cells if cell.name == self._named_cell)}
        planned = planned_seconds(self._budget, own, self._left)
        most = STRETCH_SHARE * (self._recording.timing_seconds + planned)
        chosen, long = list[str](), 0.0
        named = self._named_cell
        for name in sorted(wanted, key=lambda name: (self._stretches[name], name != named)):
            turn = self._turns[name]
            each = self._turn_seconds[name] / turn.steps
            cost = each * (turn.lead + stretch_steps(each))
            if self._stretch_seconds + long + cost > most and not (self._settled and name == named):
                break  # it is the next in a later round
            chosen.append(name)
            long += cost
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
        """Take a turn that does not count, unless a warm-up step tells as much."""
        turn = self._turns.get(cell.name)
        if run.step_seconds is not None and run.step_seconds >= FIRST_TURN_STEP:
            if turn is None:
                self._plan_turn(cell, run.step_seconds)
        elif turn is not None:
            run.turn(turn.lead, 1, self._turn_seconds[cell.name])
        else:
            self._plan_turn(cell, run.turn(*FIRST_TURN))

    def _plan_turn(self, cell: PlannedCell, seconds: float) -> None:
        """Set the next turn of a cell whose steps take so many seconds."""
        several = self._jobs[cell.name].processes > 1
        turn = Turn.of(cell.name, seconds, self._settings["turn"], several)
        self._turns[cell.name], self._turn_seconds[cell.name] = turn, turn.steps * seconds

    def _start(self, turns: TurnTakers, left: list[PlannedCell], folder: Path, what: str) -> Runs:
        """Start as many cells of `left` as may be alive together, and remove them from it.

        One after another: at once, their warm-up steps would take each other's cores. So each also
        shows how much memory it takes.
        """
        ready: Runs = []
        free: int | None = None
        most = 0.0
        if not self._tried_one_thread:  # what it finds is for all
            first = next((cell for cell in left if self._has_one_process(cell, folder)), left[0])
            left.insert(0, left.pop(left.index(first)))
        while left and (free is None or free >= RESERVE * most):
            cell = left[0]
            self._screen.running(f"{what}  starting {cell.name}", (), self._expected_seconds())
            try:
                spec = self._spec(cell, folder)
                alive = [*(each for each, _ in ready), cell]
                require_few_processes([self._jobs[each.name] for each in alive])
                run = turns.start(spec, self._jobs[cell.name].processes)
            except Failure as failure:
                if isinstance(failure, ResourceError) and ready:
                    break  # there may be room for it when these have ended
                self._drop(cell, failure, folder / cell.folder)
            else:
                ready.append((cell, run))
                self._tried_one_thread |= run.spec.tries_one_thread
                if run.one_thread is not None:
                    self._recording.timing_threads = 1
                    self._screen.note(run.one_thread)
                self._note_work(cell, run)
                if free is not None and run.free is not None:
                    most = max(most, free - run.free)
                free = run.free
            left.remove(cell)
        return ready

    def _note_work(self, cell: PlannedCell, run: TurnTaker) -> None:
        """Note whether a cell repeats what another one does, the first in the plan's order."""
        keys = dict(cell.keys)
        parallel, _ = keys.pop("parallel"), keys.pop("amp")
        work = (None if run.alone else parallel, *run.computes, *sorted(keys.items()))
        order = [each.name for each in self._plan.timed]
        first = min(cell.name, self._first_to_do.get(work, cell.name), key=order.index)
        for name in {cell.name, self._first_to_do.get(work, cell.name)} - {first}:
            self._repeats[name] = first
        self._first_to_do[work] = first

    def _spec(self, cell: PlannedCell, folder: Path) -> RunSpec:
        """What the processes of a cell run. Raises the first failure of its job."""
        own = folder / cell.folder
        job = self._job(cell, own)
        tries = job.processes == 1 and not self._tried_one_thread
        threads = self._recording.timing_threads
        how = {"command": "time", "quiet": True, "tries_one_thread": tries, "threads": threads}
        spec = spec_of(job, own, **how)
        write_job(spec, job)
        return spec

    def _job(self, cell: PlannedCell, folder: Path) -> Settled:
        """The job of a cell, whose first run is in `folder`. Raises its first failure."""
        folder.mkdir(parents=True, exist_ok=True)
        if cell.name not in self._jobs:
            self._jobs[cell.name] = ready_or_failure(self._plan.job(cell, 0), folder)
        return self._jobs[cell.name]

    def _has_one_process(self, cell: PlannedCell, folder: Path) -> bool:
        try:
            return self._job(cell, folder / cell.folder).processes == 1
        except Failure:  # reported when it is the cell's turn
            return False

    def _drop(self, cell: PlannedCell, failure: Failure, folder: Path) -> None:
        """Report and record a failure of a cell, which is not timed any more."""
        self._failed(Outcome(failure.code, (failure,)), folder)
        if cell in self._cells:
            self._cells.remove(cell)
        self._failed_folders.append(folder)
        with suppress(Failure, OSError):  # of a job or a folder that no result is made of
            job: Asked | Settled = self._jobs.get(cell.name) or self._plan.job(cell, 0)
            record([failure], job.choices, job.resolved, folder, time.time())


def write_result(run: TurnTaker, turns: Sequence[TakenTurn], stretch: float | None) -> None:
    """Write the result of a run; there are no more turns. Raises Failure.

    Its seconds are those of all turns: which of them count, only the whole study tells. stretch:
    seconds of a step in a long stretch.
    """
    result, seconds = run.end(), fmean(turn.seconds for turn in turns)
    result = replace(
        result,
        turns=len(turns),
        stretch_seconds=stretch,
        train_seconds=(result.steps or 0) * seconds,
        images_per_second=(result.batch_size or 0) / seconds,
    )
    try:
        result.write(run.spec.folder, **in_columns(turns))
    except OSError as error:
        raise failure_of(error) from error
