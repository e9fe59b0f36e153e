"""profile=python: which Python functions the threads of a training process are in."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import ClassVar

from ninefold.files import write_text
from ninefold.measure.watch import Watch, bottleneck
from ninefold.places import ROOT

INTERVAL = 0.005  # seconds between two looks
LONGEST = 10  # functions in the table
WIDE = 60  # characters of their names
MAIN = "MainThread"
# Where a thread waits for another one: the innermost function's file ends so.
WAITS = ("threading.py", "queue.py", "selectors.py", "concurrent/futures/thread.py")
Stack = tuple[str, ...]  # the name of a thread, then its functions from the outermost on


class PythonProfile(Watch):
    """Samples the stacks of all threads every INTERVAL, and writes them as collapsed stacks.

    That is a line `thread;function;function COUNT` for each stack, in rank*.python.collapsed.txt,
    which speedscope.app, flamegraph.pl and others open. In contrast to cProfile it sees the threads
    that read batches, and slows no function down more than another: it takes the interpreter for
    some 50 µs a look. Time inside C, such as an operator's, is that of the function which called.
    """

    notes: ClassVar = (
        "profile=python looked at the Python stacks every 5 ms of training steps, which costs them "
        "some of their time.",
    )

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._path = folder / f"rank{rank}.python.collapsed.txt"
        self._stacks = Counter[Stack]()
        self._names: dict[CodeType, str] = {}
        self._ended: threading.Event | None = None
        self._thread: threading.Thread | None = None
        self.looks = 0

    def start(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._look_on, args=(self._ended,), name="profile", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        if self._ended is None or self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._ended = None
        self._folder.mkdir(parents=True, exist_ok=True)
        lines = (f"{';'.join(stack)} {count}\n" for stack, count in sorted(self._stacks.items()))
        write_text(self._path, "".join(lines))

    def _look_on(self, ended: threading.Event) -> None:
        own, due = threading.get_ident(), time.perf_counter()
        while not ended.is_set():
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            self.looks += 1
            for ident, frame in sys._current_frames().items():
                if ident != own:
                    self._stacks[self._stack(names.get(ident, "thread"), frame)] += 1
            due = max(due + INTERVAL, time.perf_counter())  # a late look is not made up for
            ended.wait(due - time.perf_counter())

    def _stack(self, thread: str, frame: FrameType | None) -> Stack:
        found = []
        while frame is not None:
            code = frame.f_code
            if code not in self._names:
                self._names[code] = function(code)
            found.append(self._names[code])
            frame = frame.f_back
        return (re.sub(r"[-_ ]*\d+", "", thread), *reversed(found))

    def summary(self, phases: Mapping[str, float]) -> list[str]:
        lines = [f"{'Python function, of the main thread':<{WIDE}} {'self':>6} {'total':>6}"]
        main = {stack[1:]: count for stack, count in self._stacks.items() if stack[0] == MAIN}
        whole = sum(main.values()) or 1
        total = Counter[str]()
        for stack, count in main.items():
            total.update(dict.fromkeys(stack, count))
        for name, count in innermost(main).most_common(LONGEST):
            of_all = total[name] / whole
            lines.append(f"{shortened(name):<{WIDE}} {count / whole:>6.1%} {of_all:>6.1%}")
        for thread in sorted({stack[0] for stack in self._stacks} - {MAIN}):
            of = {stack[1:]: count for stack, count in self._stacks.items() if stack[0] == thread}
            lines.append(of_threads(thread, of))
        lines.append(
            f"{self.looks:,} looks at the stacks of rank 0 in {self._path}, for speedscope.app"
        )
        return [*lines, bottleneck(phases)]


def function(code: CodeType) -> str:
    """The name of a function with its file and line, which a user finds it by."""
    path = code.co_filename
    for above in (*sorted(sys.path, key=len, reverse=True), str(ROOT)):
        if above and path.startswith(f"{above}/"):
            path = path[len(above) + 1 :]
            break
    name = f"{code.co_qualname} ({path}:{code.co_firstlineno})"
    return re.sub(r"[;\s]+", " ", name)  # which separate functions, and the count


def shortened(name: str) -> str:
    """At most WIDE characters of a name: the function, and the end of the path to its line."""
    half = WIDE // 2
    return name if len(name) <= WIDE else f"{name[: half - 3]}...{name[-half:]}"


def innermost(stacks: Mapping[Stack, int]) -> Counter[str]:
    """How often each function was the innermost one of its thread."""
    found = Counter[str]()
    for stack, count in stacks.items():
        found[stack[-1] if stack else "?"] += count
    return found


def of_threads(name: str, stacks: Mapping[Stack, int]) -> str:
    """A line about the threads of a name: how much of the time they work, and at what."""
    found = innermost(stacks)
    working = Counter({
        each: count
        for each, count in found.items()
        if not each.rpartition(" (")[2].rpartition(":")[0].endswith(WAITS)
    })  # fmt: skip
    at_work = working.total() / (found.total() or 1)
    most = ", ".join(f"{each} {n / found.total():.0%}" for each, n in working.most_common(3))
    return f"threads {name}: in Python or what it called {at_work:.0%} of the time" + (
        f": {most}" if most else ""
    )
