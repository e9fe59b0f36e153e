"""torch.nn.parallel.DistributedDataParallel: one process per device, gradients averaged."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.group import Group, share_buffers
from ninefold.errors import ConfigError, first_few


@dataclass(frozen=True)
class DDP(Group):
    """The keys are DistributedDataParallel's own; `timeout` is the process group's, in seconds."""

    gradient_as_bucket_view: bool = True
    broadcast_buffers: bool = True
    find_unused_parameters: bool = False
    static_graph: bool = False
    bucket_cap_mb: float | None = None
    sync_batchnorm: bool = False

    def wrap(self, model: nn.Module, context: RankContext) -> nn.Module:
        if self.sync_batchnorm:
            if context.device.type != "cuda":
                wrong = "SyncBatchNorm runs on GPUs only"
                allowed = f"the device is {context.device.type}"
                do = "leave it false here"
                raise ConfigError("parallel.sync_batchnorm", "true", wrong, allowed, do)
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        # True is the default; passing it is deprecated from torch 2.15 on.
        buffers: dict[str, Any] = {} if self.broadcast_buffers else {"broadcast_buffers": False}
        model.to(context.device)
        return DDPWhileTraining(
            model,
            DistributedDataParallel(
                model,
                device_ids=[context.device.index] if context.device.type == "cuda" else None,
                gradient_as_bucket_view=self.gradient_as_bucket_view,
                find_unused_parameters=self.find_unused_parameters,
                static_graph=self.static_graph,
                bucket_cap_mb=self.bucket_cap_mb,
                **buffers,
            ),
        )

    def require_used(self, unused: Sequence[str]) -> None:
        if unused and not (self.find_unused_parameters or self.static_graph):
            wrong = (
                f"a step gives {len(unused)} trained parameters no gradient, which DDP waits for"
            )
            found, do = f"they are {first_few(unused)}", "set it to true, or freeze them"
            raise ConfigError("parallel.find_unused_parameters", "false", wrong, found, do)

    def accumulating(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[None]:
        assert isinstance(wrapped, DDPWhileTraining)
        return nullcontext() if last else wrapped.parallel.no_sync()

    def first_steps(self, context: RankContext) -> int:
        # After the first, DDP makes its buckets anew, and in which order the numbers of three
        # processes are added depends on their place in a bucket. Two numbers have one sum.
        return 1 if context.world_size > 2 else 0

    def notes(self, context: RankContext) -> list[str]:
        note = "parallel=ddp has one process here: it measures the cost of DDP, not its scaling."
        return [note] * (context.world_size == 1)


class DDPWhileTraining(nn.Module):
    """DistributedDataParallel while training, the plain network while evaluating.

    A forward pass through DDP may broadcast buffers, which is a collective, and unpadded
    evaluation shards differ in length: it could hang. Instead rank 0's buffers are broadcast
    once, on entering evaluation, so that every shard is evaluated with the statistics that a
    checkpoint holds.
    """

    def __init__(self, network: nn.Module, parallel: DistributedDataParallel) -> None:
        super().__init__()
        self.network = network
        self.parallel = parallel

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return (self.parallel if self.training else self.network)(*arguments, **options)

    def train(self, mode: bool = True) -> DDPWhileTraining:
        if self.training and not mode:
            share_buffers(self.network)
        super().train(mode)
        return self
