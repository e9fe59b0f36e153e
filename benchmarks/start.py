"""What starting costs: a command, a cell of a sweep, a job of two ranks, nine runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks.measure import OURS, Array, Bench, Figures, Row, Turns, at_most, ratio

ROOT = Path(__file__).parents[1]
TRAIN = str(ROOT / "train.py")
# Everything of a run, but one step of training and the evaluation of 360 digits.
SHORT = ["epochs=1", "max_steps=1", "log_every=1"]
CELLS = 3  # of a sweep, the first of which is its start
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
# A sweep in which all is done for each run but running it.
EXPAND = """
import runpy, sys
from ninefold.launch import run
from ninefold.result import Result
from ninefold.study import sweep
done = {"accuracy": 0.0, "best_accuracy": 0.0, "train_seconds": 0.0, "total_seconds": 0.0}
run.start = lambda spec, job: Result("ok", **done).write(spec.folder)
sweep.finish = lambda *_: None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
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


def ends(sweep: Path) -> list[float]:
    """When each run of a sweep wrote its result, in order."""
    return sorted(path.stat().st_mtime for path in sweep.glob("*/result.json"))


def cells(processes: int) -> Callable[[bool], AbstractContextManager[Turns]]:
    @contextmanager
    def contestants(handicap: bool) -> Iterator[Turns]:
        cell = [*SHORT, f"launch.cpu_processes={processes}"]
        cell += ["parallel=ddp"] if processes > 1 else []
        slow = ["clock.warmup=1000"] if handicap else []
        with folders() as new:
            script = new() / "raw.py"
            script.write_text(RAW)

            def a_cell() -> float:
                sweep, seeds = new(), ",".join(map(str, range(CELLS)))
                run(TRAIN, "-m", *cell, *slow, f"seed={seeds}", f"hydra.sweep.dir={sweep}")
                times = ends(sweep)
                assert len(times) == CELLS
                return (times[-1] - times[0]) / (CELLS - 1)

            def launch() -> float:
                folder = new()
                return first_step(TRAIN, *cell, f"hydra.run.dir={folder}", folder=folder)

            yield {
                OURS: a_cell,
                # What torchrun sets by itself, with a warning.
                "torchrun": lambda: run(
                    *TORCHRUN, str(processes), str(script), OMP_NUM_THREADS="1"
                ),
                **({"launch": launch} if processes == 1 else {}),
            }

    return contestants


@contextmanager
def nine(handicap: bool) -> Iterator[Turns]:
    later: list[float] = []

    def sweep() -> float:
        folder = new()
        wall = run(
            TRAIN, "experiments=nine_way", "study.ask=[accuracy]", "seed=0",
            f"hydra.sweep.dir={folder}",
            delay=10.0 * handicap,
        )  # fmt: skip
        results = sorted(folder.glob("*/result.json"), key=lambda path: path.stat().st_mtime)
        found = [json.loads(path.read_text()) for path in results]
        busy = [result["train_seconds"] + result["evaluate_seconds"] for result in found]
        times = ends(folder)
        later.append((times[-1] - times[0]) / sum(busy[1:]))
        return wall / sum(busy)

    with folders() as new:
        # Of the sweep before: it costs no sweep of its own.
        yield {OURS: sweep, "later": lambda: later[-1]}


@contextmanager
def look(handicap: bool) -> Iterator[Turns]:
    yield {
        OURS: lambda: run(TRAIN, "--cfg", "job", delay=2.0 * handicap),
        "import torch": lambda: run("-c", "import torch"),
    }


@contextmanager
def expand(handicap: bool) -> Iterator[Turns]:
    with folders() as new:
        seeds = "seed=range(100)"
        yield {
            OURS: lambda: run(
                "-c", EXPAND, TRAIN, "-m", seeds, f"hydra.sweep.dir={new()}", delay=4.0 * handicap
            )
        }


def figure(name: str) -> Callable[[Figures], Array]:
    return lambda figures: figures[name]


OF_A_CELL = (
    f"ninefold: from one result to the next in a sweep of {CELLS} runs of one step and an "
    "evaluation on the digits; launch: train.py to the first line of its metrics; torchrun: a bare "
    "script of one DDP step on a linear layer, from start to end."
)
BENCHES = [
    Bench(
        "start",
        f"{OF_A_CELL} One process.",
        cells(1),
        [
            Row("a cell of a sweep", "torchrun", ratio(OURS, "torchrun"), at_most(0.25)),
            Row("launch to the first step", "torchrun", ratio("launch", "torchrun")),
        ],
    ),
    Bench(
        "start-two",
        f"{OF_A_CELL} Two processes, gloo.",
        cells(2),
        [Row("a cell of two ranks", "torchrun", ratio(OURS, "torchrun"), at_most(0.25))],
    ),
    Bench(
        "nine-cells",
        "Whole runs of the nine cells of experiments=nine_way, one seed: the command's time over "
        "the sum of its runs' training and evaluation; and from the first result to the last, over "
        "that of the eight runs between.",
        nine,
        [
            Row("nine cells", "their training and evaluation", figure(OURS), at_most(1.25)),
            Row(
                "nine cells, once started", "their training and evaluation", figure("later"),
                at_most(1.25),
            ),
        ],
        pairs=3,
    ),
    Bench(
        "look",
        "python train.py --cfg job; python -c 'import torch'.",
        look,
        [Row("--cfg job", "import torch", ratio(OURS, "import torch"), at_most(0.35))],
    ),
    Bench(
        "expand",
        "python train.py -m seed=range(100), all but running them: composed, checked, frozen, "
        "their folders written.",
        expand,
        [Row("expanding a sweep of 100 runs", "-", figure(OURS), at_most(3), "s")],
    ),
]  # fmt: skip
