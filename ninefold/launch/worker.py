"""A worker process: runs `train` or `evaluate`, and turns exceptions into one-line failures."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from multiprocessing import util
from pathlib import Path

from ninefold import signals
from ninefold.checkpoint.manifest import NEW, has_checkpoint
from ninefold.config.configuration import noting_secrets
from ninefold.config.spec import RunSpec
from ninefold.errors import Failure, FailureReport, by_signal
from ninefold.exits import exit_now, not_ended
from ninefold.files import write_json
from ninefold.launch import forkserver
from ninefold.launch.failures import Raised, failure_of
from ninefold.launch.run_folder import exclusive, log_file, logging_to, printing_to, stopped
from ninefold.ranks import found, tell_agent
from ninefold.signals import SIGNALS, Stop
from ninefold.streams import flush_stdout, open_streams
from ninefold.train import evaluate as evaluation
from ninefold.train import run as train_run
from ninefold.train import turns

log = logging.getLogger(__name__)

FIRST = 1000  # of what multiprocessing calls when a process exits: its own are at most 100


def main(spec: RunSpec) -> None:
    """Run `spec` in a worker process, whose entry point this is; a failure ends the process."""
    assert "ninefold.launch.preload" in sys.modules, "the forkserver would outlive its launcher"
    from ninefold.launch import preload

    signals.follow_parent(preload.FORKSERVER)
    gc.freeze()  # keep memory pages of the imported modules shared with the forkserver
    gc.enable()
    # A forked worker has "forkserver" as its own: a Pool of the user's class would import all anew.
    multiprocessing.set_start_method(None, force=True)
    if Path("/sys/class/net/lo").exists():  # all peers are on this host: keep sockets there
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    # Adam asks in each step whether there is a GPU, and without CUDA torch would load NVML each
    # time: 40 µs. Nothing that uses CUDA is forked from here.
    if preload.told.get("asks_nvml"):
        os.environ.pop(forkserver.WITHOUT_DRIVER[0], None)
    ranks = found(os.environ)
    open_streams()
    signals.restore_default_handlers(signals.interrupt)
    try:
        resume = spec.resume or (ranks.attempt > 0 and has_checkpoint(spec.folder))
        run_spec(replace(spec, resume=resume))
    except KeyboardInterrupt:
        failure: Failure = stopped(signal.SIGINT, spec.folder)
    except Failure as error:
        failure = error
    else:
        signals.ignore()  # the run is finished here
        # Called first when this process exits.
        util.Finalize(None, end_in_time, args=(spec,), exitpriority=FIRST)
        return
    tell(spec, failure)
    logging.shutdown()
    flush_stdout()
    os._exit(failure.code)  # at once: a peer that waits for this process would never return


def end_in_time(spec: RunSpec) -> None:
    """End this process in launch.timeout seconds, as its exit waits for what the user's code left.

    The interpreter waits for threads and processes that are no daemons.
    """
    rank = found(os.environ).rank
    Stop(tell=partial(tell, spec)).end_after(
        spec.timeout, lambda: not_ended("rank", rank, spec.timeout)
    )


def tell(spec: RunSpec, failure: Failure) -> None:
    """Tell the launcher why this process is about to end; where there is none, tell the user and
    end it."""
    if spec.mailbox is None:
        tell_agent(failure)
        print(failure, file=sys.stderr, flush=True)
        exit_now(failure.code)
    report = FailureReport.of(failure, found(os.environ).rank)
    try:
        write_json(spec.mailbox / f"rank{report.rank}.json", asdict(report))
    except FileNotFoundError:  # the launcher has given up
        pass
    except OSError:  # as where TMPDIR is full
        print(failure, file=sys.stderr, flush=True)


def run_spec(spec: RunSpec, inline: bool = False, begin: Callable[[], None] = lambda: None) -> None:
    """Run `spec` in this process. Raises only Failure, and KeyboardInterrupt after a signal.

    begin: called once its log is open and the folder is its own.
    """
    if not inline:  # else the launcher has done it
        signals.reset_signals_in_forks()
    rank = found(os.environ).rank
    with logging_to(spec.folder, rank) as file, noting_secrets():
        try:
            with (
                exclusive(spec.folder, rank, fresh=not spec.resume),
                printing_to(file, inline) if spec.quiet else nullcontext(),
            ):
                if rank == 0:
                    (spec.folder / "checkpoints" / NEW).unlink(missing_ok=True)  # of one killed
                    if not spec.resume:
                        spec.write_job()
                begin()
                function_of(spec.command)(spec, inline)
        except BaseException as error:
            if by_signal(error):
                raise
            log.error("%s", traceback.format_exc())
            raise failure_of(Raised(error, log_file(spec.folder, rank), rank)) from error


def train(spec: RunSpec, inline: bool) -> None:
    with stopping(spec, inline) as stop:
        try:
            train_run.train(spec, stop)
        except Exception:
            # A rank of torchrun's or srun's: its agent may have found that a peer has failed, and
            # ask this one to end before it has said why it does.
            if spec.mailbox is None and not inline:
                signals.ignore()
            raise


def evaluate(spec: RunSpec, inline: bool) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    evaluation.evaluate(spec)


def time_in_turns(spec: RunSpec, inline: bool) -> None:
    # Signals do nothing: the launcher ends it, and there is no state. They are not blocked, as
    # programs that the user's code starts would have them blocked too.
    with signals.handled(lambda number, first: None):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        turns.take_turns(spec)


COMMANDS: dict[str, Callable[[RunSpec, bool], None]] = {
    "train": train,
    "evaluate": evaluate,
    "time": time_in_turns,
}


def function_of(command: str) -> Callable[[RunSpec, bool], None]:
    """The function that runs a command: one of COMMANDS, or an extension's, `MODULE:NAME`."""
    module, _, name = command.partition(":")
    function: Callable[[RunSpec, bool], None]
    function = getattr(import_module(module), name) if name else COMMANDS[command]
    return function


@contextmanager
def stopping(spec: RunSpec, inline: bool) -> Iterator[Stop]:
    """Handle signals in the block; yield a Stop: whether, and after which step, to stop."""
    ranks = found(os.environ)
    notice = spec.folder / f".stop-{spec.started:.6f}"
    if ranks.rank == 0:
        for path in spec.folder.glob(".stop-*"):  # of a launch that was killed
            if path != notice:
                path.unlink(missing_ok=True)
    shared = 1 < ranks.world_size == ranks.local_world_size
    stop = Stop(
        notice if shared else None,
        alone=ranks.world_size <= 1,
        tell=partial(tell, spec),
        patience=spec.timeout,
    )
    try:
        with stop.listening(0.8 * spec.grace, lambda number: stopped(number, spec.folder), inline):
            yield stop
    finally:
        if ranks.rank == 0:
            notice.unlink(missing_ok=True)
