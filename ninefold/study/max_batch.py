"""The largest batch that a cell's memory takes: looked for by running with it, for two steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ninefold.errors import Failure, Interrupted, Preempted, ResourceError

FOLDER = "max_batch"  # in a study's: the attempts, which are no runs of it
# What an attempt has otherwise than its cell's runs. The second step is the first that has all in
# memory, and an epoch may be of one.
ATTEMPT = (
    "max_steps=2", "epochs=2", "checkpoint.every=null", "numerics=0", "profile=false",
    "clock.warmup=1", "clock.sample=0", "clock.probe=0", "clock.ceiling=0",
    "launch.inline=false", "launch.max_restarts=0",
)  # fmt: skip
PRECISION = 1 / 16  # of the largest that fits: a bisection ends there
SHARE = 0.8  # of the memory that is free, which an attempt on a CPU may be expected to need
WHOLE_SET = "the whole training set fits"
# How the reason begins where it is a failure, which another search may be spared.
ENDED, NO_SEARCH = "the search ended: ", "there was no search: "
FAILED = (ENDED, NO_SEARCH)

Refuses = Callable[[int], str | None]  # batch size -> why it does not fit, or None


@dataclass(frozen=True)
class Largest:
    """batch_size: the largest found to fit; fails_at: the smallest found not to. None: none."""

    batch_size: int | None
    fails_at: int | None
    why: str

    def __str__(self) -> str:
        fits, fails = self.batch_size, self.fails_at
        return (
            f"{'none' if fits is None else fits} fits"
            + ("" if fails is None else f", {fails} does not")
            + f" ({self.why})"
        )


def largest_batch(refuses: Refuses, start: int, most: int, step: int) -> Largest:
    """The largest multiple of `step` up to `most` that `refuses` has nothing to say against.

    From `start` it is doubled, or halved, until one fits and one does not; then bisected, until
    they differ by one step, or by PRECISION of what fits.
    """
    most = most // step * step
    fits, fails, why = 0, most + step, WHOLE_SET
    size = min(max(start // step, 1) * step, most)
    while size > 0:
        found = refuses(size)
        if found is None:
            fits = size
        else:
            fails, why = size, found
        if fits == most or (fails <= most and fails - fits <= max(step, PRECISION * fits)):
            break
        if fails > most:
            size = min(2 * fits, most)
        else:
            size = (fails // 2 if fits == 0 else (fits + fails) // 2) // step * step
    return Largest(fits or None, fails if fails <= most else None, why)


def search(
    attempt: Callable[[int], int | None], start: int, most: int, step: int,
    available: Callable[[], int | None],
) -> Largest:  # fmt: skip
    """`largest_batch` of what `attempt` can run.

    attempt: run with a batch size; the peak of main memory in bytes, None where the batch is on a
    GPU. Raises Failure. What is expected to need more than SHARE of the bytes `available` is not
    tried: it might make the machine swap, or the kernel end somebody else's process. Any failure
    but one of memory ends the search, and is its reason. Raises Interrupted and Preempted, which
    leave it to the study to say how to go on: an attempt is nothing to go on with.
    """
    peaks: dict[int, int] = {}
    fits: list[int] = []
    fails: list[int] = []

    def refuses(size: int) -> str | None:
        why = expected_too_large(size, peaks, available())
        if why is None:
            try:
                peak = attempt(size)
            except ResourceError as failure:
                if not of_memory(failure):
                    raise
                why = failure.cause
            else:
                fits.append(size)
                peaks.update({} if peak is None else {size: peak})
        if why is not None:
            fails.append(size)
        return why

    try:
        return largest_batch(refuses, start, most, step)
    except (Interrupted, Preempted) as failure:
        raise type(failure)(
            "signal", failure.value, "the search for the largest batch was stopped",
            "what was found of other cells is kept", "go on with the study",
        ) from failure  # fmt: skip
    except Failure as failure:
        return Largest(max(fits, default=None), min(fails, default=None), f"{ENDED}{failure}")


def of_memory(failure: ResourceError) -> bool:
    """Whether memory ran out: an allocation failed, or the kernel ended the process."""
    return failure.field == "memory" or failure.wrong == "its process was killed (SIGKILL)"


def expected_too_large(size: int, peaks: dict[int, int], available: int | None) -> str | None:
    """Why a batch of `size` is not tried, if it is expected to need too much main memory.

    peaks: bytes that smaller batches took. Memory grows with the batch by what the last two of them
    differ in; after a single one all that it took is taken to grow.
    """
    below = sorted(batch for batch in peaks if batch < size)[-2:]
    if not below or available is None:
        return None
    last, first = below[-1], below[0] if len(below) == 2 else 0
    slope = (peaks[last] - peaks.get(first, 0)) / (last - first)
    expected = peaks[last] + max(slope, 0) * (size - last)
    if expected <= SHARE * available:
        return None
    return (
        f"predicted, not tried: {expected / 2**30:.1f} GiB would be needed, and "
        f"{SHARE:.0%} of the {available / 2**30:.1f} GiB that are free are allowed"
    )


def available_memory() -> int | None:
    """Bytes of main memory that this host and this process's cgroup have left, if they say so."""
    found = [_meminfo(), _of_cgroup(Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
             _of_cgroup(Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes",
                        "memory.usage_in_bytes")]  # fmt: skip
    return min((value for value in found if value is not None), default=_physical())


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(sizes[0]) * 1024 if sizes else None


def _of_cgroup(folder: Path, limit: str, usage: str) -> int | None:
    """What a cgroup has left, files that it keeps in memory counted as free."""
    try:
        most, used = (int((folder / name).read_text()) for name in (limit, usage))
        lines = (folder / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # there is none, or no limit
        return None
    cached = [line.split()[1] for line in lines if line.startswith("inactive_file ")]
    return max(most - used + sum(map(int, cached)), 0)


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
