"""A sitting on a GPU: the study, the tests, bench, a turn and a cure against what they predict.

    python -m benchmarks.gpu [1 | 2 | 3 | 4 | PART ...] [--output FOLDER] [--rehearse] [--list]

The numbers are calls for a machine that is lent for 600 or 300 seconds at a time: a part that
has no time left is told and not begun. Without a number all parts run. Each part has a limit of its
own, and what it found is a line of FOLDER/gpu.jsonl as soon as it ends, with each figure that has a
published or an expected value held against it. FOLDER/found.tgz has that file, the logs and the
reports of studies. FOLDER is $OUT, or outputs/gpu. `--rehearse` runs all of it at tiny size on
whatever device there is, to see that each command still is one. No network is used: what a machine
with torch lacks is installed from .gpu/, see docs/internals/performance.md.
Exit code 0 if each part ended well and all is as expected, else 1; of a rehearsal, the first alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
CALLS = {
    "1": 590.0,
    "2": 140.0,
    "3": 590.0,
    "4": 290.0,
}  # seconds of a call, ten less than it is lent for
LEAST = 10.0  # seconds without which no part is begun
GRACE = 5.0  # seconds from SIGTERM to SIGKILL at a limit
KEPT = 30  # lines of a command's output on the screen; its log has all
ALONE = 40.0  # seconds that a cell trains with nothing beside it
FOUND = "gpu.jsonl"
PACK = ROOT / ".gpu"  # wheels of what a machine with torch lacks, and the commit
PACKED = ("hydra-core", "omegaconf", "antlr4-python3-runtime", "msgspec")
REHEARSED = ("tests/test_amp.py", "tests/checkpoint/test_writer.py")  # of the tests for a GPU
WATCH = ("nvidia-smi", "--query-gpu=timestamp,power.draw,clocks.sm,temperature.gpu",
         "--format=csv", "-lms", "500")  # fmt: skip
# milabench: images per second of convnext_large under float16 by GPU, with the batch size.
CONVNEXT = {"H200": (128, 738), "H100": (64, 657)}
# What is trained on a GPU: the published AlexNet, and ResNet-18 at a batch that fills it.
RANDOM = ("dataset=synthetic", "dataset.test_count=512", "checkpoint.every=null")
ALEXNET = ("model=alexnet", "model.net.num_classes=1000", "optimizer=adamw", "batch_size=64",
           "dataset.train_count=12800", *RANDOM)  # fmt: skip
RESNET = ("model=resnet18", *RANDOM)
SMALL = ("model=convnet", "model.net.width=8", "dataset=synthetic", "dataset.shape=[1,8,8]",
         "dataset.test_count=32", "checkpoint.every=null")  # fmt: skip

AMPS = "amp=fp32,autocast,scaler"

Figures = dict[str, Any]
Commands = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Expected:
    """The bounds of a figure, and what it means that it is outside."""

    figure: str
    low: float = -math.inf
    high: float = math.inf
    means: str = "see the log"

    def verdict(self, figures: Mapping[str, Any]) -> str:
        if (value := figures.get(self.figure)) is None:
            return "not measured"
        within = self.low <= value <= self.high
        return "as expected" if within else f"not as expected: {self.means}"

    def __str__(self) -> str:
        return f"{self.low:.4g} to {self.high:.4g}"


def same(figure: str, within: float, means: str) -> Expected:
    return Expected(figure, 1 - within, 1 + within, means)


def works(figure: str = "exit code", means: str = "see the log") -> Expected:
    return Expected(figure, 0, 0, means)


@dataclass
class Sitting:
    """What the parts run with.

    output: a folder for what comes back. scratch: one for the rest, which stays on the machine.
    tiny: a rehearsal. until: time.monotonic() at which the call ends.
    before: figures of the parts before.
    deadline, log, figures: of the part that runs; it puts what it finds into `figures`.
    """

    output: Path
    scratch: Path
    tiny: bool
    until: float
    before: dict[str, Figures] = field(default_factory=dict)
    deadline: float = math.inf
    log: Path = field(default_factory=Path)
    figures: Figures = field(default_factory=dict)

    def size(self, full: Any, tiny: Any) -> Any:
        return tiny if self.tiny else full

    def job(self, *overrides: str) -> tuple[str, ...]:
        """What is trained: 200 steps an epoch of AlexNet, where the overrides name nothing else."""
        full = overrides or ALEXNET
        return tuple(self.size(full, (*SMALL, "dataset.train_count=64", "batch_size=16")))

    def run(self, *command: str, limit: float = math.inf) -> tuple[int, str]:
        """Its exit code and output; it ends with its part at most. Raises TimeoutError."""
        seconds = min(limit, self.deadline - time.monotonic())
        print(f"$ {shlex.join(command)}", flush=True)
        with self.log.open("ab+") as log:
            log.write(f"\n$ {shlex.join(command)}\n".encode())
            log.flush()  # before the command writes
            begin = log.tell()
            process = subprocess.Popen(
                command, cwd=ROOT, env=self.variables(), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(timeout=max(1.0, seconds))
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"it did not end within {seconds:.0f} s") from None
            finally:
                end(process)
                log.seek(begin)
                output = log.read().decode(errors="replace")
                print("\n".join(f"  {line}" for line in output.splitlines()[-KEPT:]), flush=True)
        return code, output

    def python(self, *arguments: str) -> tuple[int, str]:
        return self.run(sys.executable, *arguments)

    def inside(self, *words: str, limit: float = math.inf) -> Figures:
        """What a function of INSIDE returns in a process of its own; {} where it fails."""
        code, output = self.run(*self.command(*words), limit=limit)
        lines = [line for line in output.splitlines() if line.startswith("{")]
        return dict(json.loads(lines[-1])) if lines and not code else {}

    def command(self, *words: str, run: tuple[str, ...] = ()) -> tuple[str, ...]:
        words = ("--inside", *words, *["--rehearse"] * self.tiny)
        return (sys.executable, *run, "-m", "benchmarks.gpu", *words)

    def study(self, name: str, *overrides: str, ask: str = "time") -> Path | None:
        """Make a study and keep its report; returns its folder, None where there is no report."""
        folder = self.scratch / name
        common = (f"study.ask=[{ask}]", "study.pairs=all", "logger=quiet")
        where = f"hydra.sweep.dir={folder}"
        code, _ = self.python("train.py", "-m", *overrides, *common, where)
        self.figures[f"{name}: exit code"] = code
        if not (folder / "report" / "runs.csv").is_file():
            return None
        shutil.copytree(folder / "report", self.output / name, dirs_exist_ok=True)
        shutil.copy(folder / "sweep.json", self.output / name)
        for cell, seconds in steps_of(folder).items():
            self.figures[f"{name}, {cell}: ms"] = 1e3 * seconds
        groups = json.loads((folder / "sweep.json").read_text()).get("timing_groups")
        self.figures["groups"] = groups
        return folder

    def variables(self) -> dict[str, str]:
        old = os.environ
        path = [str(ROOT), str(self.scratch / "packages"), *old.get("PYTHONPATH", "").split(":")]
        more = {"PYTHONPATH": ":".join(filter(None, path)), "PYTHONUNBUFFERED": "1"}
        return {**old, **more, "PATH": f"{os.path.dirname(sys.executable)}:{old['PATH']}"}


def end(process: subprocess.Popen[bytes]) -> None:
    """End a command that still runs, and all of its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=GRACE)


