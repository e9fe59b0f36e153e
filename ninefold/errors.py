"""The failures a user can act on, each one line and one exit code."""

from __future__ import annotations

import difflib
import errno
import functools
import json
import sysconfig
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from ninefold.places import CONF, EXPERIMENTS, INSTALLED, PACKAGE, ROOT, see
from ninefold.secrets import redact

MAX_PART_CHARS = 600  # characters of a part of a line


def one_line(text: str) -> str:
    """`text` on one line, without control characters: it may come from an untrusted file."""
    return " ".join(printable(text).split())


def printable(text: str) -> str:
    """`text` without control characters, but on as many lines."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def short(text: str) -> str:
    """`text`, or its beginning and its length."""
    return text if len(text) <= MAX_PART_CHARS else f"{text[:200]}... ({len(text)} characters)"


def text_of(value: object) -> str:
    """str(value), or that it fails: an error, or what it is about, may be of a user's class."""
    try:
        return str(value)
    except BaseException as error:  # SystemExit, too: it is not what ends the process
        if by_signal(error):
            raise
        return f"<str() of a {type(value).__name__} failed>"


def error_text(error: BaseException) -> str:
    """`TYPE: what it says`."""
    return f"{type(error).__name__}: {text_of(error)}".rstrip(": ")


def by_signal(error: BaseException) -> bool:
    """Whether a handler of ours raised it: with a number. User's code may raise one without."""
    return isinstance(error, KeyboardInterrupt) and any(type(n) is int for n in error.args)


class Failure(Exception):
    """An error that the user can act on: `error: <field>=<value>: <wrong>; <allowed>; <do>`.

    field: the key, file or resource that the error is about.
    value: what it was set to or found to be, as text.
    wrong: what is wrong with it.
    allowed: what is allowed, or what was found.
    do: what the user can do about it.
    code: exit code of the process.
    status: `status` in result.json of a run that ends with it.
    """

    code: ClassVar[int] = 1
    status: ClassVar[str] = "failed"

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls

    def __init__(self, field: str, value: object, wrong: str, allowed: str, do: str) -> None:
        # Every error line is made here, so this is where secrets are removed. Before and after the
        # text is put on one line: a secret may be known with its line breaks or without them.
        given = (field, value, wrong, allowed, do)
        parts = [short(redact(one_line(redact(text_of(part))))) for part in given]
        super().__init__(*parts)
        self.field, self.value, self.wrong, self.allowed, self.do = parts

    def __str__(self) -> str:
        return f"error: {self.cause}; {self.allowed}; {self.do}"

    @property
    def cause(self) -> str:
        """`<field>=<value>: <wrong>`."""
        return f"{self.field}={self.value}: {self.wrong}"

    def repeated(self, where: str) -> Failure:
        """This failure in short, for a line below the whole one. where: the run that it ended."""
        return type(self)(self.field, self.value, "the same as above", f"in {where}", "see above")

    @property
    def parts(self) -> list[str]:
        """field, value, wrong, allowed, do: all that a `FailureReport` needs besides the class."""
        return [self.field, self.value, self.wrong, self.allowed, self.do]


KINDS: dict[str, type[Failure]] = {Failure.__name__: Failure}  # by name: each kind adds itself


class ConfigError(Failure):
    """The configuration asks for something that does not exist or cannot be honored."""

    code = 2


class CheckpointError(Failure):
    """A checkpoint is missing, damaged or of another model."""

    code = 3


class DataError(Failure):
    """A dataset is missing, damaged or too small."""

    code = 4


class ResourceError(Failure):
    """Disk, memory or a port ran out."""

    code = 5


class NumericsError(Failure):
    """Training produced a number that is not finite."""

    code = 6
    status = "diverged"


class PeerError(Failure):
    """Another process of the run went away or did not answer in time."""

    code = 7


class ProcessNotEnded(PeerError):
    """Something of the user's does not end, and a process, or its exit, waits for it."""


class NoReader(Failure):
    """stdout is a pipe that nobody reads any more: a command then ends without a word."""

    code = 141


class FolderInUse(ConfigError):
    """The run folder belongs to another process: nothing may be written there."""


class Preempted(Failure):
    """A scheduler stopped the run with a signal; it can be resumed from its checkpoint."""

    code = 75
    status = "preempted"


class Slower(Failure):
    """A command is slower than another by more than is allowed, beyond the interval of both."""

    code = 8


class Parted(Failure):
    """Two trainings that were to compute the same do not."""

    code = 8


