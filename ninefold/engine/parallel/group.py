"""What strategies of several processes share: the process group that they belong to."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ninefold.engine.parallel import Parallel, Place, gpu_numbers, resolve_device
from ninefold.errors import ConfigError
from ninefold.ranks import Ranks, found

# DDP's reducer holds a reference to the process group. If it were the last one, freeing the reducer
# would delete the group while holding Python's lock, and wait for gloo's threads, one of which may
# be waiting for that lock to free the last tensor it reduced (seen with torch 2.10). So the groups,
# which are small, live as long as the process; models do not.
_GROUPS: list[dist.ProcessGroup] = []


def keep(groups: Iterable[object]) -> None:
    """Keep those of `groups` that are process groups as long as the process lives."""
    _GROUPS.extend(group for group in groups if isinstance(group, dist.ProcessGroup))


@dataclass(frozen=True)
class Group(Parallel):
    """A strategy of one process for each device; `timeout` is the process group's, in seconds.

    Rank, world size and the store's address come from the environment that torch elastic and
    torchrun set; without one the group has this process alone.
    """

    processes: int = 1
    max_processes: int | None = None
    device: str = "auto"
    devices: Sequence[int] | None = None
    timeout: float = 1800

    @contextmanager
    def join(self) -> Iterator[Place]:
        ranks = found(os.environ)
        rank, world_size = ranks.rank, ranks.world_size
        numbers = gpus_of_host(self.devices, torch.cuda.device_count(), ranks, os.environ)
        device = resolve_device(self.device, gpu_of(numbers, ranks.local_rank))
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=ranks.init_method,
            store=None if ranks.launched else dist.HashStore(),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=self.timeout),
        )
        if _GROUPS:  # free the models of the runs before this one, which are in reference cycles
            gc.collect()
        assert dist.group.WORLD is not None
        keep([dist.group.WORLD])
        failed = True
        try:
            yield Place(
                rank,
                world_size,
                device,
                replicas=1 if self.one_batch else world_size,
                local_rank=ranks.local_rank,
                local_size=ranks.local_world_size,
                host_gpus=numbers if device.type == "cuda" else (),
                one_batch=self.one_batch,
            )
            failed = False
        finally:
            # After a failure NCCL would wait here for peers that wait for this process, and the
            # failure would go unreported: then the process ends with its group.
            if not failed:
                dist.destroy_process_group()
            elif world_size == 1:
                with suppress(Exception):  # after an error of the GPU it fails too
                    dist.destroy_process_group()

    def total(self, values: Tensor) -> Tensor:
        values = values.clone()
        dist.all_reduce(values)
        return values


@torch.no_grad()
def share_buffers(module: nn.Module) -> None:
    """Give the buffers of `module`, such as BatchNorm's statistics, the values of rank 0.

    Every process must call it.
    """
    for buffer in module.buffers():
        dist.broadcast(buffer, src=0)


def gpus_of_host(
    devices: Sequence[int] | None, count: int, ranks: Ranks, environment: Mapping[str, str]
) -> tuple[int, ...]:
    """The number of the GPU of each process of this host, as each process numbers its own.

    devices: those to use, None: all. count: how many this process is shown. A launcher may show
    each of several processes one of its own (Slurm's --gpus-per-task=1): number 0 to all of them.
    """
    local = ranks.local_world_size
    if devices is None and count == 1 < local and environment.get("CUDA_VISIBLE_DEVICES"):
        return (0,) * local
    return gpu_numbers(devices, max(count, ranks.local_rank + 1))


def gpu_of(numbers: Sequence[int], local_rank: int) -> int:
    """The GPU of the process `local_rank` of this host. Raises ConfigError if it has none."""
    if local_rank >= len(numbers):
        raise ConfigError(
            "parallel.devices",
            list(numbers),
            f"process {local_rank} of this host has no GPU; {len(numbers)} named; name one for "
            "each process, or start fewer",
        )
    return numbers[local_rank]