class Part(NamedTuple):
    """A part of the sitting. own: `find` runs in a process of its own and returns figures."""

    name: str
    asks: str
    find: Callable[..., Any]
    call: str
    seconds: float
    expected: tuple[Expected, ...]
    own: bool


PARTS: list[Part] = []


def part(call: str, seconds: float, *expected: Expected, own: bool = False) -> Callable[..., Any]:
    """Add a function to the sitting; it may take so many seconds of its call."""

    def add(find: Callable[..., Any]) -> Callable[..., Any]:
        asks = str(find.__doc__).partition("\n")[0]
        PARTS.append(Part(find.__name__, asks, find, call, seconds, expected, own))
        return find

    return add


@part("1", 80, Expected("GPUs", 1, means="torch finds no GPU"))
def machine(sitting: Sitting) -> None:
    """What is this machine?"""
    with suppress(FileNotFoundError):
        sitting.run("nvidia-smi")
    if find_spec("hydra") is None:
        options = ("--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade")
        where = ("--target", str(sitting.scratch / "packages"), "--find-links", str(PACK))
        sitting.python("-m", "pip", "install", *options, *where, *PACKED)
    if not (ROOT / ".git").exists() and (PACK / "COMMIT").is_file():
        shutil.copy(PACK / "COMMIT", ROOT)  # see ninefold/measure/environment.py
    sitting.figures |= sitting.inside("device")


