"""Trains in short turns, while other runs that are compared with this one are paused.

The launcher says when, see launch.turns. Between turns a process waits for its next message with an
idle device, at a step boundary; the launcher stops it meanwhile (SIGSTOP, on Linux), and with it
the threads and processes that read its data. What is trained is thrown away: only its time is
recorded.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import torch

from ninefold.config.spec import RunSpec
from ninefold.engine.amp import has_tf32
from ninefold.engine.divergence import mean_loss
from ninefold.engine.loop import stepper
from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.none import Single
from ninefold.engine.training import Step
from ninefold.machine import WSL, available_memory
from ninefold.measure.devices import disturbances
from ninefold.result import BEHIND, Result
from ninefold.signals import Stop
from ninefold.train import build
from ninefold.train.run import announce, conditions, facts, in_epochs
from ninefold.train.training_run import TrainingRun
from ninefold.tree import Tree
from ninefold.waits import poll_until

HOST, GPU = "host", "gpu"  # whose memory is meant

# The launcher sees a process that hangs, and how long one is stopped between turns is not bounded:
# NCCL's watchdog would count that time as the collective's that was last.
NO_LIMIT = {"parallel.timeout": 1e7}  # seconds

WITHOUT_FILES: dict[str, Any] = {
    "logger": {}, "numerics": None, "profile": False, "checkpoint.every": None,
}  # fmt: skip


def take_turns(spec: RunSpec) -> None:
    """Build the run of `spec` and train whenever the launcher says so, which writes result.json.

    The launcher sends {lead, steps, counted} for a turn: `lead` untimed, then `steps` timed ones,
    which enter the result if `counted`. The answer has the seconds of one of these, and whether its
    GPU waits for the host so far. To {}, which is last, rank 0 answers with the result, without
    what the turns took, the others with their notes on what disturbed them. Then it waits until the
    launcher ends the process. Raises Failure.
    """
    launcher = spec.launcher
    assert launcher is not None
    with build.running(
        spec.job_yaml,
        spec.folder,
        Stop(),
        changes={**WITHOUT_FILES, **NO_LIMIT},
        cache=spec.cache,
        evaluates=spec.evaluates,
    ) as run:
        context = run.context
        notes = facts(spec, run)
        if context.rank == 0:
            announce(run, notes)
        run.forward.train()
        step = repeated(run, stepper(run))
        run.warmup.enough = 1.0  # seconds
        run.before_training(step)
        batches = endless(run)
        steps, disturbed = 0, list[str]()
        context.synchronize()
        if context.device.type == "cuda":
            # Until NCCL's watchdog, which looks every 0.1 s, has seen the end of what is in flight.
            poll_until(lambda: False, 0.2)
        launcher.send(ready(run))
        while "steps" in (message := launcher.recv()):
            take(run, step, batches, message["lead"])
            began, before = time.time(), run.clock.seconds
            run.clock.start()
            take(run, step, batches, message["steps"])
            run.clock.stop()
            seconds = run.clock.seconds - before
            disturbed = [*dict.fromkeys([*disturbed, *disturbances(context.gpus, began)])]
            if message["counted"]:
                steps += message["steps"]
            behind = run.clock.behind
            waits = behind is not None and behind < BEHIND
            launcher.send({"seconds": seconds / message["steps"], "waits": waits})
        result = Result(
            status="ok",
            **conditions(spec, run, [*notes, *disturbed]),
            epochs=in_epochs(steps, run.batches.steps_per_epoch),
            steps=steps,
            total_seconds=time.time() - spec.started,
            phase_seconds=run.clock.phase_seconds(steps),
            phase_sampled_steps=run.clock.sampled_steps,
            gpu_behind=run.clock.behind,
        )
        launcher.send(result if context.rank == 0 else disturbed)
        launcher.recv()  # until the launcher kills this process


def ready(run: TrainingRun) -> dict[str, Any]:
    """What the launcher is told when this process waits for its first turn.

    stoppable: whether it may be stopped meanwhile. free, taken: see `free_memory` and
    `taken_memory`. processes: ids of this one and of those that read for it; workers: how many
    these are. step_seconds: of a warm-up step. alone: whether it does what one process without a
    strategy does. computes: of runs of one strategy, those that have the same of these repeat each
    other's work.
    """
    children = [child.pid for child in multiprocessing.active_children()]
    amp, device = run.amp, run.context.device
    return {
        "stoppable": make_stoppable(),
        "free": free_memory(run.context),
        "taken": taken_memory(run.context),
        "processes": [os.getpid(), *filter(None, children)],
        "workers": len(children),
        "step_seconds": run.warmup.step_seconds,
        "alone": isinstance(run.parallel, Single) or run.parallel.no_op(run.context),
        "computes": (
            *(amp.dtype, amp.weights, amp.full_float32(device)),
            *(bool(amp.tf32) and has_tf32(device), amp.scaler and amp.dtype == "float16"),
        ),
    }


def take(run: TrainingRun, step: Step, batches: Iterator[tuple[Tree, Tree]], count: int) -> None:
    """Take `count` steps."""
    for inputs, targets in islice(batches, count):
        step(inputs, targets)
        run.clock.end_step()
        run.state.step += 1
        run.after_step()


def repeated(run: TrainingRun, step: Step) -> Step:
    """`step`, before which the schedule of learning rates begins again where the job would end.

    Turns go on beyond the steps that a schedule was made for: OneCycleLR would refuse to.
    """
    groups = run.state.optimizer.param_groups
    began = copy.deepcopy((run.state.schedule.state_dict(), [group["lr"] for group in groups]))

    def next_step(inputs: Tree, targets: Tree) -> None:
        if run.state.step and run.state.step % max(run.last_step, 1) == 0:
            schedule, rates = copy.deepcopy(began)
            run.state.schedule.load_state_dict(schedule)
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
        step(inputs, targets)

    return next_step


def endless(run: TrainingRun) -> Iterator[tuple[Tree, Tree]]:
    """The batches of all epochs to come, however many are asked for.

    After each epoch, as in training, the scheduler steps and the losses are read, with the clock
    paused. Every process must use it alike. Raises NumericsError.
    """
    clock, state, batches = run.clock, run.state, run.batches
    while True:
        epoch, position = divmod(state.step, batches.steps_per_epoch)
        yield from batches.epoch(epoch, position, clock.begin_step, clock.mark)
        with clock.paused():
            state.schedule.end_epoch(mean_loss(run))
            state.losses.start_epoch()


def make_stoppable() -> bool:
    """Move this process and its data workers to a group that may be stopped; False if it may not.

    NCCL has nothing in flight between turns, so a pause looks like no hang to its watchdog. The
    group of the command must not have stopped processes: if its shell ended, the kernel would send
    it SIGHUP. Only on Linux does a stopped process end with a launcher that is killed.
    """
    if sys.platform != "linux":
        return False
    os.setpgid(0, 0)
    for child in multiprocessing.active_children():
        assert child.pid is not None
        with suppress(PermissionError):  # of a user's class, and not forked
            os.setpgid(child.pid, os.getpid())
    return True


def taken_memory(context: RankContext) -> dict[str, int]:
    """Bytes that this process has taken at most on one of its GPUs, CUDA's context included."""
    context_bytes = 2**29
    reserved = [torch.cuda.max_memory_reserved(index) for index in context.gpus]
    return {GPU: context_bytes + max(reserved)} if reserved else {}


def free_memory(context: RankContext) -> dict[str, int]:
    """Bytes that are free on the host, and on the GPU of this process that has least, if known.

    Under WSL a fifth of a GPU is not counted: Windows does not refuse what exceeds it, it swaps.
    """
    kept = 0.2 if os.path.exists(WSL) else 0.0
    host, gpus = available_memory(), map(torch.cuda.mem_get_info, context.gpus)
    found = {} if host is None else {HOST: host}
    if left := [int(free - kept * total) for free, total in gpus]:
        found[GPU] = min(left)
    return found
