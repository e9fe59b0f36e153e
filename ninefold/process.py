"""This process, and those that it starts: waiting, their environment, the exit."""

from __future__ import annotations

import atexit
import fcntl
import logging
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import process, resource_tracker
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

from ninefold import signals
from ninefold.errors import (
    Failure,
    NoReader,
    ProcessNotEnded,
    Refused,
    ResourceError,
    by_signal,
    error_of_exit,
    error_text,
    resource_failure,
)
from ninefold.places import INSTALLED, PATH, ROOT, path_text
from ninefold.secrets import redact
from ninefold.streams import OutputClosed, no_reader, open_streams

Answer = TypeVar("Answer")
MAX_PATH_BYTES = 88  # of the temporary folder: of a socket in it 107, of which its name takes 19
TELL_SECONDS = 5.0  # of waiting after which it is told what for
OWN_END = 10.0  # seconds that a command has to exit once it has ended, or after a second signal


# Waiting


def poll_until(
    predicate: Callable[[], Answer], timeout: float = math.inf, interval: float = 0.05
) -> Answer:
    """Call `predicate` every `interval` seconds until it returns something true, or for `timeout`.

    Returns its last answer, and raises what it raises. Every wait in a loop is this function. A
    signal whose handler raises ends it, so a wait without a limit still ends with the command.
    """
    deadline = time.monotonic() + timeout
    while not (answer := predicate()) and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(interval, left))
    return answer


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Print `waiting for WHAT` on stderr as soon as the block has run for TELL_SECONDS."""
    line = f"waiting for {what}"
    timer = signals.later(TELL_SECONDS, lambda: print(line, file=sys.stderr, flush=True))
    try:
        yield
    finally:
        timer.cancel()


def locked(file: int | IO[str]) -> bool:
    """Lock an open file exclusively, until it is closed, without waiting.

    Returns whether it is locked now: False if somebody else has it locked. Raises OSError.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(file: int | IO[str]) -> None:
    """Unlock a file. Closing it is not enough: a process that was forked meanwhile has it open."""
    fcntl.flock(file, fcntl.LOCK_UN)


# The environment of programs that are started

# An interpreter that is started with -c or -m looks for modules in the working directory first, and
# that may be anybody's. From Python 3.11 on this prevents it.
SAFE_PATH = ("PYTHONSAFEPATH", "1")
# Of the resource tracker: it also cleans up after a killed launcher.
NO_WARNING = ("PYTHONWARNINGS", "ignore::UserWarning:multiprocessing.resource_tracker", ",")


@contextmanager
def replaced(name: str, value: str) -> Iterator[None]:
    """Set the environment variable `name` while the block runs."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def prepended(name: str, value: str, separator: str) -> Iterator[None]:
    """Prepend `value` to the environment variable `name` while the block runs."""
    before = os.environ.get(name)  # an empty one in PYTHONPATH is the working directory
    with replaced(name, value + separator + before if before else value):
        yield


@contextmanager
def importable() -> Iterator[None]:
    """Have interpreters that are started in the block find ninefold, and be told of this sys.path.

    An installed ninefold they find themselves; that of a clone need not be installed.
    """
    found = nullcontext() if INSTALLED else prepended("PYTHONPATH", str(ROOT), os.pathsep)
    with found, replaced(PATH, path_text()):
        yield


@contextmanager
def safe_path() -> Iterator[None]:
    """Have interpreters that are started in the block import nothing from the working directory."""
    with replaced(*SAFE_PATH):
        yield


@contextmanager
def starting() -> Iterator[None]:
    """Block SIGNALS while processes of multiprocessing are started, and see to their `safe_path`.

    Its resource tracker cleans up after processes that are killed. It is started here before the
    others, with SIGNALS blocked, as a SIGUSR1 would end it. Otherwise multiprocessing would start
    it together with the first child, and then unblock SIGINT and SIGTERM, which that child would
    inherit.
    """
    with safe_path():
        with prepended(*NO_WARNING), signals.held_back():
            resource_tracker.ensure_running()
        with signals.held_back():
            yield


# Temporary folder

_scratch: tuple[int, Path] | None = None  # the process that made it


def scratch() -> Path:
    """The temporary folder of this process, made at the first call and removed at its exit."""
    global _scratch
    if _scratch is None or _scratch[0] != os.getpid():
        folder = Path(tempfile.mkdtemp(prefix="ninefold-"))
        if len(os.fsencode(folder)) > MAX_PATH_BYTES:
            folder.rmdir()
            raise ResourceError(
                "TMPDIR",
                folder.parent,
                f"its path is too long for the sockets of a command; {MAX_PATH_BYTES - 18} bytes "
                "are allowed; name a shorter one",
            )
        _scratch = os.getpid(), folder
        atexit.register(_remove_scratch)
    return _scratch[1]


def _remove_scratch() -> None:
    if _scratch is not None and _scratch[0] == os.getpid():
        for folder, _, names in os.walk(_scratch[1], topdown=False):
            with suppress(OSError):  # not rmtree, which opens several folders: one may be too many
                for name in names:
                    os.unlink(os.path.join(folder, name))
                os.rmdir(folder)


# Exit


def exit_with(command: Callable[[], int]) -> NoReturn:
    """Run a command as all that this process does, with usable streams; see `exit_process`."""
    open_streams()
    exit_process(command())


def exit_process(code: int, patience: float = OWN_END) -> NoReturn:
    """Exit with `code`, after what the interpreter does at its end, in at most `patience` seconds.

    A thread or process that is waited for, as Python waits for those that are no daemons, and has
    not ended by then is named, and the code is 7 instead of 0. A signal ends the wait. Modules are
    not taken apart: that takes half a second with torch, and libraries print what they leaked.
    """

    def late() -> None:
        failure = not_ended("process", os.getpid(), patience)
        print(failure, file=sys.stderr, flush=True)
        exit_now(code or failure.code)

    signals.handle(lambda number, first: exit_now(code))
    signals.later(patience, late)
    threading._shutdown()  # type: ignore[attr-defined]
    # If its import was interrupted, torch logs figures of its caches wherever all is logged.
    logging.getLogger("torch").setLevel(logging.WARNING)
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OutputClosed:
        code = code or no_reader().code
    except Failure as failure:  # a full disk
        print_failures([] if code else [failure], debug=False)
        code = code or failure.code
    if _profiled():
        raise SystemExit(code)
    exit_now(code)


def _profiled() -> bool:
    """Whether a profiler such as `python -m cProfile` has started this process, and is to end it:
    it writes its file then."""
    tools = getattr(sys, "monitoring", None)  # of Python 3.12 and later
    return bool(sys.getprofile() or (tools and tools.get_tool(tools.PROFILER_ID)))


def print_failures(failures: Sequence[Failure], debug: bool) -> None:
    """Print each as a line on stderr. debug: below the traceback of what it was made of."""
    for failure in failures:
        if isinstance(failure, NoReader):  # as others end whose output is closed
            continue
        if debug and failure.__cause__ is not None:
            lines = traceback.format_exception(failure.__cause__)
            print(redact("".join(lines)), file=sys.stderr)
        print(failure, file=sys.stderr, flush=True)


def bug(error: BaseException) -> Failure:
    """The failure of a command that raised `error`: a mistake of ours if it is no Failure."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, OSError):
        return resource_failure(error, "a command needs it", "see that it is there and has room")
    do = "HYDRA_FULL_ERROR=1 shows where; please report it"
    failure = Failure("ninefold", "bug", f"{error_text(error)}; {do}")
    failure.__cause__ = error
    return failure