@part("1", 60, works(means="nothing runs: stop here"))
def one_run(sitting: Sitting) -> None:
    """Does a run end?"""
    steps, where = sitting.size(60, 4), f"hydra.run.dir={sitting.scratch / 'one'}"
    command = ("train.py", f"max_steps={steps}", "epochs=3", where)
    sitting.figures["exit code"], _ = sitting.python(*command)


@part(
    "1", 240, works("study: exit code"), Expected("groups", 1, 1, "small cells are not all alive"),
    same("dp over none, fp32", 0.02, "two that do the same differ"),
)  # fmt: skip
def study(sitting: Sitting) -> None:
    """What does the product say of the published nine, and does dp on one device tie with none?"""
    axes = (f"parallel={sitting.size('none,dp,ddp', 'none,dp')}", sitting.size(AMPS, "amp=fp32"))
    budget = f"study.time_budget={sitting.size(1.6, 0.25)}"
    folder = sitting.study("study", *axes, *sitting.job(), budget)
    if folder is not None:
        steps = steps_of(folder)
        if {"dp-fp32", "none-fp32"} <= steps.keys():
            sitting.figures["dp over none, fp32"] = steps["dp-fp32"] / steps["none-fp32"]
        answer = json.loads((folder / "report" / "report.json").read_text())["answer"]
        sitting.figures |= {key: answer[key] for key in ("lead", "caveats")}


