"""Process group, which strategies of several processes share."""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ninefold.engine.parallel import Parallel, RankContext, gpu_numbers, resolve_device
from ninefold.errors import ConfigError
from ninefold.tree import each

# DDP's reducer holds a reference to the process group. If it were the last one, freeing the reducer
# would delete the group while holding Python's lock, and wait for gloo's threads, one of which may
# be waiting for that lock to free the last tensor it reduced (seen with torch 2.10). So the groups,
# which are small, live as long as the process; models do not.
_GROUPS: list[object] = []


@dataclass(frozen=True)
class Group(Parallel):
    """A strategy of one process for each device; `timeout` is the process group's, in seconds.

    Rank, world size and the store's address come from the environment, as torchrun sets it for
    torch's env://; without one the group has this process alone.
    """

    processes: int = 1
    max_processes: int | None = None
    device: str = "auto"
    devices: Sequence[int] | None = None
    timeout: float = 1800

    @contextmanager
    def join(self) -> Iterator[RankContext]:
        rank, world_size = number("RANK", 0), number("WORLD_SIZE", 1)
        local_rank, local_size = number("LOCAL_RANK", 0), number("LOCAL_WORLD_SIZE", 1)
        count = torch.cuda.device_count()
        numbers = gpus_of_host(self.devices, count, local_rank, local_size, os.environ)
        device = resolve_device(self.device, gpu_of(numbers, local_rank))
        timeout = timedelta(seconds=self.timeout)
        store: dist.Store = dist.HashStore()
        if "RANK" in os.environ:
            store, *_ = next(dist.rendezvous("env://", timeout=timeout))
            # torchrun's static store keeps the addresses of processes that it has restarted.
            restarts = number("TORCHELASTIC_RESTART_COUNT", 0)
            store = dist.PrefixStore(f"attempt_{restarts}", store)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timeout,
        )
        if _GROUPS:  # free the models of the runs before this one, which are in reference cycles
            gc.collect()
        _GROUPS.append(dist.group.WORLD)
        failed = True
        try:
            yield RankContext(
                rank,
                world_size,
                device,
                replicas=world_size,
                local_rank=local_rank,
                local_size=local_size,
                host_gpus=numbers if device.type == "cuda" else (),
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

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        values = values.clone(memory_format=torch.contiguous_format)  # NCCL refuses others
        dist.all_reduce(values)
        return values

    def broadcast(self, tree: Any, meta: Collection[str] = ()) -> Any:
        if dist.get_world_size() == 1:
            return tree
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        outline = [each(as_meta, tree)]  # the tensors follow one by one, never all on the GPU
        dist.broadcast_object_list(outline)
        found = tree if dist.get_rank() == 0 else outline[0]

        def sent(value: Any) -> Any:
            """A tensor, sent by rank 0 and received by others, as bytes: gloo knows few dtypes."""
            if not isinstance(value, Tensor):
                return value
            if value.is_meta:
                data = torch.empty(value.nbytes, dtype=torch.uint8, device=device)
            else:
                data = value.detach().contiguous().reshape(-1).view(torch.uint8).to(device)
            dist.broadcast(data, src=0)
            return data.cpu().view(value.dtype).view(value.shape) if value.is_meta else value

        if isinstance(found, dict):
            return {k: v if k in meta else each(sent, v) for k, v in found.items()}
        return each(sent, found)


def as_meta(value: Any) -> Any:
    """A tensor on the meta device like `value`, if that is one."""
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value


@torch.no_grad()
def share_buffers(module: nn.Module) -> None:
    """Give the buffers of `module`, such as BatchNorm's statistics, the values of rank 0.

    Every process must call it.
    """
    for buffer in module.buffers():
        sent = buffer.contiguous()
        dist.broadcast(sent, src=0)
        buffer.copy_(sent)


def number(variable: str, default: int) -> int:
    """The number in a variable of the environment."""
    return int(os.environ.get(variable, default))


def gpus_of_host(
    devices: Sequence[int] | None,
    count: int,
    local_rank: int,
    local_size: int,
    environment: Mapping[str, str],
) -> tuple[int, ...]:
    """The number of the GPU of each process of this host, as each process numbers its own.

    devices: those to use, None: all. count: how many this process is shown. A launcher may show
    each of several processes one of its own (Slurm's --gpus-per-task=1): number 0 to all of them.
    """
    if devices is None and count == 1 < local_size and environment.get("CUDA_VISIBLE_DEVICES"):
        return (0,) * local_size
    return gpu_numbers(devices, max(count, local_rank + 1))


def gpu_of(numbers: Sequence[int], local_rank: int) -> int:
    """The GPU of the process `local_rank` of this host. Raises ConfigError if it has none."""
    if local_rank >= len(numbers):
        wrong = f"process {local_rank} of this host has no GPU"
        do = "name one for each process, or start fewer"
        raise ConfigError("parallel.devices", list(numbers), wrong, f"{len(numbers)} named", do)
    return numbers[local_rank]
