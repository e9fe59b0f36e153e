"""Finds the largest batch that fits into a job's memory, by taking two steps with each size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import open_dict

from ninefold.config.job import Settled, asked
from ninefold.errors import KILLED, Failure, ResourceError
from ninefold.extensions.fits import SHARE
from ninefold.launch.command import composed
from ninefold.launch.ready import ready_or_failure
from ninefold.launch.run import run_job
from ninefold.machine import available_memory
from ninefold.places import typed_as
from ninefold.words import last_of_each

# Overrides of an attempt. The second step is the first that has everything in memory, and an epoch
# may have a single step.
ATTEMPT = (
    "max_steps=2", "epochs=2", "checkpoint.every=null", "numerics=0", "profile=false",
    "clock.warmup=1", "clock.sample=0", "launch.inline=false", "launch.max_restarts=0",
)  # fmt: skip
WHOLE_SET = "the whole training set fits"


# The largest size with which steps were taken (0: none), the smallest found not to fit (None: there
# is none), and what limits it.
Found = tuple[int, int | None, str]


def of_job(words: Sequence[str], job: Settled, folder: Path, start: int) -> Found:
    """The largest batch of a job on this machine; `start` is tried first. Raises Failure.

    words: its overrides. folder: of the attempts' run folders.
    """

    def attempt(size: int) -> int | None:
        print(f"batch_size  trying {size}", flush=True)
        own, started = folder / str(size), time.time()
        own.mkdir(parents=True, exist_ok=True)
        instead = last_of_each([*words, *ATTEMPT, f"batch_size={size}"])
        tried = composed(instead, typed_as("fits"))
        with open_dict(tried):
            tried.logger = {}  # it is no run
        settled = ready_or_failure(asked(tried, tried.hydra), own)
        outcome = run_job(settled, own, started, quiet=True)
        for failure in outcome.failures:
            raise failure
        result = outcome.result
        assert result is not None
        known = zip(result.devices, result.peak_memory_bytes, strict=False)
        return sum(peak for name, peak in known if name == "cpu") or None

    return search(attempt, start, job.training_examples(), divisor(job), available_memory)


def divisor(job: Settled) -> int:
    """What a batch_size of the job must divide by."""
    accumulate: int = job.resolved["accumulate"]
    pairs = job.resolved["augment"]["mixup"] and accumulate % 2  # each process mixes some
    return job.processes * accumulate * (2 if pairs else 1)


def search(
    attempt: Callable[[int], int | None],
    start: int,
    most: int,
    step: int,
    available: Callable[[], int | None],
) -> Found:
    """The largest batch, a multiple of `step` up to `most`, with which `attempt` does not fail.

    The size is doubled or halved from `start` until one fits and one does not, then bisected until
    they differ by one step, or by 1/16 of what fits.
    attempt: runs with a batch size and returns the peak of main memory in bytes, None if the batch
    is on a GPU. A batch that is expected to need more than SHARE of the `available` bytes is not
    tried: the machine might swap, or the kernel might kill another process.
    Raises the Failure of an attempt that did not fail for want of memory.
    """
    most = most // step * step
    peaks: dict[int, int] = {}
    fits, fails, why = 0, most + step, WHOLE_SET
    size = min(max(start // step, 1) * step, most)
    while size > 0:
        refused = expected_too_large(size, peaks, available())
        if refused is None:
            try:
                peak = attempt(size)
                peaks.update({} if peak is None else {size: peak})
            except Failure as failure:
                if (refused := does_not_fit(failure)) is None:
                    raise
        if refused is None:
            fits = size
        else:
            fails, why = size, refused
        if fits == most or (fails <= most and fails - fits <= max(step, fits / 16)):
            break
        if fails > most:
            size = min(2 * fits, most)
        else:
            size = (fails // 2 if fits == 0 else (fits + fails) // 2) // step * step
    return fits, fails if fails <= most else None, why


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
    """Why the batch of a failed run does not fit; None if it failed for another reason.

    An allocation failed, the kernel killed the process, or no kernel takes as much.
    """
    said = failure.field == "memory" or failure.wrong == KILLED
    of_memory = isinstance(failure, ResourceError) and said
    if of_memory or any(words in failure.wrong for words in NO_ALGORITHM):
        return failure.cause
    if any(words in failure.wrong for words in TOO_LARGE):
        return f"a kernel indexes with 32 bits: {failure.cause}"
    return None


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
