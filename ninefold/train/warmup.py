"""Steps before the training, whose effect is undone: warm-up, compilation, profile."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import islice
from statistics import median

import torch

from ninefold.engine.batches import Batches
from ninefold.engine.parallel import gather
from ninefold.engine.training import Step, Training
from ninefold.measure.numerics import Numerics
from ninefold.measure.profiler import Profile
from ninefold.progress import milliseconds
from ninefold.result import ONE_THREAD
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


def choose_threads(run: Training, step: Step, compiles: bool) -> str | None:
    """Go on with one CPU thread, and return a sentence on it, if steps are faster with it.

    Small networks and busy machines make threads wait for each other. The steps with one and with
    all threads alternate, and are undone. Three of each suffice after half a second, one of each
    after two seconds, and 20 at the most. compiles: whether the network is compiled.
    None: they are not 1.1 times as fast, and less may be noise of so few, or it was not tried: of a
    process that has one thread, or has peers.
    """
    threads = torch.get_num_threads()
    alone = run.context.world_size == 1 and run.context.device.type == "cpu"
    if threads == 1 or not alone or compiles:  # to another number it would be compiled anew
        return None
    before = run.state.capture(run.parallel, run.context)
    seconds: dict[int, list[float]] = {threads: [], 1: []}
    standing = run.state.schedule.standing()
    with contextlib.closing(first_batches(run.batches)) as batches, standing:
        for number, (inputs, targets) in enumerate(islice(batches, 2 * 20)):
            count = (threads, 1)[number % 2]
            torch.set_num_threads(count)
            began = time.perf_counter()
            step(inputs, targets)
            seconds[count].append(time.perf_counter() - began)
            tried = sum(map(sum, seconds.values()))
            enough = tried > 0.5 and len(seconds[1]) >= 3
            if count == 1 and (enough or tried > 2.0):
                break
    run.state.restore(before, run.parallel, run.context)
    several, one = (median(each) for each in seconds.values())
    if several < 1.1 * one:
        torch.set_num_threads(threads)
        return None
    torch.set_num_threads(1)
    return (
        f"One CPU thread is faster here: a step took {milliseconds(one)} with it, and "
        f"{milliseconds(several)} with {threads}. {ONE_THREAD}"
    )


def first_batches(batches: Batches) -> Generator[tuple[Tree, Tree], None, None]:
    """The batches of the first epoch, repeated without end."""
    while True:
        yield from batches.epoch(0)
