"""Processes of one torch.distributed group that take turns together: what they must agree on."""

from __future__ import annotations

import os
import platform
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from ninefold.errors import ConfigError


class Together:
    """The processes of the default group; one alone where none was made.

    They speak over a group of their own (gloo), so that nothing is queued on a device.

    rank: of this process. several: whether there are others.
    """

    def __init__(self) -> None:
        there = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if there else 0
        self.several = there and distributed.get_world_size() > 1
        self._group: Any = distributed.new_group(backend="gloo") if self.several else None

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of each of these values over all processes, the same in each of them."""
        if not self.several:
            return list(values)
        found = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self._group)
        return [float(value) for value in found.tolist()]

    def check(self, steps: Sequence[str]) -> None:
        """Raise ConfigError, in all processes, unless all have steps of the same names."""
        code = float(zlib.crc32("\n".join(sorted(steps)).encode()))
        # The largest of -code is the smallest code, so that one call gives both.
        most, least = self.largest([code, -code])
        if most != -least:
            raise ConfigError(
                "steps",
                ", ".join(steps),
                f"other ranks have steps of other names; rank {self.rank} has these; give all "
                "ranks the same",
            )

    def neighbors(self) -> list[int]:
        """The ids of the other processes on this host."""
        if not self.several:
            return []
        own = torch.tensor([os.getpid(), zlib.crc32(platform.node().encode())])
        found = [torch.empty_like(own) for _ in range(distributed.get_world_size(self._group))]
        distributed.all_gather(found, own, group=self._group)
        return [int(pid) for pid, host in found if host == own[1] and pid != own[0]]

    def close(self) -> None:
        """Give the group back."""
        if self._group is not None and distributed.is_initialized():
            distributed.destroy_process_group(self._group)
        self._group, self.several = None, False
