"""Run the project's commands in real processes and check that none is left behind."""

import functools
import json
import logging
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar
from weakref import WeakSet

import pytest
import torch

from ninefold.waits import poll_until
from tests.forked import ROOT, Forked, Zygote

PACKAGES = ("ninefold", "benchmarks")
# torch's store looks up the name of each address. A name server that does not answer so many
# questions costs one second and not ten.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


@dataclass
class Shell:
    """Runs the project's commands in one folder, and knows all processes that they start.

    tag: in the environment of what a new interpreter runs.
    started: process ids of commands, each the first of its session.
    seconds: that `run` waits for the end of a command.
    forks: whether commands are forked from a process that has imported torch: not with GPUs, and
        not with --fresh.
    """

    forks: ClassVar[bool] = True

    folder: Path
    tag: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: set[int] = field(default_factory=set)
    seconds: float = 240

    def start(
        self, *command: str, fresh: bool = False, forked: bool = False, **options: Any
    ) -> subprocess.Popen[str] | Forked:
        """Start Python with the arguments `command`. fresh: a new interpreter, also for ours.

        forked: none for a script in the shell's folder or for `-c` either.
        """
        first, second = (*command, "")[:2]
        of_ours = first.startswith(f"{ROOT}/") or (
            first == "-m" and second.partition(".")[0] in PACKAGES
        )
        if (
            not (self.forks and (of_ours or forked))
            or fresh
            or options.keys() - {"env", "stdout", "stderr"}
        ):
            return self.spawn([sys.executable, *command], **options)
        streams = [options.get(name, subprocess.PIPE) for name in ("stdout", "stderr")]
        env = self.environment(options.get("env", {}))
        process = zygote().start(command, self.folder, env, *streams)
        self.started.add(process.pid)
        return process

    def spawn(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start any program."""
        env = self.environment(options.pop("env", {}))
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen(
            command, cwd=self.folder, env=env, text=True, start_new_session=True, **options
        )
        self.started.add(process.pid)
        return process

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        # On a busy machine, threads that spin while waiting take a core from the others.
        env = {**os.environ, "NINEFOLD_TEST_TAG": self.tag, "OMP_WAIT_POLICY": "PASSIVE"}
        env.pop("HYDRA_FULL_ERROR", None)
        return env | dict(given)

    def run(
        self, *command: str, code: int | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. code: the exit code that it must have."""
        return self.finish(self.start(*command, **options), code)

    def finish(
        self, process: subprocess.Popen[str] | Forked, code: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Wait for the end of a command. code: the exit code that it must have."""
        try:
            stdout, stderr = process.communicate(timeout=self.seconds)
        except subprocess.TimeoutExpired:
            end(self.processes())
            stdout, stderr = process.communicate(timeout=30)
            pytest.fail(f"{process.args} did not end in {self.seconds} s:\n{stdout}\n{stderr}")
        assert code in (None, process.returncode), stderr
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def train(self, *overrides: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.run(str(ROOT / "train.py"), *overrides, **options)

    def evaluate(self, *overrides: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.run(str(ROOT / "evaluate.py"), *overrides, **options)

    def torchrun(self, *overrides: str) -> subprocess.CompletedProcess[str]:
        return self.run(
            *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            str(ROOT / "train.py"),
            *overrides,
        )

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Send SIGKILL to the command; every process that it started must end too."""
        process.kill()
        process.wait()
        left = self.survivors()
        assert not left, f"processes that outlived their launcher: {left}"
        process.communicate()

    def processes(self) -> list[int]:
        """The processes alive that this shell's commands started, directly or not."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                alive, session = stat[0] != "Z", int(stat[3])
                tag = self.tag.encode()
                if alive and (session in self.started or tag in (folder / "environ").read_bytes()):
                    found.append(int(folder.name))
            except OSError:  # it has ended, or belongs to another user
                continue
        return found

    def survivors(self, seconds: float = 5) -> list[int]:
        """The processes still alive after `seconds`; returns at once when none is."""
        poll_until(lambda: not self.processes(), seconds, interval=0.02)
        return self.processes()


def wait_until(
    there: Callable[[], object],
    process: subprocess.Popen[str] | Forked | None = None,
    said: Callable[[], str] = str,
    seconds: float = 240,
    look: float = 0.02,
) -> None:
    """Wait until `there()`. process: whose end before that is an error. said: what it has said."""

    def found() -> bool:
        if there():
            return True
        assert process is None or process.poll() is None, said() or process.communicate()
        return False

    assert poll_until(found, seconds, look), said() or f"waited {seconds} s"


def end(processes: Sequence[int]) -> None:
    """Send SIGKILL to processes."""
    for pid in processes:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)


def pytest_configure(config: pytest.Config) -> None:
    """Hide the GPUs of this machine, except from the tests of `-m gpu`.

    What the others say of devices and processes holds on a CPU. CUDA looks at the variable when it
    is used for the first time, and commands inherit it.
    """
    # A shell that starts the tests in the background has them ignore these, and so would commands.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    on_cpu = config.getoption("markexpr") != "gpu"
    Shell.forks = on_cpu and not config.getoption("fresh", False)
    if on_cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-processes", action="store_true", help="fail what starts a process")
    parser.addoption("--fresh", action="store_true", help="fork no command: new interpreters")


@pytest.fixture(scope="session", autouse=True)
def no_processes(request: pytest.FixtureRequest) -> None:
    """With --no-processes, as in `make quick`: raise where a test starts one."""

    def refuse(event: str, _: object) -> None:
        if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"):
            raise AssertionError(f"{event}: with --no-processes tests start no process")

    if request.config.getoption("no_processes"):
        sys.addaudithook(refuse)


@functools.cache
def zygote() -> Zygote:
    return Zygote()


@pytest.fixture(autouse=True)
def no_log_is_left() -> Iterator[None]:
    """Remove the handlers that commands in this process add: their streams end with the test."""

    def remove(kept: Sequence[logging.Handler]) -> None:
        for handler in logging.root.handlers[:]:
            ended = getattr(getattr(handler, "stream", None), "closed", False)
            if ended or handler not in kept:
                logging.root.removeHandler(handler)

    remove(before := [*logging.root.handlers])
    yield
    remove(before)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Use one thread here: more would only compete with the commands under test."""
    torch.set_num_threads(1)
    # Some tests fork. The first backward pass of a process starts a thread for each device, and
    # then none works in forks. Fake tensors pretend that there is one, so it is before them.
    torch.ones(1, requires_grad=True).backward()
    yield
    if zygote.cache_info().currsize:
        zygote().close()


@pytest.fixture(autouse=True, scope="session")
def popens() -> Iterator[WeakSet[subprocess.Popen[Any]]]:
    """All processes that subprocess has started here, by tests and what they call."""
    found: WeakSet[subprocess.Popen[Any]] = WeakSet()
    begin = subprocess.Popen.__init__

    def noted(process: subprocess.Popen[Any], *arguments: Any, **options: Any) -> None:
        begin(process, *arguments, **options)
        found.add(process)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", noted)
        yield found


@pytest.fixture(autouse=True)
def ended_are_waited_for(popens: WeakSet[subprocess.Popen[Any]]) -> Iterator[None]:
    """Wait for what has ended: else Python warns of it when it is collected, in any later test.

    Of a process that goes on it still does.
    """
    yield
    for process in list(popens):
        process.poll()


@contextmanager
def launched(folder: Path) -> Iterator[Shell]:
    """A shell in `folder`; it is an error if it leaves a process behind."""
    shell = Shell(folder)
    try:
        yield shell
        assert not (left := shell.survivors()), f"processes left behind: {left}"
    finally:
        end(shell.processes())


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in an empty folder; the test fails if it leaves a process behind."""
    with launched(tmp_path) as shell:
        yield shell


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files. The path of a socket in it may have 107 characters."""
    with TemporaryDirectory(prefix="nf-") as folder:
        yield Path(folder)


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def metrics(folder: Path, key: str) -> list[float]:
    """The values of `key` in metrics.jsonl, in order."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if key in line]


def only_run(folder: Path) -> Path:
    """The one run folder that a command made under outputs/runs."""
    (run,) = (folder / "outputs" / "runs").iterdir()
    return run
