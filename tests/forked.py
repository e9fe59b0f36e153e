"""Commands of the project in processes of their own, but with one import of torch for all of them.

A process, the zygote, imports what the commands import, composes each configuration once, and does
nothing else. A command is forked from it and is then what `python SCRIPT ARGUMENT ...` is: a
process with its own session, folder, environment, arguments and streams, which handles its own
signals and ends with its own exit code. Along with it a child is forked that becomes its
forkserver, if it starts one.

What is not seen so is how an interpreter starts and what a command imports: `fresh=True` of
tests.conftest.Shell is for that, and the option --fresh, with which no command is forked: `make
long` runs thirty tests of commands so.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from functools import partial
from multiprocessing import process, util
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import _utils
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

import ninefold

ROOT = Path(__file__).parents[1]
NUMBER = struct.Struct("=q")
LARGEST = 1 << 20  # bytes of a message
STREAMS = (0, 1, 2)
HIGH = 500  # descriptors from here on are not in use
BEGAN = dict(os.environ)  # no test has changed it yet
ENVIRONMENT = {
    # What a command sets before it imports torch.
    "OMP_WAIT_POLICY": "PASSIVE",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # Memory in huge pages is forked in half of the time.
    "PYTHONMALLOC": "malloc",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
# Imported late, by what is in ninefold.
LATE = ("torch._dynamo", "torchvision", "multiprocessing.popen_forkserver",
        "multiprocessing.queues", "encodings.idna")  # fmt: skip
# Of each form that overrides have in the tests.
COMPOSED = ["parallel=ddp", "amp=scaler", "max_steps=2", "optimizer.lr=1e-3", "logger=[console]",
            "dataset.shape=[1,8,8]", "model.net={width: 3}", "dataset.root=a/b-1.c",
            "~scheduler.factor", "+optimizer.eps=0.1", "task._target_=a.b.C"]  # fmt: skip
NOT_IMPORTED = ("__main__", "preload")  # they act when they are imported


class Zygote:
    """The process that commands are forked from; it ends with the one that made it."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(other.fileno())],
                cwd=ROOT,
                env={**BEGAN, **ENVIRONMENT},
                pass_fds=[other.fileno()],
                start_new_session=True,
            )

    def start(
        self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], stdout: Any, stderr: Any
    ) -> Forked:
        """As Popen([sys.executable, *arguments], text=True, start_new_session=True, ...) does."""
        ours, theirs = socket.socketpair()
        outputs = [Output(stdout), Output(stderr)]
        request = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}
        with theirs:
            descriptors = [theirs.fileno(), *(output.written for output in outputs)]
            socket.send_fds(self._socket, [b"x"], descriptors)
        ours.sendall(json.dumps(request).encode() + b"\n")
        for output in outputs:
            output.close()
        return Forked(arguments, ours, *(output.read for output in outputs))

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


class Output:
    """A descriptor to write to for `stdout` or `stderr` of Popen, and the other end of a pipe."""

    def __init__(self, given: Any) -> None:
        self.read: IO[str] | None = None
        self._own = given in (subprocess.PIPE, subprocess.DEVNULL)
        if given == subprocess.PIPE:
            reading, self.written = os.pipe()
            self.read = open(reading)  # noqa: SIM115
        elif given == subprocess.DEVNULL:
            self.written = os.open(os.devnull, os.O_WRONLY)
        else:
            self.written = given if isinstance(given, int) else given.fileno()

    def close(self) -> None:
        if self._own:
            os.close(self.written)


class Forked:
    """A command that runs: what the tests use of a Popen[str]."""

    def __init__(
        self,
        arguments: Sequence[str],
        connection: socket.socket,
        stdout: IO[str] | None,
        stderr: IO[str] | None,
    ) -> None:
        self.args, self.stdout, self.stderr = arguments, stdout, stderr
        self.returncode: int | None = None
        self._connection = connection
        self._said: dict[IO[str], Future[str]] = {}
        self.pid = self._number()

    def _number(self) -> int:
        found = self._connection.recv(NUMBER.size, socket.MSG_WAITALL)
        assert found, "the process that commands are forked from has ended"
        return int(NUMBER.unpack(found)[0])

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            self.returncode = os.waitstatus_to_exitcode(self._number())
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it says until its end, which may take `timeout` seconds."""
        until = time.monotonic() + (1e6 if timeout is None else timeout)
        files = [file for file in (self.stdout, self.stderr) if file is not None]
        if not self._said:  # else an earlier call was too early, and its threads still read
            pool = ThreadPoolExecutor(2)
            self._said = {file: pool.submit(file.read) for file in files}
            pool.shutdown(wait=False)
        try:
            found = {file: self._said[file].result(until - time.monotonic()) for file in files}
        except Late:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0) from None
        self.wait(max(0.0, until - time.monotonic()))
        for file in files:
            file.close()
        return found.get(self.stdout, ""), found.get(self.stderr, "")

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


# In the zygote, and in what is forked from it


def import_all() -> None:
    """Import all modules of ninefold, and what they import late."""
    package = importlib.import_module("ninefold")
    names = [found.name for found in pkgutil.walk_packages(package.__path__, "ninefold.")]
    for name in (*LATE, *names):
        if name.rpartition(".")[2] not in NOT_IMPORTED:
            importlib.import_module(name)
    spare()
    compose_once()
    report_once()
    gc.collect()
    gc.freeze()


def spare() -> None:
    """Have commands do the same with less work."""
    from ninefold.dataset.digits import table

    made = yaml_loader()
    _utils.get_yaml_loader = lambda: made
    table()  # is read once
    for finalizer in weakref.finalize._registry:
        finalizer.atexit = False  # of torch's libraries of operators


def yaml_loader() -> Any:
    """OmegaConf's loader of YAML, a tenth of a second of each command faster."""
    theirs: Any = _utils.get_yaml_loader()
    if not yaml.__with_libyaml__:
        return theirs
    from yaml.cyaml import CParser

    class Loader(CParser, theirs):  # type: ignore[misc]
        def __init__(self, stream: object) -> None:
            CParser.__init__(self, stream)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)

    return Loader