class Undecided(Failure):
    """A comparison has not shown what was asked, in the time given or for the reason it tells."""

    code = 9


class Interrupted(Failure):
    """The user stopped the run (Ctrl-C), or it was stopped with nothing saved."""

    code = 130
    status = "preempted"


class Refused(Exception):
    """A command cannot be carried out, for all of these reasons. `code`: that of the first."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__(*failures)
        self.failures = tuple(failures)
        self.code = failures[0].code


def resource_failure(error: OSError, found: str, do: str) -> ResourceError:
    """The failure for what the system refused: full disk, missing permission, closed pipe."""
    return ResourceError(
        "file", error.filename or "?", error.strerror or type(error).__name__, found, do
    )


NO_MEMORY = (
    "can't allocate memory",
    "Cannot allocate memory",
    "cannot allocate memory",
    "failed to map segment",
    "not enough memory",
    "bad_alloc",
    "Unable to allocate",
    "Insufficient memory",
    "out of memory",
    "STATUS_ALLOC_FAILED",
    "_ALLOCATION_FAILED",  # cuDNN's, on the host and on a device
    "_STATUS_NOT_INITIALIZED",  # cuBLAS's and cuDNN's: they allocate with their first call
)
NOT_DETERMINISTIC = "does not have a deterministic implementation"  # what torch says of a kernel
NO_TASK = ("can't start new thread", "Resource temporarily unavailable", "Thread creation failed")


def limit_failure(error: BaseException, found: str) -> ResourceError | None:
    """A ResourceError if a limit on open files, processes or threads was reached; else None.

    error: it, or what it was raised from, says so. found: what the line says was found.
    """
    for each in chain(error):
        number = each.errno if isinstance(each, OSError) else None
        files = number in (errno.EMFILE, errno.ENFILE)
        said = text_of(each)
        no_task = number in (None, errno.EAGAIN) and any(words in said for words in NO_TASK)
        if files or (no_task and not address_space_is_limited()):
            wrong = said.partition("\n")[0]
            do = (
                f"raise the limit (ulimit {'-n' if files else '-u, docker run --pids-limit'}), or "
                "lower parallel.processes, threads or loader.workers"
            )
            return ResourceError("files" if files else "processes", "exhausted", wrong, found, do)
    return None


def address_space_is_limited() -> bool:
    """Whether `ulimit -v` is set, so that a thread may lack room for its stack."""
    try:
        import resource
    except ImportError:  # Windows
        return False
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def memory_failure(error: BaseException, found: str) -> ResourceError | None:
    """A ResourceError if memory ran out, or what `limit_failure` looks for; None for other errors.

    Only Python has an exception for it: torch raises RuntimeError, the linker ImportError. Of a
    text of many lines, such as NCCL's, the line that says so is quoted.
    """
    if limited := limit_failure(error, found):
        return limited
    signs = (*NO_MEMORY, *(NO_TASK if address_space_is_limited() else ()))
    for cause in chain(error):
        lines = text_of(cause).splitlines()
        said = [line for line in lines if any(words in line for words in signs)]
        if said or isinstance(cause, MemoryError):
            wrong = (said or lines or ["out of memory"])[0]
            do = "lower batch_size, choose a smaller model or free some (see also ulimit -v)"
            return ResourceError("memory", "exhausted", wrong, found, do)
    return None


def users_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame of the traceback that is in the user's own code; None if none is.

    Neither ninefold's code nor that of Python and of installed packages is. Of an error that was
    raised from another, that one's frames count where its own are all in libraries.
    """
    for each in chain(error):
        frames = traceback.extract_tb(each.__traceback__)
        if isinstance(each, SyntaxError) and each.filename:  # no frame is in a file that has one
            frames.append(traceback.FrameSummary(each.filename, each.lineno, "<module>"))
        theirs = [frame for frame in frames if is_users(frame.filename)]
        if theirs:
            return theirs[-1]
    return None


def users_line(error: BaseException) -> str | None:
    """`path/file.py:LINE` of the user's code that `error` comes from; None if none took part."""
    frame = users_frame(error)
    return None if frame is None else f"{frame.filename}:{frame.lineno}"