def steps_of(folder: Path) -> dict[str, float]:
    """Seconds of a step of each cell of a study: the median of its turns."""
    turns: dict[str, list[float]] = {}
    with (folder / "report" / "runs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            taken = json.loads(row["turn_seconds"] or "[]")
            turns.setdefault(f"{row['parallel']}-{row['amp']}", []).extend(taken)
    return {cell: median(taken) for cell, taken in turns.items() if taken}


@part("1", 120, works())
def tests(sitting: Sitting) -> None:
    """Do the tests pass that need a GPU?"""
    options = ("-q", "-W", "default", "-p", "no:cacheprovider", "-m", "gpu", f"--rootdir={ROOT}")
    several = ("-n", "8") if find_spec("xdist") else ()
    files = sitting.size(gpu_tests(ROOT), REHEARSED)
    code, output = sitting.python("-m", "pytest", *options, *sitting.size(several, ()), *files)
    sitting.figures |= {"exit code": code, "pytest": output.strip().rpartition("\n")[2]}


def gpu_tests(root: Path) -> list[str]:
    """The files of `root` with tests for a GPU; others may import what a bare machine lacks."""
    folders = (root / name for name in ("tests", "examples", "extensions", "ninefold"))
    files = (file for folder in folders for file in folder.rglob("test_*.py"))
    return sorted(str(file) for file in files if "pytest.mark.gpu" in file.read_text())


@part("1", 70, Expected("fp32: ms", 0), Expected("bf16: ms", 0))
def truth(sitting: Sitting) -> None:
    """How long is a step of ResNet-50 in a plain loop?"""
    for dtype in ("fp32", "bf16"):
        found = sitting.inside("plain", dtype, "timed", limit=sitting.size(35, 70))
        sitting.figures[f"{dtype}: ms"] = found.get("ms")


@part(
    "1", 115, works(), same("copy over fp32", 0.02, "two copies differ"),
    *(same(f"{dtype} over the plain loop", 0.02, "the hook or the turns cost time")
      for dtype in ("fp32", "bf16")),
)  # fmt: skip
def bench(sitting: Sitting) -> None:
    """Does bench say what the plain loop takes, and that a copy is a copy?"""
    dtypes = {"fp32": "fp32", "copy": "fp32", "bf16": "bf16"}
    commands = {name: sitting.command("plain", dtype) for name, dtype in dtypes.items()}
    compared(sitting, "bench", sitting.size(1.5, 0.75), commands)
    said, true = sitting.figures.copy(), sitting.before.get("truth", {})
    if "copy: ms" in said:
        sitting.figures["copy over fp32"] = said["copy: ms"] / said["fp32: ms"]
    for dtype in ("fp32", "bf16"):
        if (one := said.get(f"{dtype}: ms")) and (other := true.get(f"{dtype}: ms")):
            sitting.figures[f"{dtype} over the plain loop"] = one / other


def compared(
    sitting: Sitting, name: str, minutes: float, commands: Commands, *options: str
) -> None:
    """Compare commands by `ninefold bench`: its sentence, milliseconds of a step of each."""
    file = sitting.output / f"{name}.json"
    files = ("--json", str(file), "--keep", str(sitting.scratch / name))
    names = [word for each in commands if each for word in ("--name", each)]
    lines = map(shlex.join, commands.values())
    own = ("-m", "ninefold", "bench", "--minutes", str(minutes))
    code, _ = sitting.python(*own, *options, *files, *names, *lines)
    sitting.figures["exit code"] = code
    if not code and file.is_file():
        found = json.loads(file.read_text())
        sitting.figures["sentence"] = found["sentence"]
        for each in found["commands"]:
            sitting.figures[f"{each['name']}: ms"] = 1e3 * each["seconds"]


@part(
    "1", 130, works(),
    same("a turn of 0.1 s over the end", 0.02, "on a GPU study.turn has to be longer"),
    same("a turn of 0.3 s over the end", 0.02, "0.3 s are too short as well"),
    same("the first 5 s over the end", 0.02, "heat takes longer than 5 s: pages have to say so"),
)  # fmt: skip
def turns(sitting: Sitting) -> None:
    """Is a turn's step, beside others, that of 40 s alone, whose power and heat are others?"""
    overrides, cell = sitting.job(), sitting.size("none-autocast", "none-fp32")
    turn = steps_of(sitting.scratch / "study")[cell]  # of the part before
    steps = sitting.size(200, 4)  # of an epoch
    epochs = max(4, math.ceil(sitting.size(ALONE, 0.2) / (steps * turn)))
    folder = sitting.scratch / "alone"
    own = (f"amp={cell[5:]}", f"epochs={epochs}", "logger=quiet", f"hydra.run.dir={folder}")
    sitting.figures["exit code"], _ = sitting.python("train.py", *overrides, *own)
    taken = json.loads((folder / "result.json").read_text())["epoch_seconds"][1:]
    late = median(taken[len(taken) // 2 :]) / steps
    first = [each / steps for number, each in enumerate(taken) if sum(taken[:number]) < 5]
    sitting.figures["alone: ms"] = 1e3 * late
    sitting.figures["the first 5 s over the end"] = median(first) / late
    sitting.figures["a turn of 0.1 s over the end"] = turn / late
    longer = sitting.study(
        "longer_turns", "parallel=none", sitting.size("amp=fp32,autocast", "amp=fp32"), *overrides,
        "study.turn=0.3", f"study.time_budget={sitting.size(0.7, 0.1)}",
    )  # fmt: skip
    if longer is not None:
        sitting.figures["a turn of 0.3 s over the end"] = steps_of(longer)[cell] / late


@part(
    "1", 60,
    *(same(f"{net} over {by}", 0.01, "the inner clock is wrong")
      for net in ("ConvNet", "ResNet-18") for by in ("events", "torch's timer")),
    own=True,
)  # fmt: skip
def clock(tiny: bool) -> Figures:
    """Does the inner clock measure what CUDA's events and torch's timer measure?"""
    from benchmarks.ours import stepping

    nets = {
        "ConvNet": (*SMALL, "dataset.train_count=64000"),
        "ResNet-18": (*RESNET, "amp=bf16", "batch_size=256", "dataset.train_count=256000"),
    }  # whose first epoch does not end: between epochs the clock pauses
    found = {}
    for net, overrides in nets.items():
        job = nets["ConvNet"] if tiny else overrides
        with stepping((*job, "log_every=1000000")) as (run, take):
            run.clock.stop()
            steps = partial(take, 5 if tiny else 300)
            inner, events, timer = on_three_clocks(run.clock, steps)
            if place() == "cuda":
                found[f"{net} over events"] = inner / events
            found[f"{net} over torch's timer"] = inner / timer
    return found


def on_three_clocks(clock: Any, steps: Callable[[], None]) -> tuple[float, float, float]:
    """Seconds of the same steps on the inner clock, between CUDA's events, by torch's timer."""
    import torch
    from torch.utils.benchmark import Timer

    events = [torch.cuda.Event(enable_timing=True) for _ in "01" if place() == "cuda"]
    inner = []

    def run() -> None:
        before = clock.seconds
        clock.start()
        for event in events[:1]:
            event.record()
        steps()
        for event in events[1:]:
            event.record()
        clock.stop()
        inner.append(clock.seconds - before)

    taken = Timer("run()", globals={"run": run}).timeit(1).median  # it runs twice before
    between = events[0].elapsed_time(events[1]) / 1e3 if events else math.nan
    return inner[-1], between, taken


@part("1", 45, same("convnext_large over milabench's", 0.15, "explain it"), own=True)
def published(tiny: bool) -> Figures:
    """Is a figure of others found here too?"""
    batch, speed = CONVNEXT["H200" if "H200" in device(tiny)["GPU"] else "H100"]
    step = stepper("convnext_large", "fp16", tiny, batch)
    found = 1e3 * batch / milliseconds(step, *((1, 2) if tiny else (10, 20)))
    return {f"images/s, batch {batch}": found, "convnext_large over milabench's": found / speed}


@part(
    "2", 40,
    *(Expected(f"{amp}: a {what} keeps a bit", kept, kept, f"amp={amp} is not what it is called")
      for what, kept_by in (("product", (1, 0, 1)), ("convolution", (1, 0, 0)))
      for amp, kept in zip(("fp32", "tf32", "default"), kept_by, strict=True)),
    own=True,
)  # fmt: skip
def tf32(tiny: bool) -> Figures:
    """Is fp32 IEEE, tf32 TF32, and default TF32 in convolutions alone, by value?"""
    import torch

    from ninefold.engine.amp import Amp

    kept, one = 1 + 2**-12, torch.eye(64, device=place())  # TF32 rounds it to 1
    image = torch.full((1, 64, 8, 8), kept, device=place())
    found = {}
    for name, rounds in (("fp32", False), ("tf32", True), ("default", None)):
        Amp("float32", tf32=rounds).pin()
        product, convolved = (one * kept) @ one, torch.conv2d(image, one[:, :, None, None])
        found[f"{name}: a product keeps a bit"] = bool((product.diagonal() == kept).all())
        found[f"{name}: a convolution keeps a bit"] = bool((convolved == kept).all())
    return found


@part("2", 60, works(means="NCCL in a process that is stopped, or two jobs want one port"))
def torchrun(sitting: Sitting) -> None:
    """Does bench compare two lines of torchrun?"""
    run = ("-m", "torch.distributed.run", "--nproc-per-node", "1")
    dtypes = ("fp32", "bf16")
    commands = {dtype: sitting.command("plain", dtype, "ddp", run=run) for dtype in dtypes}
    compared(sitting, "torchrun", sitting.size(0.7, 0.75), commands)


@part("2", 60, works())
def precisions(sitting: Sitting) -> None:
    """Does a plain loop take the precisions that bench gives it?"""
    command = {"": sitting.command("plain", "")}
    compared(sitting, "precisions", sitting.size(0.6, 0.75), command, "--precisions", "fp32,bf16")


@part("2", 60, works("amps: exit code"), Expected("cells", 4, 4, "a cell is missing"))
def amps(sitting: Sitting) -> None:
    """Do the precisions run that are not among the nine?"""
    axes = ("parallel=none", sitting.size("amp=default,tf32,bf16,bf16_weights", "amp=fp32,bf16"))
    budget = f"study.time_budget={sitting.size(0.4, 0.1)}"
    folder = sitting.study("amps", *axes, *sitting.job(), budget)
    if folder is not None:
        sitting.figures["cells"] = len(steps_of(folder))


@part("2", 60, works("groups: exit code"), Expected("cells", 4, 4, "a cell is missing"))
def groups(sitting: Sitting) -> None:
    """What happens to four cells that each take a fifth of the memory or more?"""
    amps = sitting.size("amp=fp32,bf16,scaler,tf32", "amp=fp32,bf16")
    short = ("study.turns=2", f"study.time_budget={sitting.size(0.5, 0.1)}")
    there = sitting.before.get("machine") or sitting.inside("device")
    batch = 1024 * round(6 * (there.get("GB") or 80) / 80)
    job = sitting.job(*RESNET, f"batch_size={batch}", "dataset.train_count=24576")
    folder = sitting.study("groups", "parallel=none", amps, *job, *short)
    if folder is not None:
        sitting.figures["cells"] = len(steps_of(folder))


def tried(sitting: Sitting, plant: str, minutes: float) -> None:
    """Let --try find what was planted; then put its best line into the script by hand."""
    script, file = sitting.command("slow", plant), sitting.output / f"try_{plant}.json"
    own = ("-m", "ninefold", "bench", "--try", "--minutes", str(sitting.size(minutes, 1)))
    keep = ("--json", str(file), "--keep", str(sitting.scratch / f"try_{plant}"))
    sitting.figures["exit code"], _ = sitting.python(*own, *keep, shlex.join(script))
    found = json.loads(file.read_text())
    cures = {each["name"]: each["speedup"] for each in found["cures"]}
    sitting.figures |= {"sentence": found["sentence"], **cures}
    if cures:
        best = max(cures, key=lambda name: cures[name])
        by_hand = {"as it is": script, "by hand": sitting.command("slow", plant, best)}
        compared(sitting, f"by_hand_{plant}", sitting.size(0.6, 0.5), by_hand)
        speedup = sitting.figures["as it is: ms"] / sitting.figures["by hand: ms"]
        sitting.figures |= {"named": best, "by hand over named": speedup / cures[best]}


HELD = (works(), same("by hand over named", 0.1, "the line does not bring what was said"))


@part("3", 310, *HELD)
def reading(sitting: Sitting) -> None:
    """Does --try name the loader's workers where images take 3 ms each to read?"""
    tried(sitting, "reading", 4)


@part("3", 240, *HELD)
def layers(sitting: Sitting) -> None:
    """Does --try name what helps 100 small layers, whose kernels the host has to launch?"""
    tried(sitting, "layers", 3)


@part("4", 280, works("scores: exit code"))
def scores(sitting: Sitting) -> None:
    """Is the accuracy of float16 kept, with and without a GradScaler, on images of CIFAR-10?"""
    own = ("experiments=alexnet_cifar10", f"dataset.root={PACK}", "seed=0,1,2", "epochs=3")
    full = (*own, "parallel=none", AMPS)
    tiny = ("parallel=none", "amp=fp32", "seed=0,1,2", "epochs=1", *sitting.job())
    sitting.study("scores", *sitting.size(full, tiny), ask="accuracy")


def place() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def device(tiny: bool) -> Figures:
    import torch

    versions = [torch.__version__, torch.version.cuda, sys.version.split()[0]]
    there: Figures = {"versions": versions, "cores": os.cpu_count(), "compiler": shutil.which("cc")}
    if place() == "cuda":
        properties = torch.cuda.get_device_properties(0)
        there |= {"GPU": properties.name, "GB": properties.total_memory / 1e9}
    return {"GPUs": torch.cuda.device_count(), "GPU": "none", **there}


def plain(tiny: bool, dtype: str, kind: str = "") -> Figures:
    """Train ResNet-50 without end, for bench; 200 steps after 30 where it is `timed`."""
    step = stepper("resnet50", dtype, tiny, ddp=kind == "ddp")
    while kind != "timed":
        step()
    return {"ms": milliseconds(step, *((3, 5) if tiny else (30, 200)))}


def stepper(
    name: str, dtype: str, tiny: bool, batch: int = 64, ddp: bool = False
) -> Callable[[], None]:
    """A call that takes a training step as a plain loop does."""
    import torch

    torch.manual_seed(0)
    images = torch.randn(*((4, 3, 8, 8) if tiny else (batch, 3, 224, 224)), device=place())
    targets = torch.randint(0, 1000, (len(images),), device=place())
    model = network(name, tiny).to(place())
    if ddp:
        torch.distributed.init_process_group("nccl" if place() == "cuda" else "gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
    precision: Callable[[], AbstractContextManager[None]] = nullcontext
    if dtype in dtypes:
        precision = partial(torch.autocast, images.device.type, dtypes[dtype])

    def step() -> None:
        with precision():
            loss = torch.nn.functional.cross_entropy(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def network(name: str, tiny: bool) -> Any:
    """One of torchvision's, or a tiny one in its place."""
    import torch
    import torchvision

    few = (torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 1000))
    return torch.nn.Sequential(*few) if tiny else getattr(torchvision.models, name)()


class Images:
    """A dataset of images that take 3 ms each to read."""

    def __init__(self, side: int) -> None:
        self.side = side

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, number: int) -> tuple[Any, int]:
        import torch

        until = time.perf_counter() + 0.003
        while time.perf_counter() < until:
            pass
        return torch.full((3, self.side, self.side), number % 7), number % 10


def slow(tiny: bool, plant: str, line: str = "") -> Figures:
    """Train without end with something that is slow. line: a cure put in by hand."""
    import torch
    from torch import nn

    name, _, workers = line.partition("workers=")
    count = int(workers or 0)
    torch.manual_seed(0)
    if plant == "reading":
        images, batch = Images(8 if tiny else 224), 4 if tiny else 64
        loader = torch.utils.data.DataLoader(
            images, batch, num_workers=count, persistent_workers=count > 0
        )
        model = network("resnet50", tiny)
        batches = ((x.to(place()).float(), y.to(place())) for x, y in loader)
    else:
        layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(20 if tiny else 100)]
        model = nn.Sequential(*layers)
        x, y = torch.randn(64, 64, device=place()), torch.zeros(64, dtype=torch.long)
        batches = iter(lambda: (x, y.to(place())), None)
    model.to(place(), memory_format=torch.channels_last if name == "channels_last" else None)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5, fused=name == "fused" or None)
    if name == "compile":
        model.compile()
    for x, y in batches:
        with torch.autocast(place(), torch.bfloat16, enabled=name == "bf16"):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {}


def milliseconds(step: Callable[[], None], lead: int, count: int) -> float:
    """Of a step, after `lead` that do not count, the device synchronized at both ends."""
    import torch

    wait: Callable[[], None] = torch.cuda.synchronize if place() == "cuda" else lambda: None
    for number in range(lead + count):
        if number == lead:
            wait()
            began = time.perf_counter()
        step()
    wait()
    return 1e3 * (time.perf_counter() - began) / count


INSIDE = {each.__name__: each for each in (device, plain, slow, clock, published, tf32)}


def main() -> int:
    given = parse()
    if given.inside:
        print(json.dumps(INSIDE[given.inside](given.rehearse, *given.names)), flush=True)
        return 0
    names = given.names or CALLS
    chosen = [each for each in PARTS if each.name in names or each.call in names]
    if given.rehearse:  # a CPU that rehearses it may have other work
        chosen = [each._replace(seconds=3 * each.seconds) for each in chosen]
    if given.list:
        for each in chosen:
            print(f"{each.call} {each.seconds:4.0f} s  {each.name}: {each.asks}")
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends what runs
    scratch = Path(tempfile.gettempdir(), "ninefold-gpu")
    if study in [each.find for each in chosen]:
        shutil.rmtree(scratch, ignore_errors=True)  # a sitting begins
    scratch.mkdir(exist_ok=True)
    given.output.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + CALLS.get("".join(given.names), math.inf)
    sitting = Sitting(given.output.absolute(), scratch, given.rehearse, until)
    with watched(given.output / "watts_MHz_celsius.csv"):
        well = [held(each, sitting) for each in chosen]
    return 0 if all(well) else 1


@contextmanager
def watched(into: Path) -> Iterator[None]:
    """Write power, clock and heat of the GPU twice a second, as far as there is nvidia-smi."""
    command = WATCH if shutil.which(WATCH[0]) else ("true",)
    with into.open("w") as file:
        process = subprocess.Popen(command, stdout=file, start_new_session=True)
    try:
        yield
    finally:
        end(process)


def parse() -> argparse.Namespace:
    description, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=description)
    parser.add_argument("names", nargs="*", metavar="1 | 2 | PART", help="all if none is named")
    output = os.environ.get("OUT") or ROOT / "outputs" / "gpu"
    parser.add_argument("--output", type=Path, default=Path(output), metavar="FOLDER")
    parser.add_argument("--rehearse", action="store_true", help="at tiny size, on any device")
    parser.add_argument("--list", action="store_true", help="list the parts, and end")
    parser.add_argument("--inside", choices=INSIDE, help=argparse.SUPPRESS)
    given = parser.parse_args()
    known = [*CALLS, *(each.name for each in PARTS)]
    if unknown := [name for name in given.names if name not in known and not given.inside]:
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(known)}")
    return given


