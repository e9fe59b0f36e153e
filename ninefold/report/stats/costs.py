"""The cost model of a training step over several processes: computing C, communicating M.

A step takes at least the longer of the two and at most their sum, as far as they overlap. M is
`messages * alpha + sent / speed` (Thakur, Rabenseifner and Gropp 2005).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

FARTHEST = 1024  # processes that a prediction is made for


@dataclass(frozen=True)
class Costs:
    """What a step costs with so many processes, in seconds and bytes.

    compute: seconds of a step without communication.
    messages: collective operations of a step.
    sent: bytes that a process sends in a step.
    alpha: seconds of a message of no size.
    speed: bytes a second.
    """

    processes: int
    compute: float
    messages: float
    sent: float
    alpha: float
    speed: float

    @property
    def latency(self) -> float:
        """Seconds of its messages if they were empty."""
        return self.messages * self.alpha

    @property
    def transfer(self) -> float:
        """Seconds of its bytes if they were one message without latency."""
        return self.sent / self.speed

    @property
    def communication(self) -> float:
        """Seconds of a step that only communicated: M."""
        return self.latency + self.transfer

    @property
    def least(self) -> float:
        """Seconds of a step whose communication overlaps with computing as far as it can."""
        return max(self.compute, self.communication)

    @property
    def most(self) -> float:
        """Seconds of a step that communicates after it has computed."""
        return self.compute + self.communication

    @property
    def bound(self) -> str:
        """What takes longest: `computing`, `the latency of its messages` or `its bytes`."""
        if self.compute >= self.communication:
            return "computing"
        return "the latency of its messages" if self.latency > self.transfer else "its bytes"


class Model:
    """The costs of a step with more processes than were measured.

    computes: seconds of a step without communication, by processes; with weak scaling all alike.
    measured: the costs with the most processes.
    """

    def __init__(self, computes: Mapping[int, float], measured: Costs, weak: bool) -> None:
        self._measured = measured
        self._fixed, self._shared = measured.compute, 0.0
        if not weak and len(computes) > 1:
            # A part of C is that of the examples, which the processes share; a part is not.
            shares = np.array([1 / processes for processes in computes])
            table = np.stack([np.ones_like(shares), shares], axis=1)
            seconds = np.array(list(computes.values()))
            (fixed, shared), *_ = np.linalg.lstsq(table, seconds, rcond=None)
            if fixed < 0:  # neither part is
                fixed, shared = 0.0, (shares @ seconds) / (shares @ shares)
            if shared < 0:
                fixed, shared = seconds.mean(), 0.0
            self._fixed, self._shared = float(fixed), float(shared)
        self.known = weak or len(computes) > 1

    def costs(self, processes: int) -> Costs:
        """Return the costs with so many processes.

        Latency grows as in a ring, with p - 1, and bytes with (p - 1) / p, as those of an
        all-reduce, an all-gather and a reduce-scatter do.
        """
        last = self._measured
        links = (processes - 1) / (last.processes - 1)
        return replace(
            last,
            processes=processes,
            compute=self._fixed + self._shared / processes,
            sent=last.sent * links * last.processes / processes,
            alpha=last.alpha * links,
        )


def falls_below(
    share: float, model: Model, one: float, weak: bool, slowest: bool, first: int
) -> int | None:
    """Return from how many processes on the predicted efficiency is below a share, None if later.

    one: seconds of a step of one process. slowest: whether nothing overlaps. first: processes from
    which on it is asked
    """
    for processes in range(first, FARTHEST + 1):
        costs = model.costs(processes)
        seconds = costs.most if slowest else costs.least
        if efficiency(one, seconds, processes, weak) < share:
            return processes
    return None


def efficiency(one: float, seconds: float, processes: int, weak: bool) -> float:
    """Return the share of the ideal speed-up: steps of `seconds` where one process takes `one`.

    With weak scaling a step has so many times as many examples.
    """
    return one / seconds / (1 if weak else processes)
