"""What starting costs: a command, nine runs."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import OURS, Bench, Row, Turns, at_most, ratio

ROOT = Path(__file__).parents[1]
TRAIN = str(ROOT / "train.py")
# Everything of a run, but one step of training and the evaluation of 360 digits.
SHORT = ["epochs=1", "max_steps=1", "log_every=1", "launch.cpu_processes=1"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
# The least that a cell in processes of its own does: a group, a model, a step.
# It leaves at once: torn down beside its group, one in some twenty processes ends in "terminate".
RAW = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(64, 64)).sum().backward()
optimizer.step()
dist.destroy_process_group()
os._exit(0)
"""


def run(*command: str, delay: float = 0.0, **environment: str) -> float:
    """Run python with `command`, `delay` seconds late; returns how long it took."""
    began = time.perf_counter()
    time.sleep(delay)
    subprocess.run(
        [sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )  # fmt: skip
    return time.perf_counter() - began


@contextmanager
def folders() -> Iterator[Callable[[], Path]]:
    """A call that gives a new folder each time; they are gone afterwards."""
    with tempfile.TemporaryDirectory() as root:
        yield lambda: Path(tempfile.mkdtemp(dir=root))


def first_step(*command: str, folder: Path) -> float:
    """Seconds from the start of python with `command` to the first line of metrics in `folder`."""
    metrics, began = folder / "metrics.jsonl", time.perf_counter()
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL)
    while not (metrics.exists() and metrics.stat().st_size):
        assert process.poll() is None, "it ended without a step"
        time.sleep(0.002)
    took = time.perf_counter() - began
    assert process.wait() == 0
    return took


@contextmanager
def launches(handicap: bool) -> Iterator[Turns]:
    slow = ["clock.warmup=1000"] if handicap else []
    with folders() as new:
        script = new() / "raw.py"
        script.write_text(RAW)

        def launch() -> float:
            folder = new()
            where = f"hydra.run.dir={folder}"
            return first_step(TRAIN, *SHORT, *slow, where, folder=folder)

        # What torchrun sets by itself, with a warning.
        theirs = functools.partial(run, *TORCHRUN, "1", str(script), OMP_NUM_THREADS="1")
        yield {OURS: launch, "torchrun": theirs}


@contextmanager
def nine(handicap: bool) -> Iterator[Turns]:
    def sweep() -> float:
        folder = new()
        study = ("experiments=nine_way", "study.ask=[score]", "seed=0")
        wall = run(TRAIN, *study, f"hydra.sweep.dir={folder}", delay=10.0 * handicap)
        found = [json.loads(path.read_text()) for path in folder.glob("*/result.json")]
        return wall / sum(each["train_seconds"] + each["evaluate_seconds"] for each in found)

    with folders() as new:
        yield {OURS: sweep}


BENCHES = [
    Bench(
        "start",
        "ninefold: train.py to the first line of its metrics, one process; torchrun: a bare script "
        "of one DDP step on a linear layer, from start to end.",
        launches,
        [Row("launch to the first step", "torchrun", ratio(OURS, "torchrun"))],
    ),
    Bench(
        "nine-cells",
        "Whole runs of the nine cells of experiments=nine_way, one seed: the command's time over "
        "the sum of its runs' training and evaluation.",
        nine,
        [
            Row(
                "nine cells", "their training and evaluation", lambda figures: figures[OURS],
                at_most(1.25),
            )
        ],
        pairs=3,
    ),
]  # fmt: skip
