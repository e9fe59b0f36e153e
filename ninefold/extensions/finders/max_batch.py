"""Finds the largest batch that fits into a job's memory, by running two steps with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from omegaconf import DictConfig, open_dict

from ninefold.config.job import asked
from ninefold.errors import KILLED, Failure, Interrupted, Preempted, ResourceError
from ninefold.launch.ready import ready, ready_or_failure
from ninefold.launch.run import run_job
from ninefold.machine import available_memory
from ninefold.study.screen import Announcements

# Overrides of an attempt. The second step is the first that has everything in memory, and an epoch
# may have a single step.
ATTEMPT = (
    "max_steps=2", "epochs=2", "checkpoint.every=null", "numerics=0", "profile=false",
    "clock.warmup=1", "clock.sample=0", "launch.inline=false", "launch.max_restarts=0",
)  # fmt: skip
PRECISION = 1 / 16  # of the largest that fits: the bisection ends there
SHARE = 0.8  # of the free memory that an attempt on a CPU may be expected to need
WHOLE_SET = "the whole training set fits"
ENDED = "the search ended: "  # how `why` of a failure begins

Refuses = Callable[[int], str | None]  # batch size -> why it does not fit, or None


@dataclass(frozen=True)
class LargestBatch:
    """What a search for the largest batch that fits a job has found.

    batch_size: the largest found to fit, None if none.
    fails_at: the smallest found not to fit, None if none.
    status: `failed` if the search ended before it was done; `whole_set` if nothing larger exists.
    why: what limits the batch, or why the search failed.
    """

    batch_size: int | None = None
    fails_at: int | None = None
    status: Literal["found", "whole_set", "failed"] = "found"
    why: str = ""

    def __str__(self) -> str:
        fits = "none" if self.batch_size is None else self.batch_size
        fails = "" if self.fails_at is None else f", {self.fails_at} does not"
        return f"{fits} fits{fails} ({self.why})"


def of_job(job_with: Callable[..., DictConfig], config: DictConfig, folder: Path) -> LargestBatch:
    """The largest batch of a job on this machine. Raises Failure if a search cannot begin.

    job_with: composes the job with these overrides. config: as composed without any. folder: of
    the attempts' run folders.
    """
    screen = Announcements()

    def attempt(size: int) -> int | None:
        screen.running(f"batch_size  trying {size}")
        own, started = folder / str(size), time.time()
        own.mkdir(parents=True, exist_ok=True)
        tried = job_with(*ATTEMPT, f"batch_size={size}")
        with open_dict(tried):
            tried.logger = {}  # it is no run
        outcome = run_job(
            ready_or_failure(asked(tried, tried.hydra), own), own, started, quiet=True
        )
        for failure in outcome.failures:
            raise failure
        result = outcome.result
        assert result is not None
        known = zip(result.devices, result.peak_memory_bytes, strict=False)
        return sum(peak for name, peak in known if name == "cpu") or None

    job = ready(asked(config, config.hydra), folder)
    augment, accumulate = job.resolved["augment"], job.resolved["accumulate"]
    pairs = (augment["mixup"] or augment["cutmix"]) and accumulate % 2  # each process mixes some
    step = job.processes * accumulate * (2 if pairs else 1)
    start, most = job.resolved["batch_size"], job.training_examples()
    return search(attempt, start, most, step, available_memory)


def search(
    attempt: Callable[[int], int | None],
    start: int,
    most: int,
    step: int,
    available: Callable[[], int | None],
) -> LargestBatch:
    """The largest batch, a multiple of `step` up to `most`, with which `attempt` does not fail.

    attempt: runs with a batch size and returns the peak of main memory in bytes, None if the batch
    is on a GPU. Raises Failure. A batch that is expected to need more than SHARE of the `available`
    bytes is not tried: the machine might swap, or the kernel might kill another process. A failure
    of another kind ends the search. Raises Interrupted and Preempted.
    """
    peaks: dict[int, int] = {}
    fits: list[int] = []
    fails: list[int] = []

    def refuses(size: int) -> str | None:
        why = expected_too_large(size, peaks, available())
        if why is None:
            try:
                peak = attempt(size)
            except Failure as failure:
                why = does_not_fit(failure)
                if why is None:
                    raise
            else:
                fits.append(size)
                peaks.update({} if peak is None else {size: peak})
        if why is not None:
            fails.append(size)
        return why

    try:
        return largest_batch(refuses, start, most, step)
    except (Interrupted, Preempted):
        raise
    except Failure as failure:
        found = max(fits, default=None), min(fails, default=None)
        return LargestBatch(*found, "failed", f"{ENDED}{failure}")


def largest_batch(refuses: Refuses, start: int, most: int, step: int) -> LargestBatch:
    """The largest multiple of `step` up to `most` that fits: `refuses(size)` says why not, or None.

    The size is doubled or halved from `start` until one fits and one does not, then bisected until
    they differ by one step, or by PRECISION of what fits.
    """
    most = most // step * step
    fits, fails, why = 0, most + step, WHOLE_SET
    size = min(max(start // step, 1) * step, most)
    while size > 0:
        refused = refuses(size)
        if refused is None:
            fits = size
        else:
            fails, why = size, refused
        if fits == most or (fails <= most and fails - fits <= max(step, PRECISION * fits)):
            break
        if fails > most:
            size = min(2 * fits, most)
        else:
            size = (fails // 2 if fits == 0 else (fits + fails) // 2) // step * step
    if fails > most:
        return LargestBatch(fits or None, None, "whole_set", why)
    return LargestBatch(fits or None, fails, "found", why)


# What CUDA kernels say of tensors with more elements than they can index.
TOO_LARGE = (
    "numeric_limits<int32_t>::max()", "integer out of range",
    "too large for the channels_last CUDA kernel", "less than INT_MAX elements",
    "canUse32BitIndexMath",
)  # fmt: skip
# What cuDNN says when no algorithm's workspace fits. A GPU that lacks a dtype says the same, but
# then the smallest batch fails too.
NO_ALGORITHM = (
    "unable to find an engine to execute this computation",
    "Unable to find a valid cuDNN algorithm",
)


def does_not_fit(failure: Failure) -> str | None:
    """Why the batch of a failed run does not fit; None if it failed for another reason."""
    if of_memory(failure) or any(words in failure.wrong for words in NO_ALGORITHM):
        return failure.cause
    if any(words in failure.wrong for words in TOO_LARGE):
        return f"a kernel indexes with 32 bits: {failure.cause}"
    return None


def of_memory(failure: Failure) -> bool:
    """Whether memory ran out: an allocation failed, or the kernel killed the process."""
    return isinstance(failure, ResourceError) and (
        failure.field == "memory" or failure.wrong == KILLED
    )


def expected_too_large(size: int, peaks: dict[int, int], available: int | None) -> str | None:
    """Why a batch of `size` is not tried, if it is expected to need too much main memory.

    peaks: bytes that other batch sizes took. The last two below `size` are extrapolated; of a
    single one, all memory is assumed to grow with the batch.
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
