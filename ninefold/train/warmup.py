"""Steps before the training, whose effect is undone: warm-up, compilation, profile."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import islice

import torch

from ninefold.engine.batches import Batches
from ninefold.engine.parallel import gather
from ninefold.engine.training import Step, Training
from ninefold.measure.numerics import Numerics
from ninefold.measure.profiler import Profile
from ninefold.signals import held_back
from ninefold.train.kernels import give_back_freed
from ninefold.tree import Tree


@dataclass(kw_only=True)
class WarmUp:
    """The undone steps before a training, and what they have measured.

    steps: how many warm caches, buffers and kernels. compiles: whether they compile the network.
    enough: seconds of these steps after which two of them suffice, if they compile nothing.
    numerics: records what the first steps compute. profile: records some more steps.

    step_seconds: of the last of these steps; None: there was none.
    compile_seconds: of compiling the network.
    """

    steps: int
    compiles: bool = False
    enough: float = math.inf
    numerics: Numerics | None = None
    profile: Profile | None = None
    step_seconds: float | None = None
    compile_seconds: float | None = None


def warm_up(run: Training, asked: WarmUp, step: Step, warm: Callable[[], None]) -> None:
    """Take the steps that are `asked` for and undo them: caches, buffers and kernels stay warm.

    The numerics come first, then the warm-up steps and the profile. Then model, optimizer, scaler,
    schedule and random generators are restored.

    warm: called before that, when the optimizer has its state.
    """
    numerics = asked.numerics if run.state.step == 0 else None
    if not any((asked.steps, asked.profile, numerics)):
        return
    before = run.state.capture(run.parallel, run.context)
    seconds = []
    # A compiler that a step starts must not receive the signals sent to the process group.
    with contextlib.closing(first_batches(run.batches)) as batches, held_back():

        def timed(inputs: Tree, targets: Tree) -> None:
            began = time.perf_counter()
            step(inputs, targets)
            run.context.synchronize()
            seconds.append(time.perf_counter() - began)

        if numerics is not None:
            numerics.record(run, batches, timed)
        with run.state.schedule.standing():
            for inputs, targets in islice(batches, asked.steps):
                timed(inputs, targets)
                two = len(seconds) > 1  # DistributedDataParallel regroups its buckets after one
                if two and not asked.compiles and slowest(run, sum(seconds)) > asked.enough:
                    break
            asked.step_seconds = seconds[-1] if seconds else None
            if asked.profile is not None:
                asked.profile.record(batches, step)
    if asked.compiles:  # what these steps took beyond the time of the last one
        asked.compile_seconds = sum(seconds) - len(seconds) * seconds[-1]
    warm()
    run.state.restore(before, run.parallel, run.context)
    del before
    if run.context.device.type == "cuda":  # a CPU's steps take that memory again
        give_back_freed()


def slowest(run: Training, seconds: float) -> float:
    """The largest of the processes' `seconds`. Every process must call it."""
    found = torch.tensor(seconds, device=run.context.device)
    return float(gather(found, run.parallel, run.context).max())


def first_batches(batches: Batches) -> Generator[tuple[Tree, Tree], None, None]:
    """The batches of the first epoch, repeated without end."""
    while True:
        yield from batches.epoch(0)
