"""A sitting on a GPU: what no CPU can show, each part against what it is expected to find.

    python -m benchmarks.gpu [0 | 1 | 2 | PART ...] [--output FOLDER] [--rehearse] [--list]

The numbers are calls for a machine that is lent for so long (CALLS): a part that has no time left
is told and not begun. Call 0 is for two GPUs or more, where it comes first. Without a word all
parts run. Each part has a limit of its own, and what it found is a line of FOLDER/gpu.jsonl as soon
as it ends, with each figure that has an expected value held against it. FOLDER/found.tgz has that
file, the logs and the reports of studies. FOLDER is $OUT, or outputs/gpu. `--rehearse` runs all of
it at tiny size on whatever device there is, to see that each command still is one. No network is
used: what a machine with torch lacks is installed from .gpu/, see docs/internals/performance.md.
Exit code 0 if each part ended well and all is as expected, else 1; of a rehearsal, the first alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
CALLS = {"0": 590.0, "1": 590.0, "2": 190.0}  # seconds: ten less than it is lent for
LEAST = 10.0  # seconds without which no part is begun
GRACE = 5.0  # seconds from SIGTERM to SIGKILL at a limit
KEPT = 30  # lines of a command's output on the screen; its log has all
PAUSE = 0.1  # seconds: about as long as others have their turns
TIMES = 20  # alternations of chunks
FOUND = "gpu.jsonl"
PACK = ROOT / ".gpu"  # wheels of what a machine with torch lacks, and the commit
PACKED = ("hydra-core", "omegaconf", "antlr4-python3-runtime", "msgspec")
REHEARSED = ("tests/test_amp.py", "tests/checkpoint/test_writer.py")  # of the tests for a GPU
WATCH = ("nvidia-smi", "--query-gpu=timestamp,power.draw,clocks.sm,temperature.gpu",
         "--format=csv", "-lms", "500")  # fmt: skip
SMALL = ("model=convnet", "model.net.width=8", "dataset=synthetic", "dataset.shape=[1,8,8]",
         "dataset.test_count=32", "dataset.train_count=64", "batch_size=16")  # fmt: skip
RESNET = ("model=resnet18", "dataset=synthetic", "batch_size=256")  # as docs/start/gpus.md has it

Figures = dict[str, Any]


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
    deadline, log, figures: of the part that runs; it puts what it finds into `figures`.
    """

    output: Path
    scratch: Path
    tiny: bool
    until: float
    deadline: float = math.inf
    log: Path = field(default_factory=Path)
    figures: Figures = field(default_factory=dict)

    def size(self, full: Any, tiny: Any) -> Any:
        return tiny if self.tiny else full

    def job(self, *overrides: str) -> Sequence[str]:
        """What is trained: ResNet-18, where the overrides name nothing else."""
        return SMALL if self.tiny else overrides or RESNET

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

    def study(self, name: str, *words: str) -> dict[str, float]:
        """Make a study and keep its report; returns the seconds of a step of each cell.

        words: of the command, without where its folder is.
        """
        folder = self.scratch / name
        code, _ = self.python(*words, f"hydra.sweep.dir={folder}")
        self.figures[f"{name}: exit code"] = code
        if not (folder / "report" / "runs.csv").is_file():
            return {}
        shutil.copytree(folder / "report", self.output / name, dirs_exist_ok=True)
        answer = json.loads((folder / "report" / "report.json").read_text())["answer"]
        self.figures |= {f"{name}: {key}": answer[key] for key in ("lead", "caveats")}
        steps = steps_of(folder)
        self.figures |= {f"{name}, {cell}: ms": 1e3 * of for cell, of in steps.items()}
        return steps

    def train(self, name: str, *overrides: str, run: tuple[str, ...] = ()) -> Figures:
        """Train a run; returns its result.json, {} where there is none."""
        folder = self.scratch / re.sub(r"\W+", "-", name)
        shutil.rmtree(folder, ignore_errors=True)
        own = (f"hydra.run.dir={folder}", "logger=quiet")
        self.figures[f"{name}: exit code"], _ = self.python(*run, "train.py", *overrides, *own)
        file = folder / "result.json"
        return dict(json.loads(file.read_text())) if file.is_file() else {}

    def bench(self, name: str, minutes: float, *words: str) -> Figures:
        """Compare commands by `ninefold bench`: milliseconds, examples a second and GiB of each."""
        file = self.output / f"{name}.json"
        files = ("--json", str(file), "--keep", str(self.scratch / name))
        limit = ("--minutes", str(self.size(minutes, 0.75)))
        code, _ = self.python("-m", "ninefold", "bench", *limit, *files, *words)
        self.figures[f"{name}: exit code"] = code
        found: Figures = json.loads(file.read_text()) if file.is_file() else {"commands": []}
        for each in found["commands"]:
            about, seconds = f"{name}, {each['name']}", each["seconds"]
            self.figures[f"{about}: ms"] = seconds and 1e3 * seconds
            self.figures[f"{about}: GiB"] = max(each["memory"], default=0) / 2**30
            if seconds and each["examples"]:
                self.figures[f"{about}: examples/s"] = each["examples"] / seconds
        self.figures[f"{name}: said"] = [found.get("sentence"), *found.get("notes", [])]
        return found

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
    """A part of the sitting.

    calls: the numbers of those that it is in. own: `find` runs in a process of its own, and returns
    figures.
    """

    name: str
    asks: str
    find: Callable[..., Any]
    calls: str
    seconds: float
    expected: tuple[Expected, ...]
    own: bool


