"""profile=io: files that training opens, and bytes and seconds of reading, in each epoch."""

from __future__ import annotations

import builtins
import io
import os
import resource
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from ninefold.files import read_text, write_text
from ninefold.measure.watch import Watch, bottleneck

PROCESS = Path("/proc/self/io")  # of Linux; its lines are `rchar: NUMBER`
COLUMNS = (
    *("epoch", "seconds", "files_opened", "bytes_read", "read_seconds"),
    *("process_bytes", "storage_bytes", "major_faults"),
)
SHOWN = 10  # epochs that are printed
MEASURED = (
    "files opened, MB and seconds: what Python code reads through open(), in all threads together",
    "process: all its read calls; disk: what storage delivered, maps of files included; faults: "
    "waits for a page of such a map (blanks: this system does not say)",
    "not measured: seconds of reads inside C libraries and of maps, and other processes",
)


class IOProfile(Watch):
    """Counts reading while training steps run, a row for each epoch, in rank*.io.csv.

    In that time builtins.open and io.open return, for binary or text that is only read, files whose
    read calls are counted: such a call takes 1 µs longer. COLUMNS: bytes and seconds are sums over
    all threads. What is below `own`, the run folder, is not counted.

    epoch: tells the epoch that begins or goes on.
    """

    notes: ClassVar = ()

    def __init__(self, folder: Path, rank: int, epoch: Callable[[], int]) -> None:
        self._folder, self._path = folder, folder / f"rank{rank}.io.csv"
        self._own = os.path.join(folder.parent.absolute(), "")
        self._epoch = epoch
        self._counts = Counts()
        self._before: dict[str, float | None] = {}
        self._opens: tuple[Any, Any] | None = None
        self.rows: list[dict[str, float | None]] = []

    def start(self) -> None:
        self._opens = builtins.open, io.open
        builtins.open = io.open = counting(self._counts, self._own, builtins.open)
        self._before = {"epoch": 0, **self._now()}
        self.rows.append({"epoch": self._epoch()})

    def stop(self) -> None:
        if self._opens is None:
            return
        builtins.open, io.open = self._opens
        self._opens = None
        for name, value in self._now().items():
            before = self._before[name]
            self.rows[-1][name] = None if value is None or before is None else value - before
        self._folder.mkdir(parents=True, exist_ok=True)
        lines = [
            ",".join("" if row[each] is None else f"{row[each]:.10g}" for each in COLUMNS)
            for row in self.rows
        ]
        write_text(self._path, "\n".join([",".join(COLUMNS), *lines]) + "\n")

    def _now(self) -> dict[str, float | None]:
        counts, process = self._counts, of_process()
        return {
            "seconds": time.perf_counter(),
            "files_opened": counts.files,
            "bytes_read": counts.bytes,
            "read_seconds": counts.seconds,
            "process_bytes": process.get("rchar"),
            "storage_bytes": process.get("read_bytes"),
            "major_faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
        }

    def summary(self, phases: Mapping[str, float]) -> list[str]:
        lines = [
            f"{'epoch':>5} {'s':>8} {'files':>8} {'MB read':>9} {'reading s':>9} "
            f"{'process MB':>10} {'disk MB':>9} {'faults':>7}"
        ]
        for row in self.rows[:SHOWN]:
            lines.append(
                f"{shown(row['epoch'], 1, 0):>5} {shown(row['seconds'], 1, 2):>8} "
                f"{shown(row['files_opened'], 1, 0):>8} {shown(row['bytes_read'], 1e6, 1):>9} "
                f"{shown(row['read_seconds'], 1, 2):>9} "
                f"{shown(row['process_bytes'], 1e6, 1):>10} "
                f"{shown(row['storage_bytes'], 1e6, 1):>9} {shown(row['major_faults'], 1, 0):>7}"
            )
        if not any(row["bytes_read"] or row["process_bytes"] for row in self.rows):
            lines.append("training steps read no file: their examples are in memory")
        more = len(self.rows) - SHOWN
        lines += [f"and {more} more epochs"] * (more > 0)
        return [
            *lines,
            *MEASURED,
            f"what rank 0 read in each epoch's training steps is in {self._path}",
            bottleneck(phases),
        ]


class Counts:
    """Files, bytes and seconds so far, of all threads."""

    def __init__(self) -> None:
        self.files = self.bytes = 0
        self.seconds = 0.0
        self._lock = threading.Lock()

    def add(self, files: int = 0, size: int = 0, seconds: float = 0.0) -> None:
        with self._lock:
            self.files, self.bytes = self.files + files, self.bytes + size
            self.seconds += seconds


class Counted(io.FileIO):
    """A file whose read calls are counted."""

    def __init__(self, counts: Counts, *given: Any, **named: Any) -> None:
        began = time.perf_counter()
        super().__init__(*given, **named)
        self._counts = counts
        counts.add(files=1, seconds=time.perf_counter() - began)

    def _timed(self, read: Callable[..., Any], *given: Any) -> Any:
        began = time.perf_counter()
        found = read(*given)
        size = found if isinstance(found, int) else len(found or b"")
        self._counts.add(size=size, seconds=time.perf_counter() - began)
        return found

    def readinto(self, buffer: Any, /) -> Any:
        return self._timed(super().readinto, buffer)

    def read(self, size: int | None = -1, /) -> Any:
        return self._timed(super().read, -1 if size is None else size)

    def readall(self) -> Any:
        return self._timed(super().readall)


def counting(counts: Counts, own: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """`open` that counts what is only read, through a buffer, outside the folder `own`."""

    def counted_open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        readable = isinstance(file, str | bytes | os.PathLike) and mode in ("r", "rt", "rb", "br")
        text = "b" not in mode
        unusual = buffering in (0, 1) if text else (encoding or errors or newline is not None)
        if not readable or unusual or os.path.abspath(os.fsdecode(file)).startswith(own):
            return plain(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = Counted(counts, file, "rb", closefd, opener)
        if buffering == 0:
            return raw
        found = io.BufferedReader(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
        return io.TextIOWrapper(found, encoding, errors, newline) if text else found

    return counted_open


def of_process() -> dict[str, int]:
    """Counters of this process by Linux: rchar, read_bytes and others; empty elsewhere."""
    with suppress(OSError, ValueError):
        pairs = (line.split(":") for line in read_text(PROCESS).splitlines())
        return {name: int(value) for name, value in pairs}
    return {}


def shown(value: float | None, unit: float, decimals: int) -> str:
    return "" if value is None else f"{value / unit:,.{decimals}f}"