def held(of: Part, sitting: Sitting) -> bool:
    """Run a part, record what it found; returns whether it ended well and all is as expected."""
    began = time.monotonic()
    print(f"== {of.name}: {of.asks}", flush=True)
    sitting.deadline = min(began + of.seconds, sitting.until)
    sitting.log, sitting.figures, error = sitting.output / f"{of.name}.log", {}, None
    try:
        if sitting.deadline - began < LEAST:
            raise TimeoutError("no time left")
        if of.own:
            sitting.figures |= sitting.inside(of.name)
        else:
            of.find(sitting)
    except Exception as failure:  # the other parts are worth having
        error = f"{type(failure).__name__}: {failure}"
    rows = [
        {"figure": each.figure, "value": sitting.figures.get(each.figure), "expected": str(each),
         "verdict": each.verdict(sitting.figures)}
        for each in of.expected
    ]  # fmt: skip
    sitting.before[of.name] = sitting.figures
    line = {
        "part": of.name, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rehearsal": sitting.tiny, "seconds": round(time.monotonic() - began, 1), "error": error,
        "expected": rows, "figures": sitting.figures,
    }  # fmt: skip
    with (sitting.output / FOUND).open("a") as file:
        file.write(f"{json.dumps(line)}\n")
    with tarfile.open(sitting.output / "found.tgz", "w:gz") as found:  # few files come back
        for path in sorted(sitting.output.iterdir()):
            if path.suffix != ".tgz":
                found.add(path, path.name)
    for row in rows:
        print(f"   {row['figure']} {row['value']} ({row['expected']}): {row['verdict']}")
    print(f"   {error or 'done'} after {line['seconds']} s", flush=True)
    codes = [value for name, value in sitting.figures.items() if name.endswith("exit code")]
    ended = not error and bool(sitting.figures) and not any(codes)
    return ended and (sitting.tiny or all(row["verdict"] == "as expected" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
