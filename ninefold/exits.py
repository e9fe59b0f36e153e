"""The exit of this process: the failures that it prints, its code, and what it waits for."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import process
from typing import Any, NoReturn

from ninefold import signals
from ninefold.errors import (
    Failure,
    NoReader,
    ProcessNotEnded,
    Refused,
    by_signal,
    error_of_exit,
    error_text,
    resource_failure,
)
from ninefold.process import remove_scratch
from ninefold.secrets import redact
from ninefold.streams import OutputClosed, no_reader, open_streams

OWN_END = 10.0  # seconds that a command has to exit once it has ended, or after a second signal


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
    shows = "HYDRA_FULL_ERROR=1 shows where"
    failure = Failure("ninefold", "bug", error_text(error), shows, "please report it")
    failure.__cause__ = error
    return failure


def exit_code_of(
    action: Callable[[], object],
    stopped: str,
    left: str,
    failure_of: Callable[[Exception], Failure] = bug,
) -> int:
    """Carry out a command that starts no processes, and print its failures.

    stopped: what is wrong after a signal, such as "the count was stopped". left: what is left
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
    remove_scratch()
    config: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
    if "tempdir" in config and process.parent_process() is None:  # else it may be the parent's
        shutil.rmtree(config["tempdir"], ignore_errors=True)
    os._exit(code)


def not_ended(field: str, value: object, seconds: float) -> ProcessNotEnded:
    """The failure of a process that has done its work and waits for what the user's code left."""
    left = ", ".join(_left()) or "something that it does at its exit"
    wrong = f"{seconds:g} s after its work was done it waits for {left}"
    do = "end that in the code which started it, or make it a daemon"
    return ProcessNotEnded(field, value, wrong, "no process waits longer", do)


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