PARTS: list[Part] = []


def part(calls: str, seconds: float, *expected: Expected, own: bool = False) -> Callable[..., Any]:
    """Add a function to the sitting; it may take so many seconds of its call."""

    def add(find: Callable[..., Any]) -> Callable[..., Any]:
        asks = str(find.__doc__).partition("\n")[0]
        PARTS.append(Part(find.__name__, asks, find, calls, seconds, expected, own))
        return find

    return add


@part("012", 30, Expected("GPUs", 1, means="torch finds no GPU"))
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


@part(
    "0", 150, works("ddp: exit code"), works("fsdp: exit code"), works("resumed: exit code"),
    Expected("resumed: steps", 8, 8, "it did not go on where two processes had ended"),
)  # fmt: skip
def ranks(sitting: Sitting) -> None:
    """Do ddp and FSDP2 train on two GPUs under torchrun, and does one process resume that?"""
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    job = (*sitting.job(), "epochs=4", "max_steps=4", "checkpoint.every=2")
    sitting.train("ddp", *job, "parallel=ddp", run=torchrun)
    sitting.train("fsdp", *job, "parallel=fsdp", run=torchrun)
    folder = sitting.scratch / "ddp"
    more = (f"resume={folder}", "max_steps=8", "parallel.processes=1")
    code, _ = sitting.python("train.py", *more)
    result = json.loads((folder / "result.json").read_text())
    sitting.figures |= {"resumed: exit code": code, "resumed: steps": result["steps"]}


@part("0", 180, works("devices: exit code"))
def devices(sitting: Sitting) -> None:
    """Do dp, ddp and FSDP2 over NCCL compute what one GPU computes, and how fast are they?"""
    axes = ("parallel=none,dp,ddp,fsdp", sitting.size("amp=fp32,bf16", "amp=fp32"), "numerics=3")
    budget = f"study.time_budget={sitting.size(1.2, 0.1)}"
    sitting.study("devices", "train.py", "-m", *axes, *sitting.job(), budget)


@part("0", 130, works("processes: exit code"))
def processes(sitting: Sitting) -> None:
    """Does bench compare one process with two of torchrun, by examples a second?"""
    run = ("-m", "torch.distributed.run", "--nproc-per-node", "{n}")
    command = sitting.command("plain", "fp32", "64", "ddp", run=run)
    sitting.bench("processes", 1.5, "--each", "n=1,2", " ".join(command))


@part(
    "1", 170,
    *(same(f"{net}: events over alone", 0.02, "stretches stay what decides")
      for net in ("alexnet", "layers")),
    own=True,
)  # fmt: skip
def waiting(tiny: bool) -> Figures:
    """Do events at both ends remove what a turn adds to a step that waits for its host?"""
    import torch

    from ninefold.engine.clock import Clock
    from ninefold.stats.student import quantile

    times, found, clock = 3 if tiny else TIMES, {}, Clock(torch.device(place()), sample=0)
    seconds = (0.01, 0.02) if tiny else (0.04, 0.3)

    def chunk(kind: str) -> float:
        """Seconds of a step: after as many others, or after a pause as in a turn."""
        if kind != "alone":
            time.sleep(PAUSE)
        steps(count if kind == "alone" else lead)
        if kind == "drained":
            wait()
            began = time.perf_counter()
            steps(count)
            wait()
            return (time.perf_counter() - began) / count
        before = clock.seconds
        clock.start()
        steps(count)
        clock.stop()
        return (clock.seconds - before) / count

    for net in ("alexnet", "layers"):
        step = stepper(net, "scaler", tiny)
        steps = partial(repeat, step)
        each = milliseconds(step, *((1, 2) if tiny else (30, 30))) / 1e3
        lead, count = (math.ceil(of / each) for of in seconds)
        kinds = ["alone", "drained", "events"]
        logs: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(times):
            for kind in kinds:
                logs[kind].append(math.log(chunk(kind)))
            kinds.append(kinds.pop(0))  # who comes first changes
        found[f"{net}: alone, ms"] = 1e3 * math.exp(fmean(logs["alone"]))
        for kind in ("drained", "events"):
            of = [one - alone for one, alone in zip(logs[kind], logs["alone"], strict=True)]
            half = float(quantile(0.025, times - 1)) * stdev(of) / math.sqrt(times)
            ends = [math.exp(fmean(of) + sign * half) for sign in (-1, 1)]
            found[f"{net}: {kind} over alone"] = math.exp(fmean(of))
            found[f"{net}: {kind} over alone, 95 %"] = ends
        queued = time.perf_counter()
        steps(lead)
        waited = time.perf_counter()
        wait()
        found[f"{net}: share of a step still to do when it is queued"] = (
            (time.perf_counter() - waited) / (waited - queued) * lead
        )
    return found


