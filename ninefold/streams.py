"""stdout and stderr of this process, whatever they are and whoever reads them."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import IO, Any

from ninefold.errors import Failure, NoReader, resource_failure


class OutputClosed(BrokenPipeError):
    """stdout is a pipe that nobody reads any more."""


class OutputStream(io.FileIO):
    """A descriptor to print to, whose reader may go away.

    A terminal that was closed takes what is printed without an error, so that a run which it hung
    up still ends as it should. If `needed`, a pipe that nobody reads raises OutputClosed, and a
    full disk ResourceError.
    """

    def __init__(self, descriptor: int, needed: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._needed = needed

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError as error:
            if self._needed:
                raise OutputClosed(*error.args) from None
        except OSError as error:
            if self._needed and error.errno != errno.EIO:
                error.filename = "stdout"
                do = "free some room, or print elsewhere"
                raise resource_failure(error, "what is printed goes there", do) from error
        return len(data)


def open_streams() -> None:
    """Make stdout and stderr usable whatever they are: closed, a closed terminal, a closed pipe.

    Without a descriptor 1, the first file that is opened would get what is printed.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            made = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
            os.set_inheritable(made, True)
    sys.stdout = _stream(sys.stdout, 1, needed=True)
    sys.stderr = _stream(sys.stderr, 2, needed=False)


def _stream(stream: IO[str] | None, descriptor: int, needed: bool) -> io.TextIOWrapper:
    if stream is not None:
        stream.flush()
    raw, errors = OutputStream(descriptor, needed), getattr(stream, "errors", "replace")
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors="replace" if errors == "strict" else errors,  # of terminals without "±"
        line_buffering=descriptor == 2 or raw.isatty(),
    )


def flush_stdout() -> None:
    """Print what is held back, if that can still be done: users' code may have replaced stdout."""
    with suppress(OSError, Failure, ValueError, AttributeError):
        sys.stdout.flush()


def no_reader() -> NoReader:
    """The failure of a command whose stdout is a pipe that nobody reads any more.

    What is not flushed goes nowhere, or it would be an error again at exit.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return NoReader(
        "stdout", "closed", "its reader has ended", "the command ends with it", "resume it"
    )