def chain(error: BaseException) -> Iterator[BaseException]:
    """`error`, then what it was raised from, and so on, as a traceback shows them."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        yield each
        seen.add(id(each))
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


@functools.cache
def is_users(file: str) -> bool:
    """Whether a file of code is the user's own: not ours, Python's or an installed package's."""
    if file.startswith("<ipython-input-"):  # what was typed in IPython
        return True
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    not_theirs = (PACKAGE, ROOT / "train.py", ROOT / "evaluate.py", *map(Path, installed))
    return not (
        not Path(file).is_absolute()  # such as <frozen importlib>, and yaml/_yaml.pyx of Cython
        or {"site-packages", "dist-packages"} & {*Path(file).parts}
        or any(Path(file).is_relative_to(place) for place in not_theirs)
    )


def first_few(names: Sequence[str]) -> str:
    """The first three of `names`, and ... where there are more."""
    return ", ".join([*names[:3], *["..."] * (len(names) > 3)])


def located(error: BaseException, details: str | None = None) -> str:
    """`details`, else what `error` says, behind the line of the user's code, if one took part."""
    said = error_text(error) if details is None else details
    return ", ".join(filter(None, (users_line(error), said)))


def construction_error(field: str, target: object, error: Exception, group: str) -> ConfigError:
    """The failure of a `target` that Hydra could not build: its own arguments, or its code."""
    do = see(group) if users_line(error) is None else "correct it there"
    found = located(error, text_of(error.__cause__ or error))
    return ConfigError(field, target, "it cannot be built so", found, do)


def error_of_exit(error: BaseException) -> ConfigError | None:
    """The failure of user's code that raised SystemExit, or another BaseException that would end
    this process; None for an Exception, for a signal, and for what no code of the user's raised.
    """
    line = users_line(error)
    if line is None or isinstance(error, Exception) or by_signal(error):
        return None
    wrong, do = f"it raised {error_text(error)}", "raise an Exception instead"
    return ConfigError("code", line, wrong, "that ends the process", do)


# What is wrong where the kernel, or a person, has killed a process of a run.
KILLED = "its process was killed (SIGKILL)"


@dataclass(frozen=True)
class FailureReport:
    """A failure on its way from one process of a run to another, as JSON or as it is.

    kind, parts: its class name; its field, value, wrong, allowed and do.
    rank: of the process that found it.
    time: when, time.time(): it tells the report from that of another rank with the same failure.
    """

    kind: str
    parts: list[str]
    rank: int
    time: float

    @classmethod
    def of(cls, failure: Failure, rank: int) -> FailureReport:
        return cls(type(failure).__name__, failure.parts, rank, time.time())

    @classmethod
    def read(cls, text: str) -> FailureReport:
        return cls(**json.loads(text))

    @property
    def failure(self) -> Failure:
        return KINDS[self.kind](*self.parts)


def require_configuration() -> None:
    """Raise ConfigError unless conf/ and the stored studies are where they belong."""
    wrong, allowed = "its configuration is missing", "it is in each wheel and clone"
    do = "restore it: git checkout conf experiments"
    if INSTALLED:
        do = "install it again: pip install --force-reinstall --no-deps WHEEL"
    for path in (CONF / "train.yaml", CONF / "evaluate.yaml", EXPERIMENTS):
        if not path.exists():
            raise ConfigError("ninefold", path, wrong, allowed, do)


def require_package(field: str, value: object, package: str, extra: str) -> None:
    """Raise ConfigError if `package`, which ninefold's `extra` has, is not installed."""
    found = find_spec(package)
    if found is None or found.origin is None:  # a folder of that name is no package
        raise not_installed(field, value, package, extra)


def not_installed(field: str, value: object, package: str, extra: str) -> ConfigError:
    """The failure of a setting that needs a package of one of our extras."""
    do = f"pip install '.[{extra}]' in a clone, or pip install 'WHEEL[{extra}]'"
    return ConfigError(field, value, f"{package} is not installed", f"the extra {extra} has it", do)


def suggestion(
    word: str, known: Iterable[str], begin: str = "", listed: Iterable[str] | None = None
) -> str:
    """The name in `known` that resembles `word`, or if none does, all of them.

    begin: what all of them begin with; that alone makes none resemble another. listed: what is
    named in place of all of them.
    """
    names = sorted(known)
    ends = [name.removeprefix(begin) for name in names]
    near = difflib.get_close_matches(word.removeprefix(begin), ends, n=1)
    shown = names if listed is None else sorted(listed)
    return f"did you mean {begin}{near[0]}?" if near else f"known are {', '.join(shown)}"


def nearest(word: str, options: Iterable[str]) -> str:
    """Advice for a `word` that is not in `options`, which the line lists: the nearest one."""
    near = suggestion(word, options)
    return near if near.startswith("did you mean") else "name one of them"
