"""Runs that are alive at the same time and train in turns, each in worker processes of its own.

Imported late, because it imports torch: see ninefold.launch.run.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from ninefold.config.spec import RunSpec
from ninefold.errors import PeerError
from ninefold.launch.run import failure_of
from ninefold.launch.workers import Workers
from ninefold.result import Result, in_columns
from ninefold.tournament.contestant import Pace, WarmUp
from ninefold.tournament.plan import Asked, Turn
from ninefold.tournament.taken import TakenTurn

POLL_SECONDS = 1.0  # between looks whether a turn takes too long
LONGEST_SECONDS = 1800.0  # that building and compiling a run, or a turn of unknown length, may take
OTHERS_SECONDS = 60.0  # that a turn may take beyond ten times the expected ones
FIRST_TURN = 3, 5  # untimed and timed steps of a warm-up turn, which sets those that count
FIRST_TURN_STEP = 0.1  # seconds: of a longer step a warm-up step tells enough


class TurnTaker:
    """The ranks of a run, which wait, and train only in `turn`: a contestant.

    Between turns they are stopped (SIGSTOP), with what reads data for them: batches that are read
    ahead meanwhile would cost its turn nothing, and take time from the others'. And an OpenMP
    thread that has nothing to do spins for milliseconds, on a core that the next process needs.

    spec: what it runs.
    name, steps, waits: as of `Contestant`.
    free: bytes that were free on its host and on its fullest GPU when it was ready, if known.
    taken: bytes that it had taken at most on one of its GPUs.
    processes: ids of its processes, and of those that read for them.
    step_seconds: of a warm-up step, of its slowest process; None if it took none.
    alone: whether it does what one process without a strategy does.
    computes: of runs of one strategy, those with the same do the same work.
    """

    def __init__(
        self, spec: RunSpec, processes: int, name: str = "", turn_seconds: float = 0.1
    ) -> None:
        """Start its processes and wait until they wait for a turn. Raises Failure."""
        self.spec, self.name = spec, name
        self._several, self._turn_seconds = processes > 1, turn_seconds
        self.steps, self.waits = 0, False
        self._stoppable = False
        self._ranks = range(processes)
        self._workers = Workers(spec, processes)
        try:
            self._workers.start()
            ready = self._answers(LONGEST_SECONDS)
        except BaseException:
            self._workers.close()
            raise
        self.free = {of: min(each["free"][of] for each in ready) for of in ready[0]["free"]}
        self.taken = {of: max(each["taken"][of] for each in ready) for of in ready[0]["taken"]}
        self.step_seconds: float | None = max(
            filter(None, (each["step_seconds"] for each in ready)), default=None
        )
        self.processes: list[int] = [pid for answer in ready for pid in answer["processes"]]
        self._readers: int = max(each["workers"] for each in ready)
        self.alone: bool = ready[0]["alone"]
        self.computes: tuple[Any, ...] = ready[0]["computes"]
        self._stoppable = all(answer["stoppable"] for answer in ready)
        self._pause(signal.SIGSTOP)

    def asks(self, step: float) -> Asked:
        return Asked(step, self._turn_seconds, self._several, self._readers)

    def warm_up(self, known: Pace | None) -> WarmUp:
        """Yield a turn, unless an earlier process or a warm-up step tells as much; return the pace.

        Each turn has steps before it that are not timed, and warm-up steps have been taken.
        """
        own = self.step_seconds
        if known is not None:
            return known
        if own is not None and own >= FIRST_TURN_STEP:
            return Pace(own, own)
        taken = yield Turn(self.name, *FIRST_TURN, counted=False)
        return Pace(taken.seconds, taken.seconds)

    def turn(self, turn: Turn) -> float:
        """Return the seconds of a timed step; of several processes those of the slowest one.

        A process that takes far longer than expected is taken to hang. Raises Failure, and kills
        all, if one hangs or has ended.
        """
        expected = turn.expected
        if expected is None and self.step_seconds is not None:
            expected = turn.steps * self.step_seconds
        within = LONGEST_SECONDS if expected is None else 10 * expected + OTHERS_SECONDS
        asked = {"lead": turn.lead, "steps": turn.timed, "counted": turn.counted}
        answers = self._ask(within, **asked)
        self.steps += turn.steps
        self.waits = any(each["waits"] for each in answers)
        return float(max(each["seconds"] for each in answers))

    def end(self, turns: Sequence[TakenTurn], stretch: float | None) -> None:
        """Write its result; there are no more turns. Raises Failure.

        Its seconds are those of all turns: which of them count, only the whole study tells.
        """
        answers = self._ask(LONGEST_SECONDS)
        found: Result = next(each for each in answers if isinstance(each, Result))
        others = [note for each in answers if each is not found for note in each]
        seconds = fmean(turn.seconds for turn in turns)
        result = replace(
            found,
            notes=[*dict.fromkeys([*found.notes, *others])],
            turns=len(turns),
            stretch_seconds=stretch,
            train_seconds=(found.steps or 0) * seconds,
            examples_per_second=(found.batch_size or 0) / seconds,
        )
        try:
            result.write(self.spec.folder, **in_columns(turns))
        except OSError as error:
            raise failure_of(error) from error

    def close(self) -> None:
        """Kill its processes, which hold nothing worth saving, and wait for their end."""
        self._workers.close()
        self.processes = []

    def _ask(self, within: float, **message: Any) -> list[Any]:
        """Send a message to all processes and return their answers, due in `within` seconds."""
        self._pause(signal.SIGCONT)
        self._workers.send(message)
        answers = self._answers(within)
        self._pause(signal.SIGSTOP)
        return answers

    def _answers(self, within: float) -> list[Any]:
        answers: dict[int, Any] = {}
        left = within
        while waiting := set(self._ranks) - answers.keys():
            found = self._workers.receive(waiting, min(left, POLL_SECONDS))
            answers |= found
            # Not by a clock: it would count the time that ^Z stops this process.
            left -= 0 if found else POLL_SECONDS
            if left <= 0:
                raise self._given_up(within)
        return list(answers.values())

    def _pause(self, number: int) -> None:
        """Stop its processes, and those that read for them, or let them go on."""
        if self._stoppable:
            self._workers.signal(number, groups=True)

    def _given_up(self, seconds: float) -> PeerError:
        """Kill processes that did not answer within `seconds`; return the failure to raise."""
        self.close()
        wrong = f"{self.spec.folder.name} did not answer in {seconds:.0f} s"
        allowed = f"its log is in {self.spec.folder}"
        do = "see what it was doing, and resume the study"
        do += "; several GPUs may need NCCL_P2P_DISABLE=1" * self._several
        return PeerError("study.ask", "time", wrong, allowed, do)
