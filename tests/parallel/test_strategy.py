"""What strategies tell of a run, and what they leave behind when it has ended."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.ddp import DDP
from ninefold.errors import ConfigError
from ninefold.train.build import make
from tests.parallel.ranks import on_ranks

CPU = torch.device("cpu")


def test_a_strategy_that_lacks_a_method_is_refused_in_one_line():
    from omegaconf import OmegaConf

    node = OmegaConf.create({"_target_": "ninefold.engine.parallel.Parallel"})
    with pytest.raises(ConfigError, match=r"abstract class Parallel.* join"):
        make(node, "parallel")


@pytest.mark.parametrize(("threads", "shares"), [(4, [2, 1, 1]), (2, [1, 1, 1])])
def test_the_threads_of_a_host_are_shared_out(threads, shares):
    places = [RankContext(r, 3, CPU, local_rank=r, local_size=3) for r in range(3)]
    assert [context.share_of(threads) for context in places] == shares


def test_a_model_trained_with_ddp_is_freed_when_the_next_run_begins():
    """As in a sweep with launch.inline=true, where runs follow each other in one process."""

    def run() -> weakref.ref[nn.Module]:
        strategy = DDP(device="cpu")
        with strategy.join() as context:
            model = nn.Linear(4, 4)
            wrapped = strategy.wrap(model, context)
            wrapped(torch.ones(2, 4)).sum().backward()
            return weakref.ref(model)

    first = run()
    gc.disable()
    try:
        with DDP(device="cpu").join():
            assert first() is None
    finally:
        gc.enable()


def test_buffers_and_sums_that_are_not_contiguous_are_sent_in_a_form_that_nccl_takes(tmp_path):
    def as_nccl(call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(tensor: Tensor, *rest: Any, **named: Any) -> Any:
            assert tensor.is_contiguous(), "Tensors must be contiguous"
            return call(tensor, *rest, **named)

        return checked

    def evaluated() -> tuple[Tensor, Tensor]:
        dist.all_reduce, dist.broadcast = as_nccl(dist.all_reduce), as_nccl(dist.broadcast)
        strategy = DDP(device="cpu")
        with strategy.join() as context:
            model = nn.Linear(4, 4)
            model.register_buffer("table", torch.arange(6.0).view(2, 3).t())
            wrapped = strategy.wrap(model, context)
            table = model.get_buffer("table")
            table += context.rank
            wrapped.eval()
            return table, strategy.all_reduce_sum(table)

    for table, total in on_ranks(2, evaluated, tmp_path):
        assert table.tolist() == [[0, 3], [1, 4], [2, 5]]
        assert torch.equal(total, 2 * table)
        assert table.stride() == (1, 3)


def test_what_ended_a_run_is_told_though_its_process_group_cannot_be_left():
    """As after an error of a GPU, which every later call of NCCL repeats."""

    def fail() -> None:
        with DDP(device="cpu").join():
            dist.destroy_process_group()  # a second time it is an error
            raise KeyError("the cause")

    with pytest.raises(KeyError, match="the cause"):
        fail()