def compose_once() -> None:
    """Compose each configuration: what Hydra and its parser learn in doing so is kept.

    So is what conf/ names, which each run asks for.
    """
    from ninefold.config import resolvers, untrusted

    resolvers.register()
    untrusted._of_conf()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        compose("train", COMPOSED, return_hydra_config=True)
        compose("evaluate", ["ckpt=run"], return_hydra_config=True)


def report_once() -> None:
    """Compile the templates of a report."""
    from ninefold.report.render import templates

    environment = templates._environment()
    for name in environment.list_templates(["j2"]):
        environment.get_template(name)


def serve(control: socket.socket) -> Callable[[], object]:
    """Fork a process for each request; returns in those, and what they are to run."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    while True:
        word, descriptors, *_ = socket.recv_fds(control, 1, 3)
        if not word:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            return keep(socket.socket(fileno=descriptors[0]), descriptors[1:])
        for descriptor in descriptors:
            os.close(descriptor)


def keep(connection: socket.socket, streams: Sequence[int]) -> Callable[[], object]:
    """Fork a command, tell its process id and, when it has ended, its status.

    Returns in the command, and in its forkserver, what they are to run.
    """
    with connection.makefile() as file:
        request = json.loads(file.readline())
    if (command := os.fork()) == 0:
        connection.close()
        os.setsid()
        use(streams)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if (forkserver := os.fork()) == 0:
            ours.close()
            return become_forkserver(theirs)
        theirs.close()
        have_forkserver(forkserver, ours)
        return become_command(request)
    for descriptor in streams:
        os.close(descriptor)
    connection.sendall(NUMBER.pack(command))
    connection.sendall(NUMBER.pack(os.waitpid(command, 0)[1]))
    os._exit(0)


def use(streams: Sequence[int]) -> None:
    """Make descriptors this process's stdout and stderr."""
    for target, source in enumerate((os.open(os.devnull, os.O_RDONLY), *streams)):
        os.dup2(source, target)
        os.close(source)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    lines = 1 if os.isatty(1) else -1
    sys.stdout = sys.__stdout__ = open(1, "w", lines, closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # noqa: SIM115
        2, "w", 1, errors="backslashreplace", closefd=False
    )


def become_command(request: Mapping[str, Any]) -> Callable[[], object]:
    """Make this process the one that `python ARGUMENT ...` is; returns what it runs."""
    first, *rest = request["arguments"]
    script = os.path.join(request["cwd"], first)
    settle(request, request["cwd"] if first in ("-m", "-c") else os.path.dirname(script))
    if first == "-m":
        if rest[0].startswith("ninefold"):  # importing it does this, and it is imported already
            ninefold.look_in_working_folder()
        sys.argv = rest
        sys.modules.pop(rest[0], None)  # runpy warns of a module that is imported already
        return partial(runpy.run_module, rest[0], run_name="__main__", alter_sys=True)
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        return partial(exec, rest[0], vars(main))
    sys.argv = [first, *rest]
    return partial(runpy.run_path, script, run_name="__main__")


def settle(request: Mapping[str, Any], first: str) -> None:
    """Take over the folder and environment of a request, and find modules in `first` first."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    process.ORIGINAL_DIR = request["cwd"]
    tempfile.tempdir = None  # it may be another in this environment
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [first, *(path for path in given if path and path not in sys.path)]
    importlib.invalidate_caches()


def have_forkserver(forkserver: int, connection: socket.socket) -> None:
    """Have a process, which waits at the other end, be the forkserver that this one starts."""
    spawn = util.spawnv_passfds

    def spawnv_passfds(path: bytes, args: Sequence[str], passfds: Sequence[int]) -> int:
        code = args[-1]
        if "ninefold.launch.preload" not in code or connection.fileno() < 0:
            return spawn(path, args, passfds)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        inherited = [*STREAMS, *passfds]
        request = {"code": code, "descriptors": inherited, "mask": [int(n) for n in mask],
                   "cwd": os.getcwd(), "env": dict(os.environ)}  # fmt: skip
        socket.send_fds(connection, [json.dumps(request).encode()], inherited)
        connection.close()
        return forkserver

    util.spawnv_passfds = spawnv_passfds


def become_forkserver(connection: socket.socket) -> Callable[[], object]:
    """Wait until a forkserver is started; returns what it runs."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    message, descriptors, *_ = socket.recv_fds(connection, LARGEST, 16)
    if not message:  # the command has ended
        os._exit(0)
    connection.close()
    request = json.loads(message)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, HIGH + number)
        os.close(descriptor)
    for number, wanted in enumerate(request["descriptors"]):  # as the code has them
        os.dup2(HIGH + number, wanted)
        os.close(HIGH + number)
    settle(request, "")
    signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])
    return partial(exec, request["code"], {"__name__": "__main__"})


def run_to_end(command: Callable[[], object]) -> NoReturn:
    """As an interpreter ends, but for taking apart all that is imported."""
    code: Any = 0
    try:
        command()
    except SystemExit as leaving:
        code = leaving.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError as error:
        print("Exception ignored at the end:", error, file=sys.stderr)
        code = code or 120
    os._exit(code)


if __name__ == "__main__":
    control = socket.socket(fileno=int(sys.argv[1]))
    import_all()
    del sys.path[0]  # this process's folder
    run_to_end(serve(control))