def exit_code_of(
    action: Callable[[], object],
    stopped: str,
    left: str,
    failure_of: Callable[[Exception], Failure] = bug,
) -> int:
    """Carry out a command that starts no processes, and print its failures.

    stopped: what is wrong after a signal, such as "the export was stopped". left: what is left
    then. failure_of: of what it raises.
    """
    debug = bool(os.environ.get("HYDRA_FULL_ERROR"))
    failures: Sequence[Failure]
    try:
        with interruptible():
            action()
            sys.stdout.flush()
        return 0
    except OutputClosed:
        return no_reader().code
    except KeyboardInterrupt as interrupt:
        by_code = error_of_exit(interrupt)
        failures = [by_code or interrupted(interrupt, stopped, left, "start again")]
    except Refused as refused:
        failures = refused.failures
    except Exception as error:
        failures = [failure_of(error)]
    except BaseException as leaving:
        if (by_code := error_of_exit(leaving)) is None:
            raise
        failures = [by_code]
    print_failures(failures, debug)
    return failures[0].code


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt(number) at the first signal; a second one only hurries the exit."""

    def interrupt(number: int, first: bool) -> None:
        if first:
            raise KeyboardInterrupt(number)
        exit_soon(number, signals.failure(number).code)

    with signals.handled(interrupt):
        yield


def interrupted(by: KeyboardInterrupt, what: str, left: str, do: str) -> Failure:
    """The failure of a command that a signal has ended."""
    number = by.args[0] if by_signal(by) else signal.SIGINT
    return signals.failure(number)("signal", signal.Signals(number).name, what, left, do)


def exit_soon(number: int, code: int) -> None:
    """Exit with `code` after a further signal: at once after Ctrl-C, else in OWN_END seconds.

    Whatever a command waits for, its report being written or a thread that it joins, it ends.
    """
    if number == signal.SIGINT:
        exit_now(code)
    signals.later(OWN_END, lambda: exit_now(code))


def exit_now(code: int) -> NoReturn:
    """Exit at once, without a temporary folder that stays: of ours, or of multiprocessing."""
    os.closerange(0, 1)  # so that there is a descriptor to read folders by
    _remove_scratch()
    config: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
    if "tempdir" in config and process.parent_process() is None:  # else it may be the parent's
        shutil.rmtree(config["tempdir"], ignore_errors=True)
    os._exit(code)


def not_ended(field: str, value: object, seconds: float) -> ProcessNotEnded:
    """The failure of a process that has done its work and waits for what the user's code left."""
    return ProcessNotEnded(
        field,
        value,
        f"it did not end in {seconds:g} s after its work was done; it waits for "
        f"{', '.join(_left()) or 'something that it does at its exit'}; end that in the code "
        "which started it, or make it a daemon; launch.timeout is the limit",
    )


def _left() -> Iterator[str]:
    """The threads and processes that Python waits for at its end, but for those of its pools."""
    pools = set[object]()
    for name in ("thread._threads_queues", "process._threads_wakeups"):  # if they are imported
        module, _, threads = name.partition(".")
        pools.update(getattr(sys.modules.get(f"concurrent.futures.{module}"), threads, ()))
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread() and thread not in pools:
            yield f"thread {thread.name}"
    if "multiprocessing.process" in sys.modules:
        for child in sys.modules["multiprocessing.process"].active_children():
            yield f"process {child.pid} ({child.name})"
