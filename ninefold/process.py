"""What programs that this process starts find: their environment, and a temporary folder."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import resource_tracker
from pathlib import Path

from ninefold import signals
from ninefold.errors import ResourceError
from ninefold.places import INSTALLED, PATH, ROOT, path_text

MAX_PATH_BYTES = 88  # of the temporary folder: of a socket in it 107, of which its name takes 19
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
            os.environ.pop(name, None)  # the block may have taken it away
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
def starting() -> Iterator[None]:
    """Block SIGNALS while processes of multiprocessing are started, and set SAFE_PATH for them.

    Its resource tracker cleans up after processes that are killed. It is started here before the
    others, with SIGNALS blocked, as a SIGUSR1 would end it. Otherwise multiprocessing would start
    it together with the first child, and then unblock SIGINT and SIGTERM, which that child would
    inherit.
    """
    with replaced(*SAFE_PATH):
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
            wrong = "its path is too long for the sockets of a command"
            allowed = f"{MAX_PATH_BYTES - 18} bytes are allowed"
            raise ResourceError("TMPDIR", folder.parent, wrong, allowed, "name a shorter one")
        _scratch = os.getpid(), folder
        atexit.register(remove_scratch)
    return _scratch[1]


def remove_scratch() -> None:
    """Remove the temporary folder, if this process made one."""
    if _scratch is not None and _scratch[0] == os.getpid():
        for folder, _, names in os.walk(_scratch[1], topdown=False):
            with suppress(OSError):  # not rmtree, which opens several folders: one may be too many
                for name in names:
                    os.unlink(os.path.join(folder, name))
                os.rmdir(folder)
