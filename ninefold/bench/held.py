"""A command that is held: its processes wait, stopped, and train only in turns."""

from __future__ import annotations

import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ninefold.bench import guardian
from ninefold.bench.command import KILLED, NO_HOOK, Command, exit_code_of_pipe
from ninefold.bench.messages import Answer, Batch, Connection, Hello
from ninefold.bench.printed import TAIL, last_line, raised, tail
from ninefold.bench.ranks import own_seconds
from ninefold.bench.revisions import foreign_code
from ninefold.bench.turns import Marks, Taken
from ninefold.errors import NO_MEMORY, Failure, PeerError
from ninefold.numbers import counted
from ninefold.process import scratch
from ninefold.tournament.contestant import Ended
from ninefold.waits import poll_until

LOOK_SECONDS = 0.01  # between looks whether a command has reached its first step
PORT_TAKEN = "ddress already in use"  # as sockets of all kinds say it
START_SECONDS = 300.0  # that a command may take to its first step
RANKS_SECONDS = 60.0  # after its first rank's that the others' first step may come
OTHERS_SECONDS = 60.0  # that a turn may take beyond ten times the expected seconds
HELLO_SECONDS = 5.0  # that a rank may take to say who it is once it has connected


class HeldCommand:
    """A command whose processes wait, stopped, and train only in `train`.

    processes: it and all that it has started. at_gpu: whether it has begun to use a GPU. told: what
    rank 0 said of itself, and at the end of the last turn. steps: that its process had taken then.
    paused: seconds that it was stopped since its first step. peak: bytes of memory of its fullest
    process, also of one before. optimizers: that were seen. batches: by rank what its networks got
    in the first steps. own_work: seconds of each rank's, of steps of the warm-up. folder: of what
    its processes write for us.
    """

    def __init__(
        self,
        command: Command,
        number: int,
        keep: Path,
        marking: set[str],
        beside: bool = False,
        one_optimizer: bool = False,
        recording: Mapping[str, str] | None = None,
    ) -> None:
        """Start it.

        number: of the round. keep: for its output. marking: see `Marks`. beside: whether others are
        alive meanwhile. one_optimizer: see `Command.hooks`. recording: variables that have its
        first steps recorded.
        """
        self.command, self.log, self.number = command, command.log(keep, number), number
        self._beside, self._one_optimizer, self.optimizers = beside, one_optimizer, 0
        self._marking, self.steps, self.peak = marking, 0, 0
        self.batches: list[list[Batch]] = []
        self.own_work: list[list[float]] = []
        self.recording = recording or {}
        self._start()

    def _start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=scratch()))
        self._path = self.folder / "hook"
        self._ranks, self._hellos = dict[int, Connection](), dict[int, Hello]()
        self._marks = Marks(self._marking)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(1024)
        self._listener.setblocking(False)
        self._began, self._first = time.monotonic(), 0.0
        self._stopped, self.paused, self.at_gpu = 0.0, 0.0, False
        hooks = {**self.command.hooks(self._path, self._one_optimizer), **self.recording}
        self._process = self.command.start(self.number, self.log, hooks)
        self.processes: list[int] = [self._process.pid]

    def restart(self) -> None:
        """Start it again, when it has ended."""
        self.close()
        self.recording = {}
        self._start()

    def arrived(self, gpu: bool = True) -> bool:
        """Whether all its ranks wait behind their first step; then they are stopped.

        gpu: whether it may begin to use a GPU; else it waits there. Raises ConfigError if it will
        not arrive.
        """
        if not self.at_gpu and (self.folder / "at-gpu").exists():
            if not gpu:
                return False
            (self.folder / "go").touch()
            self.at_gpu, self._began = True, time.monotonic()
        self._accept()
        world = next((hello["world"] for hello in self._hellos.values()), None)
        if world is not None and len(self._ranks) >= world:
            copy, files = self.command.copy, self._hellos[0]["modules"]
            if copy and (foreign := foreign_code(copy, files)):
                raise foreign
            self.command.require_environment([self._hellos[0]["prefix"]])
            if queuing := self._hellos[0]["unfinished"]:
                raise self.command.failure(
                    f"its step returns before {queuing} has computed it",
                    "a device is waited for that torch computes on",
                    "end the step with jax.block_until_ready, or --whole"
                    if queuing == "jax"
                    else "--whole times its runs",
                )
            (self.folder / "go").touch()  # whatever uses a GPU later does not wait
            self._stop()
            return True
        code, now = exit_code_of_pipe(self._process.poll()), time.monotonic()
        passes = not self._ranks and (self.folder / "passes").exists()
        if passes or code is not None or now - self._began > START_SECONDS:
            raise self._no_step(code)
        if world is not None and now - self._first > RANKS_SECONDS:
            seen = f"{len(self._ranks)} of {world} ranks were seen"
            wrong = f"{seen}; the others are on another host or have lost PYTHONPATH"
            raise self.command.failure(wrong, "one host is supported", "start fewer")
        return False

    @property
    def hellos(self) -> list[Hello]:
        """What each rank has said of itself."""
        return [self._hellos[rank] for rank in sorted(self._hellos)]

    @property
    def first_step_seconds(self) -> float:
        """Seconds until its first step ended, from its start, or since it may use a GPU."""
        return self._first - self._began

    def train(
        self, lead: int, steps: int, expected: float | None = None, records: bool = False
    ) -> Taken:
        """Train `lead` steps and then as many timed ones as are asked for.

        expected: seconds of the turn, if known. records: whether its steps are recorded on, if they
        were so far. Raises Ended; PeerError if it takes far longer.
        """
        limit = max(START_SECONDS, 10 * (expected or 0.0) + OTHERS_SECONDS)
        taken = Taken()
        self.paused += time.monotonic() - self._stopped
        for pid in self.processes:
            guardian.send(pid, signal.SIGCONT)
        while taken.steps < steps:
            order: dict[str, Any] = {"lead": lead, "steps": steps - taken.steps}
            order |= {"records": records, "marking": sorted(self._marking)}
            answers = self._ask(order, limit)
            self.steps = answers[0]["steps"]
            self.optimizers = max(self.optimizers, answers[0]["optimizers"])
            self.batches = self.batches or [answer["taken"] or [] for answer in answers]
            taken.add(answers, self._marks)
            self.own_work += own_seconds(answers)
            lead = 0
        self._accept()
        self._stop()
        self.told, taken.end = {**self._hellos[0], **answers[0]}, time.time()
        self.told["waits"] = any(answer["waits"] for answer in answers)
        if not records:  # which takes memory of its own
            self.peak = max(self.peak, *(answer["memory"] for answer in answers))
        return taken

    def failure_of_end(self, code: int, when: str | None = None) -> Failure:
        """The failure of one that has ended, with what helps. when: None: after its last turn."""
        do = f"correct it, see {self.log}"
        no_room = (*NO_MEMORY, "busy or unavailable")  # of a GPU that takes one process
        no_memory = any(words in tail(self.log, TAIL) for words in no_room)
        if no_memory or self._process.returncode in KILLED:
            less = "let it use less memory"
            one = "where all do not fit together, --apart has one alive at a time"
            do = f"{one if self._beside else less}; see {self.log}"
        if self._beside and PORT_TAKEN in tail(self.log, TAIL):
            do = f"give each its own port, or --apart; see {self.log}"
        wrong = f"it ended with code {code} {when or 'after some ' + counted(self.steps, 'step')}"
        allowed = raised(self.log, self.command.folder) or f"its output ends: {last_line(self.log)}"
        return self.command.ended(code, wrong, allowed, do)

    def _stop(self) -> None:
        self.processes = guardian.stop(self._process.pid)
        self._stopped = time.monotonic()

    def close(self) -> None:
        """Kill its processes, amid their training."""
        guardian.kill(str(self._path), self._process)
        self._process.wait()
        for connection in self._ranks.values():
            connection.close()
        self._listener.close()

    def _accept(self) -> None:
        """Accept those that have taken their first step. Raises ConfigError for one too many."""
        with suppress(BlockingIOError):
            while True:
                connection = Connection(self._listener.accept()[0])
                try:
                    hello = connection.receive(HELLO_SECONDS, Hello)
                except (EOFError, OSError, msgspec.DecodeError):
                    continue
                rank = hello["rank"]
                copies = (self.command.processes or 1) > 1 and hello["world"] == 1
                if rank in self._ranks and copies:
                    rank = len(self._ranks)  # the rank of a copy: `strategies` tells of it
                elif rank in self._ranks:
                    wrong = "2 of its processes take steps and no group joins them"
                    allowed = "commands that train one model are compared"
                    raise self.command.failure(wrong, allowed, "start one training")
                self._ranks[rank], self._hellos[rank] = connection, hello
                self._first = self._first or time.monotonic()

    def _ask(self, order: Mapping[str, Any], limit: float) -> list[dict[str, Any]]:
        """Send an order to all ranks; return their answers, by rank."""
        try:
            for connection in self._ranks.values():
                connection.send(order)
            answers = [self._ranks[rank].receive(limit, Answer) for rank in sorted(self._ranks)]
        except TimeoutError:
            wrong = f"it did not take {counted(order['steps'], 'step')} in {limit:.0f} s"
            allowed = f"its output ends: {last_line(self.log)}"
            do = f"see {self.log}"
            raise PeerError("command", self.command.text, wrong, allowed, do) from None
        except (EOFError, OSError):
            poll_until(lambda: self._process.poll() is not None, OTHERS_SECONDS, LOOK_SECONDS)
            if self._process.returncode is None:
                raise self.command.failure(
                    "one of its processes has ended, or replaced itself by exec, and others train "
                    "on",
                    "all ranks of a training end together",
                    f"see {self.log}",
                ) from None
            raise Ended(exit_code_of_pipe(self._process.returncode) or 0) from None
        except msgspec.DecodeError as error:
            raise self.command.failure(
                f"what it says of its steps cannot be used ({error})",
                "steps take time, by time.perf_counter",
                "leave that as it is",
            ) from error
        return answers

    def _no_step(self, code: int | None) -> Failure:
        """Why it has taken no step. code: that it ended with; None: it runs."""
        command = self.command
        if code:
            return self.failure_of_end(code, "before its first step")
        if not (self.folder / "loaded").exists():
            return command.failure(*NO_HOOK)
        torch = (self.folder / "torch").exists()
        seen = f"torch was {'' if torch else 'not '}imported"
        passes = (self.folder / "passes").exists()
        if code is None and not passes:
            wrong = f"it took no step in {START_SECONDS:.0f} s"
            return command.failure(wrong, seen, "let it start faster, or --whole")
        ended = f"it ended after {time.monotonic() - self._began:.0f} s without a step"
        if passes:
            ended = "it computes gradients again and again, and has no torch.optim.Optimizer"
        if not torch:
            return command.failure(ended, seen, "--whole times its runs")
        called = f"{seen} and no {command.step or 'Optimizer.step'} was called"
        do = f"see {self.log}, or name their step with --step MODULE:FUNCTION, or --whole"
        return command.failure(ended, called, do)
