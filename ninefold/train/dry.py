"""Memory and traffic of one process, for any number of processes: `launch.dry=true`.

One process takes the place of rank 0 in a process group that only pretends to communicate.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from omegaconf import DictConfig, OmegaConf

from ninefold.config.spec import RunSpec
from ninefold.errors import ConfigError
from ninefold.files import write_json
from ninefold.measure.memory import memory_by_kind
from ninefold.parallel import Parallel, Place
from ninefold.task import Objective, scoring
from ninefold.train import build
from ninefold.train.freeze import freeze, kept_frozen

FILE = "dry.json"  # in the folder of the command


@dataclass(frozen=True)
class Share:
    """What one of so many processes has of a run, in bytes, activations not included.

    memory: by kind, see measure.memory. sent: in a step. messages: collective operations of a step.
    """

    processes: int
    examples: int
    memory: dict[str, int]
    sent: int
    messages: int


def dry_run(spec: RunSpec) -> None:
    """Write what a process holds and sends to dry.json, for the job's processes and fewer.

    Raises Failure.
    """
    job = OmegaConf.create(spec.job)
    assert isinstance(job, DictConfig)
    parallel, _ = build.begin(job)
    most = int(job.parallel.processes)
    copies = job.parallel.get("replicas", 1)  # of fsdp, spread over as many processes each
    found = [share_of(job, parallel, most)]
    while found[0].processes % (2 * copies) == 0:
        found.insert(0, share_of(job, parallel, found[0].processes // 2))
    write_json(spec.folder / FILE, {"shares": [asdict(share) for share in found]})


def share_of(job: DictConfig, parallel: Parallel, processes: int) -> Share:
    """The share of rank 0 of so many processes, built on the CPU as a run builds it."""
    with pretended(processes) as place:
        model = build.network(job)
        freeze(model, job.freeze)
        task = build.built_task(job)
        parallel.wrap(Objective(kept_frozen(model, job.freeze), task), place)
        amp = build.make(job.amp, "amp").on(place.device)
        state = build.initial_state(job, model, amp, place, 1, scoring(task))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        state.optimizer.step()  # after which the optimizer has its state
        memory = memory_by_kind(model, state.optimizer, state.average.named(), parallel, place)
        traffic = parallel.traffic(model, place, job.accumulate)
        assert traffic is not None, "refused before"
    return Share(processes, job.batch_size // processes, memory, traffic.sent, traffic.messages)


@contextmanager
def pretended(processes: int) -> Iterator[Place]:
    """The place of rank 0 in a group of so many processes of which there is only this one.

    Raises ConfigError if this version of torch has no such group.
    """
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore  # not a public module
    except ImportError as error:
        raise ConfigError(
            "launch.dry",
            "true",
            f"torch {torch.__version__} cannot pretend to have processes; {error!s}; use "
            "another version of torch",
        ) from error
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes)
    try:
        yield Place(0, processes, torch.device("cpu"), replicas=processes, local_size=processes)
    finally:
        dist.destroy_process_group()
        gc.collect()  # a model is in cycles with its wrapper