@part(
    "1", 150, works("compare: exit code"),
    same("whole runs over the study", 0.03, "turns say another ratio than whole runs"),
)  # fmt: skip
def compare(sitting: Sitting) -> None:
    """Does `ninefold compare`, as a new user types it, say what whole runs say?"""
    budget = f"study.time_budget={sitting.size(1.0, 0.2)}"
    steps = sitting.study("compare", "-m", "ninefold", "compare", *sitting.job(), budget)
    if len(steps) < 2:
        return
    cells = max(steps, key=lambda cell: steps[cell]), min(steps, key=lambda cell: steps[cell])
    taken: dict[str, list[float]] = {cell: [] for cell in cells}
    for cell in (*cells, *reversed(cells)):
        parallel, _, amp = cell.partition("-")
        count = math.ceil(sitting.size(4.0, 0.1) / steps[cell])
        own = (f"parallel={parallel}", f"amp={amp}", f"max_steps={count}", "epochs=100000")
        found = sitting.train(f"whole {cell}", *sitting.job(), *own, "checkpoint.every=null")
        taken[cell].append(found["train_seconds"] / found["steps"])
    slow, fast = (fmean(taken[cell]) for cell in cells)
    sitting.figures["whole runs over the study"] = slow / fast * steps[cells[1]] / steps[cells[0]]


