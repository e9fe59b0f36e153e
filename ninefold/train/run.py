"""A training run in a worker: from the frozen job to result.json."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from ninefold.config.spec import RunSpec
from ninefold.engine import loop
from ninefold.engine.amp import has_tf32, in_tf32
from ninefold.engine.evaluation import Evaluations
from ninefold.engine.parallel import RankContext, device_names, gather
from ninefold.measure.environment import environment
from ninefold.numbers import counted
from ninefold.progress import say
from ninefold.result import Result, identity
from ninefold.signals import Stop
from ninefold.train import build, kernels
from ninefold.train.training_run import TrainingRun, closing

SELECTED_ON_TEST = (
    "best.pt and patience were selected on the test set: dataset.val=0.1 keeps a validation split."
)


def train(spec: RunSpec, stop: Stop) -> None:
    """Train until the end or until a signal; rank 0 writes result.json. Raises Failure."""
    with build.running(
        spec.job_yaml, spec.folder, stop, resume=spec.resume, cache=spec.cache
    ) as run:
        if run.context.device.type == "cuda":  # processes queue steps, and so run ahead of others
            stop.only_at_log_points()
        notes = facts(spec, run)
        began_at = run.state.step
        if spec.resume:
            run.write_job = spec.write_job
        if run.context.rank == 0:
            announce(run, notes)
        with closing(run):
            evaluations = loop.train(run)
            run.writer.wait()
            result = ended(spec, run, notes, evaluations, began_at)
            if run.context.rank != 0:
                return
            before = Result.of_end(spec.folder)
            if run.state.step == began_at and before is not None and before.steps == result.steps:
                run.result = before  # it has the timings of the segment that trained
                return
            for line in timing_lines(run):
                say(line)
            result.write(spec.folder)
            run.result = result


def facts(spec: RunSpec, run: TrainingRun) -> list[str]:
    """Sentences about what is a no-op, or not comparable with other cells, at this place."""
    context, job = run.context, run.job
    wanted = build.wanted_format(job)
    if kernels.channels_last(job.dataset.shape) == kernels.CONTIGUOUS:
        wanted = run.layout  # of inputs that are no images there is no other
    found = [
        *spec.notes,
        *run.notes,
        *run.parallel.notes(context),
        *run.amp.notes(context.device),
        *kernels.compile_notes(job.compile.mode, context.device),
        *kernels.notes(wanted, run.layout, job.cudnn_benchmark, context, run.parallel.shards),
    ]
    if run.mean_loss is False:
        found.append(
            "The loss of a batch is not the mean of the losses of its parts: this run trains on "
            "other gradients than the whole batch gives at once."
        )
    if context.local_size > job.threads:
        found.append(
            f"{context.local_size} processes have a CPU thread each, where one process "
            f"would have {job.threads}: this configuration has more of them than others."
        )
    elif context.device.type == "cpu" and context.local_size > 1:
        found.append(
            f"{context.local_size} processes share the {job.threads} CPU threads that one process "
            "would have."
        )
    return found


def conditions(spec: RunSpec, run: TrainingRun, notes: list[str]) -> dict[str, Any]:
    """The fields of a result that say under which conditions it was measured.

    Every process must call it; rank 0's is complete.
    """
    context, job, amp = run.context, run.job, run.amp
    threads = run.parallel.all_reduce_sum(
        torch.tensor(torch.get_num_threads(), device=context.device)
    )
    rounded = in_tf32(context.device)
    lacks_tf32 = context.device.type == "cuda" and not has_tf32(context.device)
    return {
        **identity(job.choices, job),
        "dtype": amp.dtype,
        "weights": amp.weights,
        "grad_scaler": amp.scaler,
        "tf32": rounded["products"],
        "tf32_convolutions": None if lacks_tf32 else rounded["convolutions"],
        "memory_format": run.layout,
        "cudnn_benchmark": torch.backends.cudnn.benchmark and context.device.type == "cuda",
        "processes": context.world_size,
        "hosts": max(1, len(spec.hosts)),
        "replicas": context.replicas,
        "chunks": run.parallel.chunks,
        "no_op": run.parallel.no_op(context),
        "backend": dist.get_backend() if dist.is_initialized() else None,
        "devices": device_names(context),
        "threads": int(threads),
        "loader_workers": run.loading.workers,
        "resident_bytes": run.loading.resident,
        "random_inputs": run.random_inputs,
        "mean_loss": run.mean_loss,
        "batch_size": job.batch_size,
        "units": run.counted.name,
        "units_per_example": run.counted.per_example,
        "planned_epochs": in_epochs(run.last_step, run.batches.steps_per_epoch),
        "score_name": run.score.name,
        "score_unit": run.score.unit,
        "score_better": run.score.better,
        "score_margin": run.score.margin,
        "compile_seconds": run.warmup.compile_seconds,
        "peak_memory_bytes": peak_memory(run),
        "load": load_of_devices(run),
        "notes": notes,
        "overrides": spec.overrides,
        "environment": environment_of(spec, context) if context.rank == 0 else {},
    }


def environment_of(spec: RunSpec, context: RankContext) -> dict[str, Any]:
    """The environment of rank 0, and the hosts of all ranks."""
    found = environment(context.world_size, context.gpus)
    return {**found, "hosts": spec.hosts} if spec.hosts else found


def ended(
    spec: RunSpec, run: TrainingRun, notes: list[str], evaluations: Evaluations, began_at: int
) -> Result:
    """The result of a run that has ended. Every process must call it; rank 0's is complete.

    evaluations: the last ones. began_at: the step at which this process began or resumed.
    """
    context, clock, steps = run.context, run.clock, run.state.step
    evaluation, val = evaluations.test, evaluations.val
    if val is None:
        notes.append(SELECTED_ON_TEST)
    known = conditions(spec, run, notes)
    if spec.shares_process and context.device.type == "cpu":
        known["peak_memory_bytes"] = []
        why = "its process ran other jobs too (launch.inline=true in a sweep)"
        notes.append(f"Its peak memory is not known: {why}.")
    elif steps == began_at > 0:
        known["peak_memory_bytes"] = []
        notes.append("It was resumed at its end: its peak memory and phases are not known.")
    per_epoch = run.batches.steps_per_epoch
    partial = clock.seconds - sum(run.state.epoch_seconds)
    return Result(
        status="ok",
        **known,
        epochs=in_epochs(steps, per_epoch),
        steps=steps,
        skipped_steps=int(run.state.scaler.skipped),
        score=evaluation.score,
        best_score=run.state.best_score if run.state.best_step else evaluations.selecting.score,
        test_loss=evaluation.loss,
        test_count=evaluation.count,
        scores=evaluation.scores.figures,
        figures=evaluation.scores.kinds,
        selection="test" if val is None else "val",
        val_score=None if val is None else val.score,
        val_loss=None if val is None else val.loss,
        val_count=None if val is None else val.count,
        train_seconds=clock.seconds,
        evaluate_seconds=run.state.evaluate_seconds,
        total_seconds=time.time() - spec.started,
        epoch_seconds=run.state.epoch_seconds + [partial] * bool(steps % per_epoch),
        examples_per_second=steps * run.batch_size / clock.seconds if clock.seconds else None,
        phase_seconds=clock.phase_seconds(steps),
        phase_sampled_steps=clock.sampled_steps,
        gpu_behind=clock.behind,
    )


def announce(run: TrainingRun, notes: list[str]) -> None:
    """Print and log the settings in force."""
    context, job, amp = run.context, run.job, run.amp
    named = identity(job.choices, job)
    scaler = ", GradScaler enabled" if amp.scaler else ""
    tf32 = "".join(f", TF32 {what}" for what, is_so in in_tf32(context.device).items() if is_so)
    parameters = sum(p.numel() for p in run.state.model.parameters())
    lines = [
        f"parallel={job.choices.parallel}: {counted(context.world_size, 'process', 'processes')}, "
        f"{counted(context.replicas, 'replica')} on "
        f"{', '.join(sorted(set(device_names(context))))}, "
        f"{counted(torch.get_num_threads(), 'CPU thread')} each",
        f"amp={job.choices.amp}: {amp.dtype}{tf32}{scaler}",
        f"dataset={named['dataset']}  model={named['model']} ({parameters:,} parameters)  "
        f"batch {job.batch_size}  steps {run.state.step} to {run.last_step}",
        *(f"note: {note}" for note in notes),
    ]
    if run.loading.workers or run.loading.resident:
        lines.append(str(run.loading))
    if job.compile.mode is not None:
        lines.insert(2, f"compile={job.compile.mode}: in the first warm-up steps, then training")
    for line in lines:
        say(line)


def timing_lines(run: TrainingRun) -> list[str]:
    """Lines about compilation and the profile, after the run."""
    lines = []
    if run.warmup.compile_seconds is not None:
        lines.append(f"compiled in {run.warmup.compile_seconds:.1f} s, outside the training time")
    if run.left_out:
        lines.append(
            f"checkpoints left out, as the one before was still being written: {run.left_out}"
        )
    if run.warmup.profile is not None:
        lines += run.warmup.profile.summary(run.clock.phase_seconds(run.state.step))
    return lines


def in_epochs(steps: int, per_epoch: int) -> float:
    """Steps as epochs; an int if they are whole."""
    return steps / per_epoch if steps % per_epoch else steps // per_epoch


def peak_memory(run: TrainingRun) -> list[int]:
    """Bytes: the allocator's peak on each GPU, or each process's peak resident set on a CPU.

    On a GPU that of training, without evaluations.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return list(map(int, of_all_devices(run, run.memory.bytes(), resident)))


def load_of_devices(run: TrainingRun) -> list[float]:
    """Load of each device of this run, see Result; empty if that of one is not known.

    Every process must call it.
    """
    found = of_all_devices(run, run.load.gpus, run.load.cpu)
    return [] if any(map(math.isnan, found)) else found


def of_all_devices(run: TrainingRun, gpus: Iterable[float], cpu: float) -> list[float]:
    """A number for each device of the run, by ranks; `gpus` and `cpu` are for this process's."""
    of_gpus = iter(gpus)
    mine = [next(of_gpus) if device.type == "cuda" else cpu for device in run.context.devices]
    values = torch.tensor(mine, dtype=torch.float64, device=run.context.device)
    return [float(value) for value in gather(values, run.parallel, run.context).flatten()]
