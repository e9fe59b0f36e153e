"""Profiling: traces of a few steps, their costliest operations, and what bounds a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from ninefold.engine.parallel import RankContext
from ninefold.files import write_text
from ninefold.tree import Tree

STEPS = 5  # recorded, after one that is not
ROWS = 10  # of the table: operations
SELF = {"cpu": "self_cpu_time_total", "cuda": "self_device_time_total"}  # what it is sorted by
BATCH, STEP = "batch", "training step"  # what a recorded step consists of
SENT = ("gloo:", "nccl", "c10d::", "record_param_comms")  # names of communicating operations
# Events that enclose operators or wait for them. (A compiled region has no operators.)
ENCLOSING = ("autograd::engine", "torch::autograd::", "TorchDynamo", "DistributedDataParallel")
Intervals = list[tuple[float, float]]
# Another CUPTI in LD_LIBRARY_PATH, missing privileges, WSL and a second profiler hide kernels.
BLIND = "The profiler saw no kernels of the GPU (CUPTI): what bounds the run is not known."
BOUND = {
    "data": "data: gathering and preparing batches",
    "host": "the host: Python, and calling operators",
    "device": "the device: its operators at work",
    "communication": "communication between processes, waiting for the slowest included",
}


class Profile:
    """Records steps to rank*.pt.trace.json.gz in `folder`, for TensorBoard and Perfetto.

    data: share of the recorded time in which batches were made ready.
    compute: share of the rest in which operators ran.
    communication: share of the rest in which processes communicated and no operator ran.
    table: torch's, of the costliest operations by their own time.
    """

    def __init__(self, folder: Path, context: RankContext) -> None:
        self._folder = folder
        self._context = context
        self.compute = self.communication = self.data = 0.0
        self.table = ""

    def record(
        self, batches: Iterator[tuple[Tree, Tree]], step: Callable[[Tree, Tree], object]
    ) -> None:
        """Take STEPS + 1 steps. Every process must call it."""
        on_gpu = [ProfilerActivity.CUDA] * (self._context.device.type == "cuda")
        if not on_gpu:
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # no warning about a missing GPU
        with profile(
            activities=[ProfilerActivity.CPU, *on_gpu],
            schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1),
            on_trace_ready=self._save,
            acc_events=True,
        ) as profiler:
            for number in range(1 + STEPS):
                with record_function(BATCH):
                    inputs, targets = next(batches)
                with record_function(STEP):
                    step(inputs, targets)
                if number == STEPS:
                    self._context.synchronize()
                profiler.step()
        self.see(profiler.events() or ())
        costs = profiler.key_averages()
        self.table = costs.table(sort_by=SELF[self._context.device.type], row_limit=ROWS)
        if self._context.rank == 0:
            write_text(self._folder / "table.txt", self.table)

    def summary(self, phases: Mapping[str, float]) -> list[str]:
        """The table, where the traces are, and what bounds the run; phases: see Clock."""
        whole = sum(phases.values()) if "forward" in phases else 0.0  # replays have none
        data = (phases["data"] + phases["transfer"]) / whole if whole else self.data
        blind = self._context.device.type == "cuda" and not self.compute + self.communication
        return [
            *self.table.splitlines(),
            f"traces of {STEPS} steps in {self._folder}, for TensorBoard or ui.perfetto.dev",
            BLIND if blind else bound(data, self.compute, self.communication),
        ]

    def _save(self, profiler: Any) -> None:
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"rank{self._context.rank}.pt.trace.json.gz"
        path.unlink(missing_ok=True)  # torch would follow a link that somebody left there
        profiler.export_chrome_trace(str(path))

    def see(self, events: Iterable[Any]) -> None:
        """Compute the shares from the recorded events, whose times are microseconds."""
        spans: dict[str, Intervals] = {BATCH: [], STEP: []}
        operators: Intervals = []
        sent: Intervals = []
        for event in events:
            interval = (event.time_range.start, event.time_range.end)
            on_host = event.device_type == torch.autograd.DeviceType.CPU
            if on_host and event.name in spans:
                spans[event.name].append(interval)
            elif on_host != (self._context.device.type == "cpu"):
                continue  # with a GPU, the host's operators only launch kernels
            elif event.name.startswith(SENT):  # gloo's are annotations
                sent.append(interval)
            elif not event.is_user_annotation and not event.name.startswith(ENCLOSING):
                operators.append(interval)
        begin = min((start for start, _ in spans[BATCH]), default=0.0)
        end = max((end for _, end in [*spans[STEP], *operators]), default=0.0)
        in_batches = union(spans[BATCH])
        window = max(end - begin - length(in_batches), 1e-9)
        busy = without(union(operators), in_batches)
        self.data = length(in_batches) / max(end - begin, 1e-9)
        self.compute = min(1.0, length(busy) / window)
        waited = without(without(union(sent), in_batches), busy)
        self.communication = min(1 - self.compute, length(waited) / window)


def bound(data: float, compute: float, communication: float) -> str:
    """One sentence on what bounds a run.

    data: share of a step in which its batch is gathered, prepared and transferred.
    compute, communication: shares of the rest, see Profile. What remains is the host's.
    """
    rest = 1 - data
    shares = {"data": data, "device": rest * compute, "communication": rest * communication}
    shares["host"] = max(0.0, 1 - sum(shares.values()))
    order = sorted(shares, key=lambda name: -shares[name])
    listed = ", ".join(f"{name} {shares[name]:.0%}" for name in order)
    return f"The run is bound by {BOUND[order[0]]} ({listed} of a step)."


def union(intervals: Intervals) -> Intervals:
    """Return the same times as disjoint intervals, in order."""
    found: Intervals = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def without(these: Intervals, those: Intervals) -> Intervals:
    """The parts of `these` outside all of `those`; both disjoint and in order."""
    found: Intervals = []
    for start, end in these:
        for other_start, other_end in those:
            if other_start < end and other_end > start:
                if other_start > start:
                    found.append((start, other_start))
                start = other_end
        if start < end:
            found.append((start, end))
    return found


def length(intervals: Intervals) -> float:
    """Total length of the intervals."""
    return sum(end - start for start, end in intervals)
