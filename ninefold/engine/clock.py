"""The inner clock: seconds of training steps, and of the phases of sampled steps."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Protocol

import torch

from ninefold.score import PHASES


class ClockObserver(Protocol):
    """Observer of when the clock runs, see `ninefold.measure.devices.Load`."""

    def begin(self) -> None:
        """The clock runs from here on."""

    def end(self) -> None:
        """The clock stands from here on."""


class Clock:
    """The inner clock: seconds of training steps.

    It runs between `start` and `stop`, without what is inside `with clock.paused()`: log points,
    evaluation, checkpoints. On CUDA both ends are events in the streams, and the host waits only
    for the second one: a queue that the first one drained would be short for a while, and a step
    that waits for its host slower than in a long run.

    device: of the process, whose phases are timed. gpus: all that it computes on, of which the
        slowest counts; empty: the device alone.
    sample: the phases of one step in so many are timed, on CUDA by events in the stream, so that
    the host never waits, on a CPU by the host's clock. 0: of no step.
    seconds: as of the latest stop or pause.
    sampled_steps: steps whose phases were timed, as of the last `stop` or `phase_seconds`.
    behind: share of the sampled steps that a GPU was still busy with the phases before the last
        one of when the host had queued it; None: no step was sampled, or on a CPU.
    """

    def __init__(
        self,
        device: torch.device,
        sample: int,
        gpus: Sequence[int] = (),
        observers: Sequence[ClockObserver] = (),
    ) -> None:
        self.seconds = 0.0
        self.sampled_steps = 0
        self._behind = 0
        self._device = device
        self._gpus = gpus or ([device.index or 0] if device.type == "cuda" else [])
        self._observers = observers
        self._sample = sample
        self._since = list[Any]()
        self._running = False
        self._begun = 0
        self._marks: list[tuple[str, Any]] = []
        self._pending: list[list[tuple[str, Any]]] = []
        self._phases: dict[str, float] = defaultdict(float)

    def start(self) -> None:
        """Start to count when the device has done what is queued so far; does not wait for it."""
        self._running = True
        self._resume()

    def stop(self) -> None:
        """Stop counting; waits for the device."""
        self._halt()
        self._running = False

    @property
    def behind(self) -> float | None:
        on_gpu = self._device.type == "cuda"
        return self._behind / self.sampled_steps if on_gpu and self.sampled_steps else None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context whose time does not count; nothing happens if the clock does not run."""
        if not self._running:
            yield
            return
        self._halt()
        yield
        self._resume()

    def begin_step(self) -> None:
        """A step begins: its batch is gathered next."""
        self._begun += 1
        # The middle one: steps right after a log point or a checkpoint find cold caches.
        if self._sample and self._begun % self._sample == self._sample // 2:
            self._marks = [("", _now(self._device))]

    def mark(self, phase: str) -> None:
        """`phase` ends here. If it ends more than once in a step, its times add up."""
        if self._marks:
            self._marks.append((phase, _now(self._device)))

    def end_step(self) -> None:
        """A step ends."""
        if self._marks:
            if self._device.type == "cuda":  # however few steps its queue has room for
                self._behind += not self._marks[-2][1].query()
            self._pending.append(self._marks)
            self._marks = []

    def phase_seconds(self, steps: int) -> dict[str, float]:
        """Estimated seconds of each phase over `steps` steps: the mean of the sampled ones, scaled.

        Of the phases that were marked. The device must be synchronized.
        """
        self._drain()
        known = [phase for phase in PHASES if phase in self._phases]
        return {phase: self._phases[phase] / self.sampled_steps * steps for phase in known}

    def _drain(self) -> None:
        """Add up the phases of the sampled steps that have ended; frees their CUDA events."""
        for marks in self._pending:
            self.sampled_steps += 1
            for (_, before), (phase, after) in pairwise(marks):
                self._phases[phase] += _between(before, after)
        self._pending.clear()

    def _resume(self) -> None:
        for each in self._observers:
            each.begin()
        self._since = self._moments()

    def _halt(self) -> None:
        until = self._moments()
        for index in self._gpus:
            torch.cuda.synchronize(index)
        self.seconds += max(map(_between, self._since, until))
        for each in self._observers:
            each.end()
        self._drain()

    def _moments(self) -> list[Any]:
        return [_now(torch.device("cuda", index)) for index in self._gpus] or [_now(self._device)]


def _now(device: torch.device) -> Any:
    """When a GPU has done what is queued in its current stream: an event; of others this moment."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _between(before: Any, after: Any) -> float:
    """Seconds between two moments of a device, which is synchronized."""
    seconds = after - before if isinstance(after, float) else before.elapsed_time(after) / 1000
    return float(seconds)