def steps_of(folder: Path) -> dict[str, float]:
    """Seconds of a step of each cell of a study but the control: the median of its turns."""
    turns: dict[str, list[float]] = {}
    with (folder / "report" / "runs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            taken = json.loads(row["turn_seconds"] or "[]")
            turns.setdefault(f"{row['parallel']}-{row['amp']}", []).extend(taken)
    cells = {cell: taken for cell, taken in turns.items() if not cell.startswith("control-")}
    return {cell: median(taken) for cell, taken in cells.items() if taken}


@part(
    "1", 120, works("batches: exit code"), works("dtypes: exit code"),
    Expected("a missing scaler is told", 1, 1, "float16 was not seen"),
)  # fmt: skip
def scripts(sitting: Sitting) -> None:
    """What does bench say of a plain loop in three batches, and in three precisions?"""
    batches, dtypes = "b=16,64,256", "dtype=fp32,bf16,fp16"
    asked = (("batches", batches, ("bf16", "{b}")), ("dtypes", dtypes, ("{dtype}", "64")))
    for name, each, words in asked:
        line = " ".join(sitting.command("plain", *words))
        found = sitting.bench(name, 0.8, "--each", each, line)
    told = [note for note in found.get("notes", []) if "without a GradScaler" in note]
    sitting.figures["a missing scaler is told"] = bool(told)


OPTIONS = ("cudnn_benchmark=false", "cudnn_benchmark=true", "compile.mode=reduce-overhead")


@part("1", 55, *(works(f"{option}: exit code") for option in OPTIONS))
def graphs(sitting: Sitting) -> None:
    """Do CUDA graphs (compile.mode=reduce-overhead) and cudnn_benchmark=true run?"""
    steps = sitting.size(200, 4)
    for option in OPTIONS:
        own = (option, f"max_steps={steps}", "epochs=100000", "checkpoint.every=null")
        found = sitting.train(option, *sitting.job(), "amp=bf16", *own)
        sitting.figures[f"{option}: images/s"] = found.get("examples_per_second")


@part("1", 60, works())
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


@part(
    "2", 160, works(),
    Expected("counted over real", 0.5, 1.02, "the count of a step's memory is another one here"),
)  # fmt: skip
def fits(sitting: Sitting) -> None:
    """Is the largest batch of ResNet-50 that `fits` counts the one of real steps?"""
    images = ("dataset=synthetic", "dataset.shape=[3,224,224]", "dataset.train_count=8192")
    job = sitting.job("model=torchvision", *images, "dataset.resident=false", "batch_size=64")
    folder = sitting.scratch / "fits"
    code, _ = sitting.python("-m", "ninefold", "fits", *job, f"hydra.run.dir={folder}")
    found = json.loads((folder / "batch_size.json").read_text())
    sitting.figures |= {"exit code": code, **found}
    if found["counted"]:
        sitting.figures["counted over real"] = found["counted"] / found["batch_size"]


def place() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def several() -> bool:
    import torch

    return torch.cuda.device_count() > 1


def device(tiny: bool) -> Figures:
    import torch

    versions = [torch.__version__, torch.version.cuda, sys.version.split()[0]]
    there: Figures = {"versions": versions, "cores": os.cpu_count(), "compiler": shutil.which("cc")}
    if place() == "cuda":
        properties = torch.cuda.get_device_properties(0)
        there |= {"GPU": properties.name, "GB": properties.total_memory / 1e9}
    return {"GPUs": torch.cuda.device_count(), "GPU": "none", **there}


def plain(tiny: bool, dtype: str, batch: str, kind: str = "") -> Figures:
    """Train ResNet-50 without end, for bench."""
    step = stepper("resnet50", dtype, tiny, int(batch), ddp=kind == "ddp")
    while True:
        step()


def stepper(
    name: str, dtype: str, tiny: bool, batch: int = 64, ddp: bool = False
) -> Callable[[], None]:
    """A call that takes a training step as a plain loop does.

    dtype: fp32, bf16, fp16; scaler: fp16 with a GradScaler.
    """
    import torch

    torch.manual_seed(0)
    if ddp:
        torch.distributed.init_process_group("nccl" if place() == "cuda" else "gloo")
        if place() == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rows = batch // 16 if tiny else batch
    shape = (64,) if name == "layers" else (3, 8, 8) if tiny else (3, 224, 224)
    inputs = torch.randn(rows, *shape, device=place())
    targets = torch.randint(0, 64, (rows,), device=place())
    model = network(name, tiny).to(place())
    if ddp:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    scaler = torch.amp.GradScaler(place(), enabled=dtype == "scaler")
    precision: Callable[[], AbstractContextManager[None]] = nullcontext
    if dtype != "fp32":
        half = torch.bfloat16 if dtype == "bf16" else torch.float16
        precision = partial(torch.autocast, place(), half)

    def step() -> None:
        with precision():
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def network(name: str, tiny: bool) -> Any:
    """100 small layers, one of torchvision's, or a tiny one in its place."""
    from torch import nn

    if name == "layers":
        layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(20 if tiny else 100)]
        return nn.Sequential(*layers)
    if tiny:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 64))
    import torchvision

    return getattr(torchvision.models, name)()


def wait() -> None:
    import torch

    if place() == "cuda":
        torch.cuda.synchronize()


def repeat(step: Callable[[], None], count: int) -> None:
    for _ in range(count):
        step()


def milliseconds(step: Callable[[], None], lead: int, count: int) -> float:
    """Of a step, after `lead` that do not count, the device synchronized at both ends."""
    repeat(step, lead)
    wait()
    began = time.perf_counter()
    repeat(step, count)
    wait()
    return 1e3 * (time.perf_counter() - began) / count


INSIDE = {each.__name__: each for each in (device, plain, waiting)}


def main() -> int:
    given = parse()
    whole = given.rehearse or given.list
    if given.inside:
        print(json.dumps(INSIDE[given.inside](given.rehearse, *given.names)), flush=True)
        return 0
    names = given.names or [each for each in CALLS if each != "0" or whole or several()]
    chosen = [each for each in PARTS if each.name in names or {*each.calls} & {*names}]
    if given.rehearse:  # a CPU that rehearses it may have other work
        chosen = [each._replace(seconds=3 * each.seconds) for each in chosen]
    if given.list:
        for each in chosen:
            print(f"{each.calls:3} {each.seconds:4.0f} s  {each.name}: {each.asks}")
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends what runs
    scratch = Path(tempfile.gettempdir(), "ninefold-gpu")
    if machine in [each.find for each in chosen]:
        shutil.rmtree(scratch, ignore_errors=True)  # a call begins
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
    parser.add_argument("names", nargs="*", metavar="0 | 1 | 2 | PART", help="all if none is named")
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
