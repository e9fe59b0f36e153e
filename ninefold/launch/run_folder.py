"""The run folder while a run uses it: its log, its lock, and how a failure is recorded in it."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

from ninefold.checkpoint.manifest import has_checkpoint
from ninefold.config.resume import holds_a_run
from ninefold.errors import Failure, FolderInUse, resource_failure
from ninefold.files import opener
from ninefold.places import typed_as
from ninefold.progress import ToLog
from ninefold.result import Result, identity
from ninefold.secrets import redact
from ninefold.signals import failure as ending
from ninefold.waits import locked, poll_until, unlock
from ninefold.words import for_shell

LOCK_WAIT_SECONDS = 5.0  # seconds to wait for the lock


def log_file(folder: Path, rank: int) -> Path:
    """run.log for rank 0, run.rankN.log for the others."""
    return folder / ("run.log" if rank == 0 else f"run.rank{rank}.log")


class Redacting(logging.Formatter):
    """Removes secrets from the whole log record, its traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class Log(logging.FileHandler):
    """A log handler that ignores a full disk: saving the run fails with an error line anyway."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", opener=opener)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        return


@contextmanager
def logging_to(folder: Path, rank: int) -> Iterator[IO[str]]:
    """Log to run.log, or to run.rankN.log on the other processes; yields that file.

    Raises ResourceError if the log cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)  # on another host it may not be there
        handler = Log(log_file(folder, rank))
    except OSError as error:
        do = "choose another hydra.run.dir"
        raise resource_failure(error, "a run writes its log", do) from error
    handler.setFormatter(Redacting("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    before = root.level, root.handlers
    root.handlers = [handler]  # in the launcher's own process Hydra has a console handler there
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    assert handler.stream is not None
    faulthandler.enable(handler.stream)  # a crash of the interpreter leaves its stack there too
    try:
        yield handler.stream
    finally:
        faulthandler.disable()
        logging.captureWarnings(False)
        root.level, root.handlers = before
        with suppress(OSError):  # it flushes
            handler.close()


@contextmanager
def printing_to(file: IO[str], inline: bool) -> Iterator[None]:
    """Redirect what a quiet run prints to its log, `file`.

    inline: it runs in the process of the command: Python's streams only, while the block runs.
        Else descriptors 1 and 2 too, which libraries write to, until the process ends.
    """
    if not inline:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    with redirect_stdout(ToLog()), redirect_stderr(ToLog()):
        yield


@contextmanager
def exclusive(
    folder: Path,
    rank: int,
    field: str = "resume",
    what: str = "run folder",
    fresh: bool = False,
) -> Iterator[None]:
    """Lock the folder while the block runs, so that it has one writer: rank 0.

    Waits up to LOCK_WAIT_SECONDS for the workers of a launcher that was just killed to end.
    fresh: whether no other run may be in it; one may have ended while this one waited.
    Raises FolderInUse if another process keeps the lock, or has left a run.
    """
    if rank != 0:
        yield
        return
    with open(folder / ".lock", "a", opener=opener) as file:
        try:
            free = poll_until(lambda: locked(file), LOCK_WAIT_SECONDS, interval=0.1)
        except OSError as error:  # of a file system without locks; it names no file
            error.filename = file.name
            raise
        if not free:
            wrong = f"another process is writing to this {what}"
            do = "wait for it or stop it"
            raise FolderInUse(field, folder, wrong, "one writer at a time", do)
        try:
            if fresh and holds_a_run(folder):
                raise occupied(folder)
            yield
        finally:
            unlock(file)


def occupied(folder: Path, do: str = "") -> FolderInUse:
    """The failure of a run whose folder has another run. do: what else to do than to choose one."""
    choose = f"choose another, or resume it with {for_shell('resume', folder)}"
    wrong, allowed = "there is a run in it", "each has a folder of its own"
    return FolderInUse("hydra.run.dir", folder, wrong, allowed, do or choose)


def stopped(number: int, folder: Path) -> Failure:
    """The failure to report if signal `number` ended a run that left no report itself."""
    found, do = "it had no checkpoint yet", "start it again"
    if has_checkpoint(folder):
        found = f"its last checkpoint is in {folder}"
        do = f"resume with: {typed_as('train')} {for_shell('resume', folder)}"
    name = signal.Signals(number).name
    return ending(number)("signal", name, "the run was stopped", found, do)


def record(
    failures: Sequence[Failure],
    choices: Mapping[Any, Any],
    values: Mapping[Any, Any],
    overrides: list[str],
    folder: Path,
    started: float,
) -> None:
    """Write the result.json of a run that failed. overrides: as of Result.

    Unless it holds the result of a finished run, or another process is writing to the folder.
    """
    if Result.of_end(folder) or isinstance(failures[0], FolderInUse):
        return
    parallel = values.get("parallel")
    processes = parallel.get("processes") if isinstance(parallel, Mapping) else None
    try:
        Result(
            status=failures[0].status,
            exit_code=failures[0].code,
            error="\n".join(map(str, failures)),
            **identity(choices, values),
            batch_size=values.get("batch_size"),
            processes=processes if isinstance(processes, int) else None,
            total_seconds=time.time() - started,
            overrides=overrides,
        ).write(folder)
    except OSError:
        return  # the run's own error is printed, and one line is enough
