"""A compared command: started as the user typed it, held between its turns, killed at the end."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeAlias, TypedDict

import msgspec
from msgspec import Meta

from ninefold.bench import guardian
from ninefold.bench.elsewhere import foreign_code
from ninefold.bench.ranks import own_seconds
from ninefold.bench.revisions import Copy
from ninefold.errors import NO_MEMORY, ConfigError, Failure, PeerError, ResourceError
from ninefold.files import opener
from ninefold.process import scratch
from ninefold.tournament.contestant import Ended
from ninefold.waits import poll_until

INJECT = Path(__file__).parent / "inject"
LOOK_SECONDS = 0.01  # between looks whether a command has reached its first step
START_SECONDS = 300.0  # that a command may take to its first step
RANKS_SECONDS = 60.0  # after its first rank's that the others' first step may come
OTHERS_SECONDS = 60.0  # that a turn may take beyond ten times the expected seconds
TAIL = 4096  # bytes of its output that are looked at
LONGEST_NAME = 60  # characters of a folder for output
LAUNCHER_FAILED = "ChildFailedError"
TRACEBACK = "Traceback (most recent call last)"
EXCEPTION = re.compile(r"^(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception)\w*(?:: .*)?)$", re.M)
FRAME = re.compile(r'File "([^"]+)", line (\d+)')
QUOTED = 300  # characters of a command's last output that an error shows
# Codes of a killed process, and of a shell whose child was.
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
HELLO_SECONDS = 5.0  # that a rank may take to say who it is once it has connected
LARGEST = 1 << 26  # bytes that it says at a time
LONGEST_WAIT = 1e8  # seconds: a socket takes no more than its clock counts
ORDINARY = 0.5  # share of a process's steps from which on what marks them is part of a step
SEEN = 8  # steps by which that is judged, at least
MARKS = (
    *("an evaluation", "a new pass over a loader", "torch.save", "another optimizer"),
    *("a block without gradients", "a step that a GradScaler skipped"),
)


@dataclass(frozen=True)
class Command:
    """What is compared.

    text: run by /bin/sh, with {seed} and {out} replaced. folder: where. variables: its own.
    step: MODULE:FUNCTION whose return ends a step; None: Optimizer.step. precision: what it is to
    compute in. processes: in how many it is to train; None: as it comes. twin: what the hook leaves
    out. changes: what it changes, "none" only to look. copy: the revision that it is of.
    """

    text: str
    name: str = ""
    folder: Path = field(default_factory=Path.cwd)
    variables: Mapping[str, str] = field(default_factory=dict)
    step: str | None = None
    precision: str | None = None
    processes: int | None = None
    twin: str | None = None
    changes: str | None = None
    copy: Copy | None = None

    def failure(self, wrong: str, allowed: str, do: str) -> ConfigError:
        return ConfigError("command", self.text, wrong, allowed, do)

    def ended(self, code: int, wrong: str, allowed: str, do: str) -> Failure:
        """The failure of one that has ended. code: its own, or the number of a signal, below 0."""
        kind = ResourceError if code in KILLED else ConfigError
        return kind("command", self.text, wrong, allowed, do)

    def start(
        self, number: int, log: Path, variables: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start it with its output in a file. number: of the round. variables: besides its own."""
        if not self.folder.is_dir():
            raise self.failure(
                f"its working folder, {self.folder}, is gone",
                "a command is started in it in each round",
                "let none remove it",
            )
        text = self.text.replace("{seed}", str(number))
        log.parent.mkdir(parents=True, exist_ok=True)
        if "{out}" in text:
            out = tempfile.mkdtemp(prefix=f"{log.stem}-", dir=log.parent)
            text = text.replace("{out}", shlex.quote(out))
        with open(log, "ab", opener=lambda name, flags: opener(name, flags, 0o600)) as file:
            return subprocess.Popen(
                ["/bin/sh", "-c", text],
                cwd=self.folder,
                env={**os.environ, **self.variables, **variables},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def log(self, keep: Path, number: int) -> Path:
        """The file for its output in a round."""
        return keep / folder_name(self.name) / f"{number + 1}.log"

    @property
    def python_path(self) -> str:
        """Its PYTHONPATH, in front of which is the folder of what is loaded into it."""
        before = self.variables.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        return f"{INJECT}{os.pathsep}{before}" if before else str(INJECT)

    def hooks(self, path: Path, one_optimizer: bool) -> dict[str, str]:
        """The variables that load the hook.

        path: of the socket that it connects to. one_optimizer: whether the command is known to have
        no other one, so that its first step says already which ends a step.
        """
        port = os.environ.get("MASTER_PORT", str(free_port()))
        found = {
            guardian.TOKEN: str(path),
            "PYTHONPATH": self.python_path,
            "MASTER_PORT": port,
            "PET_MASTER_PORT": os.environ.get("PET_MASTER_PORT", port),  # torchrun's own
            "PET_LOG_DIR": os.environ.get("PET_LOG_DIR", str(path.with_name("torchrun"))),
            "NINEFOLD_BENCH_STEP": self.step,
            "NINEFOLD_BENCH_PRECISION": self.precision,
            "NINEFOLD_BENCH_PROCESSES": self.processes,
            "NINEFOLD_BENCH_TWIN": self.twin,
            "NINEFOLD_BENCH_CHANGES": self.changes,
            "NINEFOLD_BENCH_ONE_OPTIMIZER": "1" if one_optimizer else None,
            "NINEFOLD_BENCH_ORIGIN": self.copy and self.copy.original,
        }
        return {name: str(value) for name, value in found.items() if value is not None}


def folder_name(name: str) -> str:
    """What a command's folder is called; of a long name the end counts."""
    return re.sub(r"[^\w.=-]+", "-", name)[-LONGEST_NAME:].lstrip(".")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# What networks got in a step: the different numbers of examples, ascending, and all elements.
Batch: TypeAlias = tuple[list[int], int]


class Precision(TypedDict):
    """What a command's first steps compute in.

    computes: a dtype; None: not known. framework: whose choice it is; None: a plain loop's.
    line: where the script chooses. called: whether a network of torch.nn was.
    """

    computes: str | None
    framework: str | None
    line: str | None
    called: bool


class Strategy(TypedDict):
    """How a rank trains.

    averages: the class by which gradients are averaged; None: none was called. network: FILE:LINE
    of the script that calls a network; line: where the script chooses its strategy or devices.
    """

    averages: str | None
    network: str | None
    line: str | None


class Script(TypedDict):
    """What a script has of what may make it faster, as its first step shows.

    loader, optimizer, network: FILE:LINE where they are made or first called, several with commas;
    None: in a package. workers: of the loader that it reads; iterable: whether that has an
    IterableDataset; pinned: whether its batches are. threads: that compute. fused: whether its
    optimizers are; None: no one could be. convolutions, compiled: whether it has them. cuda:
    whether it uses a GPU. world: processes that train together. computes, framework: as of
    Precision.
    """

    loader: str | None
    optimizer: str | None
    network: str | None
    workers: int | None
    threads: int | None
    fused: bool | None
    convolutions: bool
    compiled: bool
    iterable: bool
    pinned: bool | None
    cuda: NotRequired[bool]
    world: NotRequired[int]
    computes: NotRequired[str | None]
    framework: NotRequired[str | None]


class Hello(TypedDict):
    """What a rank says of itself.

    gpus: UUIDs of those that it uses. unfinished: who still computed what its first step had
    returned.
    """

    rank: Annotated[int, Meta(ge=0)]
    world: Annotated[int, Meta(ge=1)]
    torch: str | None
    cuda: bool
    gpus: list[str]
    unfinished: str | None
    modules: list[str]
    precision: Precision | None
    strategy: Strategy | None
    script: Script | None


class Answer(TypedDict):
    """What it says at the end of a turn.

    workers: processes that it has started. waits: whether its GPUs had done nearly all of the last
    step when the host had queued it. besides: `FILE:LINE` of what costs time in its first steps,
    where that was asked for. taken: of each of the first steps, at the end of the first turn.
    memory: its peak, in bytes. unscaled: whether its first steps computed in float16 without a
    GradScaler. waited: seconds of each step of the warm-up in which it waited for other ranks'
    gradients; None: not seen.
    """

    seconds: list[Annotated[float, Meta(gt=0)]]
    marks: dict[int, str]
    steps: int
    optimizers: int
    workers: int
    waits: bool
    besides: dict[str, str] | None
    taken: list[Batch] | None
    memory: int
    unscaled: bool
    waited: list[float | None]


class Contestant:
    """A command whose processes wait, stopped, and train only in `turn`.

    processes: it and all that it has started. at_gpu: whether it has begun to use a GPU. said: what
    rank 0 said of itself, and at the end of the last turn. steps: that its process had taken then.
    paused: seconds that it was stopped since its first step. optimizers: that were seen. taken: by
    rank what its networks got in the first steps. own: seconds of each rank's own work, of steps of
    the warm-up. folder: of what its processes write for us.
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
        self.command, self.log, self._number = command, command.log(keep, number), number
        self._beside, self._one_optimizer, self.optimizers = beside, one_optimizer, 0
        self._marking, self.steps = marking, 0
        self.taken: list[list[Batch]] = []
        self.own: list[list[float]] = []
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
        self._process = self.command.start(self._number, self.log, hooks)
        self.processes: list[int] = [self._process.pid]

    def restart(self) -> None:
        """Start it again, when it has ended."""
        self.close()
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
        code, now = self._process.poll(), time.monotonic()
        passes = not self._ranks and (self.folder / "passes").exists()
        if passes or code is not None or now - self._began > START_SECONDS:
            raise self._no_step(code)
        if world is not None and now - self._first > RANKS_SECONDS:
            raise self.command.failure(
                f"{len(self._ranks)} of {world} ranks were seen; the others are on another host or "
                "have lost PYTHONPATH",
                "one host is supported",
                "start fewer",
            )
        return False

    @property
    def hellos(self) -> list[Hello]:
        """What each rank has said of itself."""
        return [self._hellos[rank] for rank in sorted(self._hellos)]

    @property
    def script(self) -> Script | None:
        """What it has said of what may make it faster."""
        hello = self._hellos[0]
        if hello["script"] is None:
            return None
        found: Script = hello["script"].copy()
        found["cuda"], found["world"], precision = hello["cuda"], hello["world"], hello["precision"]
        if precision is not None:
            found["computes"], found["framework"] = precision["computes"], precision["framework"]
        return found

    @property
    def first_step_seconds(self) -> float:
        """Seconds until its first step ended, from its start, or since it may use a GPU."""
        return self._first - self._began

    def turn(
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
            self.taken = self.taken or [answer["taken"] or [] for answer in answers]
            taken.add(answers, self._marks)
            self.own += own_seconds(answers)
            lead = 0
        self._accept()
        self._stop()
        self.said, taken.end = {**self._hellos[0], **answers[0]}, time.time()
        self.said["waits"] = any(answer["waits"] for answer in answers)
        self.said["memory"] = max(answer["memory"] for answer in answers)
        return taken

    @property
    def correction(self) -> str:
        """What helps where it has ended with an error."""
        killed = self._process.returncode in KILLED
        if killed or any(words in tail(self.log, TAIL) for words in NO_MEMORY):
            do = "let it use less memory"
            if self._beside:
                do = "where all do not fit together, --apart has one alive at a time"
            return f"{do}; see {self.log}"
        return f"correct it, see {self.log}"

    @property
    def last_words(self) -> str:
        """The exception that it ended with, or the end of its output."""
        error = raised(self.log, self.command.folder)
        return error or f"its output ends: {last_line(self.log)}"

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
                    raise self.command.failure(
                        "2 of its processes take steps and no group joins them",
                        "commands that train one model are compared",
                        "start one training",
                    )
                self._ranks[rank], self._hellos[rank] = connection, hello
                self._first = self._first or time.monotonic()

    def _ask(self, order: Mapping[str, Any], limit: float) -> list[dict[str, Any]]:
        """Send an order to all ranks; return their answers, by rank."""
        try:
            for connection in self._ranks.values():
                connection.send(order)
            answers = [self._ranks[rank].receive(limit, Answer) for rank in sorted(self._ranks)]
        except TimeoutError:
            raise PeerError(
                "command",
                self.command.text,
                f"it did not take {order['steps']} steps in {limit:.0f} s",
                f"its output ends: {last_line(self.log)}",
                f"see {self.log}",
            ) from None
        except (EOFError, OSError):
            poll_until(lambda: self._process.poll() is not None, OTHERS_SECONDS, LOOK_SECONDS)
            if self._process.returncode is None:
                raise self.command.failure(
                    "one of its processes has ended, or replaced itself by exec, and others train "
                    "on",
                    "all ranks of a training end together",
                    f"see {self.log}",
                ) from None
            raise Ended(self._process.returncode) from None
        except msgspec.DecodeError as error:
            raise self.command.failure(
                f"what it says of its steps cannot be used ({error})",
                "steps take time, by time.perf_counter",
                "leave that and the socket of NINEFOLD_BENCH as they are",
            ) from error
        return answers

    def _no_step(self, code: int | None) -> Failure:
        """Why it has taken no step. code: that it ended with; None: it runs."""
        command = self.command
        if code:
            wrong = f"it ended with code {code} before its first step"
            return command.ended(code, wrong, self.last_words, self.correction)
        if not (self.folder / "loaded").exists():
            return command.failure(
                "no Python of it loaded the hook",
                "-I, -E, -S, sudo and containers drop PYTHONPATH",
                "leave that out, or --whole",
            )
        torch = (self.folder / "torch").exists()
        seen = f"torch was {'' if torch else 'not '}imported"
        passes = (self.folder / "passes").exists()
        if code is None and not passes:
            return command.failure(
                f"it took no step in {START_SECONDS:.0f} s", seen, "let it start faster, or --whole"
            )
        ended = f"it ended after {time.monotonic() - self._began:.0f} s without a step"
        if passes:
            ended = "it computes gradients again and again, and has no optimizer"
        if not torch:
            return command.failure(ended, seen, "--whole times its runs")
        return command.failure(
            ended,
            f"{seen} and no {command.step or 'Optimizer.step'} was called",
            "give two commands, and name their step with --step MODULE:FUNCTION, or --whole",
        )


def last_line(log: Path) -> str:
    """The end of what a command has printed: the error of its last traceback, if there is one.

    Loggers print more after that, and what cannot be closed at the end has a traceback of its own.
    """
    lines = [line.rstrip() for line in tail(log, TAIL).splitlines() if line.strip()]
    for number in range(len(lines) - 1, -1, -1):
        before = lines[number - 1] if number else ""
        if lines[number].startswith(TRACEBACK) and not before.startswith("Exception ignored"):
            told = [line for line in lines[number + 1 :] if not line[0].isspace()]
            return told[0][:QUOTED] if told else lines[-1].strip()[-QUOTED:]
    return lines[-1].strip()[-QUOTED:] if lines else "nothing"


def raised(log: Path, folder: Path) -> str | None:
    """The first exception that torchrun, which ends with one of its own, has let through.

    Its words come after the last line of the traceback that is of a script in `folder`.
    """
    text = tail(log, LARGEST)
    if LAUNCHER_FAILED not in text or (error := EXCEPTION.search(text)) is None:
        return None
    lines = [*FRAME.finditer(text, 0, error.start())]
    own = [f"{Path(m[1]).name}:{m[2]}: " for m in lines if Path(m[1]).parent == folder]
    return f"{own[-1] if own else ''}{error[1].rstrip('.')[:QUOTED]}"


def tail(log: Path, most: int) -> str:
    """The last bytes of what a command has printed, at most so many."""
    with open(log, "rb", opener=opener) as file:
        file.seek(max(os.path.getsize(log) - most, 0))
        return file.read().decode("utf-8", "replace")


class Marks:
    """Decides which steps are left out: those in which an event of one of MARKS happened.

    An event that is in most steps of a process is taken as a part of training: its steps count.

    marking: the events whose steps are left out. The caller's set, from which such an event is
        removed, so that processes of later rounds count its steps too.
    """

    def __init__(self, marking: set[str]) -> None:
        self.marking = marking
        self._steps, self._seen = 0, Counter[str]()

    def of(self, answers: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """What the steps contained that the ranks took, by their number.

        A step in which any rank did something else counts in none: the others waited for it.
        """
        found = {int(n): what for answer in answers for n, what in answer["marks"].items()}
        self._steps += len(answers[0]["seconds"])
        self._seen.update(found.values())
        if self._steps >= SEEN:
            most = ORDINARY * self._steps
            if sum(self._seen[what] for what in self.marking) > most:
                self.marking -= {what for what, n in self._seen.items() if n > most / 2}
        return {n: what for n, what in found.items() if what in self.marking}


class Taken:
    """A turn, or as much of it as was taken so far.

    begin, end: when. steps: that count. marked: seconds of those that do not, by what they contain.
    """

    def __init__(self) -> None:
        self.begin = self.end = time.time()
        self.steps = 0
        self.marked = defaultdict[str, list[float]](list)
        self._seconds = defaultdict[int, float](float)  # by rank

    def add(self, answers: Sequence[Mapping[str, Any]], marks: Marks) -> None:
        """Count what the ranks took for an order."""
        marked = marks.of(answers)
        kept = [n for n in range(len(answers[0]["seconds"])) if n not in marked]
        for rank, answer in enumerate(answers):
            self._seconds[rank] += sum(answer["seconds"][n] for n in kept)
        for number, what in marked.items():
            self.marked[what].append(max(answer["seconds"][number] for answer in answers))
        self.steps += len(kept)

    @property
    def seconds(self) -> float:
        """Per step that counts, of the slowest rank."""
        return max(self._seconds.values()) / self.steps


class Connection:
    """Messages as lines of JSON over a socket."""

    def __init__(self, found: socket.socket) -> None:
        self._socket, self._lines = found, found.makefile("rb")

    def send(self, message: Mapping[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float, kind: type) -> Any:
        """The next message, of a kind. Raises TimeoutError, msgspec.DecodeError; EOFError where the
        other end has closed, or says too much.
        """
        self._socket.settimeout(min(seconds, LONGEST_WAIT))
        line = self._lines.readline(LARGEST)
        if not line.endswith(b"\n"):
            raise EOFError
        return msgspec.json.decode(line, type=kind)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
