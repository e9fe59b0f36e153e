"""What a check does in a process of its own: `python -m benchmarks.gpu.inside NAME JSON INTO`."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from subprocess import PIPE
from typing import Any

import numpy as np
import torch
from torch.utils.benchmark import Timer

from benchmarks import ours
from benchmarks.checkpoints import writing
from benchmarks.gpu.contestants import COMMON, stepping, synchronize
from ninefold.checkpoint.writer import Pages
from ninefold.dataset.preparation import ImagePreparation
from ninefold.engine.amp import Amp, in_tf32
from ninefold.engine.clock import Clock
from ninefold.files import write_json
from ninefold.machine import gpus
from ninefold.measure import devices
from ninefold.measure.environment import environment
from ninefold.model.resnet18 import resnet18
from ninefold.train import training_run

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


def device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def machine(dry: bool) -> dict[str, Any]:
    """The devices and versions of this machine; whether something can be compiled here."""
    known = environment()
    known.pop("hostname")
    names = gpus()
    return {
        "gpus": len(names),
        "gpu_names": names,
        "capability": torch.cuda.get_device_capability()[0] if names else None,
        "bfloat16": torch.cuda.is_bf16_supported(including_emulation=False) if names else None,
        "cudnn": torch.backends.cudnn.version() if names else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if names else None,  # type: ignore[no-untyped-call]
        "compiles": shutil.which("cc" if names else "c++") is not None,
        "environment": known,
    }


def same_weights(dry: bool, one: str, other: str) -> dict[str, Any]:
    """Whether the last checkpoints of two run folders are equal, bit for bit."""
    first, second = (
        torch.load(Path(folder, "checkpoints", "last.pt"), map_location="cpu", weights_only=True)
        for folder in (one, other)
    )
    model, twin = first["model"], second["model"]
    return {
        "steps of the whole run": first["step"],
        "steps of the resumed run": second["step"],
        "bitwise": all(torch.equal(value, twin[name]) for name, value in model.items()),
    }


def host(dry: bool, calls: int) -> dict[str, Any]:
    """What NVML costs."""
    if dry:
        return {}
    found = {}
    for name, call in (("NVML load", devices.gpu_load),):
        call(0)
        found[name] = 1e6 * median(seconds(lambda call=call: call(0)) for _ in range(calls))  # type: ignore[misc]
    return found


def seconds(call: Callable[[], object]) -> float:
    """Seconds of a call, the device synchronized at both ends."""
    synchronize(device())
    began = time.perf_counter()
    call()
    synchronize(device())
    return time.perf_counter() - began


def clock(dry: bool, overrides: list[str], steps: int) -> dict[str, Any]:
    """Seconds of the inner clock, over those of two events and of PyTorch's own timer."""
    kind: Any = torch.Event if dry else torch.cuda.Event
    began, ended = (kind(enable_timing=True) for _ in range(2))
    with stepping(overrides) as (run, take):
        take(2)
        run.clock.stop()
        before = run.clock.seconds
        run.clock.start()
        if not dry:
            began.record()
        take(steps)
        if not dry:
            ended.record()
        run.clock.stop()
        inner = run.clock.seconds - before
        timed = Timer("take(steps)", globals={"take": take, "steps": steps}).timeit(1)
    return {
        "events": 1.0 if dry else 1e3 * inner / began.elapsed_time(ended),
        "torch.utils.benchmark": inner / timed.median,
    }


def long(dry: bool, overrides: list[str], lasts: float) -> dict[str, Any]:
    """Steps of a process that nothing else runs beside, for so many seconds.

    trace: of each second its number, ms of a step, watts, MHz and degrees Celsius.
    """
    found: list[tuple[float, float]] = []  # when steps ended, and ms of one
    trace: list[list[float]] = []
    with stepping(overrides) as (_, take):
        began, now = time.perf_counter(), 0.0
        while now < lasts:
            each = 1e3 * seconds(lambda: take(5)) / 5
            now = time.perf_counter() - began
            found.append((now, each))
            if now >= len(trace):
                trace.append([round(now, 1), round(each, 3), *watched(0)])

    def of_the_first(end: float) -> float:
        return median(each for at, each in found if at <= max(end, found[0][0]))

    return {
        "ms": median(each for _, each in found[3 * len(found) // 4 :]),
        "ms of the first second": of_the_first(1),
        "ms of the first 5 s": of_the_first(5),
        "watts": median(watts for _, _, watts, _, _ in trace[len(trace) // 2 :]),
        "trace": trace,
        "MiB": 0 if dry else torch.cuda.max_memory_reserved() / 2**20,
    }


def watched(gpu: int) -> list[float]:
    """Watts, MHz and degrees Celsius of a GPU; NaN: not known."""
    return [
        devices._ask(gpu, lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3),
        devices._ask(gpu, lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
        devices._ask(gpu, lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, 0)),
    ]


OTHER = """
import torch

torch.zeros(1, device="cuda")
print(torch.cuda.memory_reserved() / 2**20, flush=True)
input()
"""


def context(dry: bool) -> dict[str, Any]:
    """MiB of the GPU that are in use, and that one more process takes which computes nothing."""
    if dry:
        return {"used": 0.0, "context": 0.0}

    def used() -> float:
        free, total = torch.cuda.mem_get_info()
        return (total - free) / 2**20

    before = used()
    command = (sys.executable, "-c", OTHER)
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout is not None
        reserved = float(other.stdout.readline())
        more = used() - before
        other.communicate("\n")
    return {"used": before, "context": more - reserved}


def tf32(dry: bool) -> dict[str, Any]:
    """Whether products and convolutions keep 1 + 2**-12, which TF32 rounds to 1; ms of a step."""
    kept = 1 + 2**-12
    image = torch.full((1, 64, 8, 8), kept, device=device())
    filters = torch.eye(64, device=device())[:, :, None, None]
    net, images = resnet18(10).to(device()), torch.randn(2 if dry else 256, 3, 32, 32).to(device())
    found = {}

    def step() -> None:
        net(images).square().mean().backward()

    for name in ("torch's default", "fp32", "tf32"):
        if name in ("fp32", "tf32"):
            Amp("float32", tf32=name == "tf32").pin()
        found[f"{name}: a product keeps it"] = not in_tf32(device())
        convolved = torch.conv2d(image, filters)
        found[f"{name}: a convolution keeps it"] = bool((convolved == kept).all())
        each = [seconds(step) for _ in range(3 if dry else 30)]
        found[f"{name}: a step"] = 1e3 * median(each[len(each) // 3 :])
    return found


def inputs(dry: bool, overrides: list[str], turns: int) -> dict[str, Any]:
    """Milliseconds in which a batch is made ready when nothing else is done."""
    with ours.training(*COMMON, *overrides) as run:

        def epoch() -> None:
            for _ in run.batches.epoch(1):
                pass

        epoch()
        each = median(seconds(epoch) for _ in range(turns)) / run.batches.steps_per_epoch
        return {"ms": 1e3 * each}


def pixels(dry: bool, images: int, size: int) -> dict[str, Any]:
    """How far images that are prepared on the device are from those prepared on the CPU."""
    batch = torch.randint(0, 256, (images, 3, 32, 32), dtype=torch.uint8)
    rows = np.arange(10 * images).reshape(10, images)
    there, here = device(), torch.device("cpu")
    moved = ImagePreparation(3, None, MEAN, STD, flip=True, crop=4)
    draws = zip(
        *(moved.draws(0, 3, rows, (len(rows), 3, 32, 32), context) for context in (there, here)),
        strict=True,
    )
    same = all(
        torch.equal(moved.augmented(batch.to(there), one).cpu(), moved.augmented(batch, other))
        for one, other in draws
    )
    resized = ImagePreparation(3, size)  # of pixels in 0..1
    apart = (resized.scaled(batch.to(there)).cpu() - resized.scaled(batch)).abs().max()
    return {
        "augmented alike": same,
        "gray levels apart": 255 * float(apart),
    }


def checkpoints(dry: bool, overrides: list[str], saves: int, steps: int) -> dict[str, Any]:
    """What saving costs: how long the steps stand still, and how fast they are during a write."""
    stalls, waits, beside, alone = [], [], [], []
    with stepping(overrides) as (run, take):
        take(1)
        run.writer.reserve(run.state.content(run.parallel, run.context))
        for _ in range(saves):
            take(2)
            stalls.append(seconds(lambda: training_run.save(run)))
            count, began = 0, time.perf_counter()
            while writing():
                take(steps)
                count += steps
            beside.append((time.perf_counter() - began) / max(count, 1))
            run.writer.wait()
            alone.append(seconds(lambda: take(steps)) / steps)
            waits.append(seconds(lambda: training_run.save(run, must=True)))
    pages = Pages(1 << 20, device())
    memory = torch.frombuffer(pages._memory, dtype=torch.uint8)
    return {
        "page-locked": None if dry else memory.is_pinned(),
        "stall": 1e3 * median(stalls),
        "stall over a save that waits": median(stalls) / median(waits),
        "a save that waits": median(waits),
        "step during a write over one without": median(beside) / median(alone),
    }


def events(dry: bool, steps: int, every: int) -> dict[str, Any]:
    """What the clock keeps of steps whose phases are all timed, stopped every so many steps."""
    clock = Clock(device(), sample=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    clock.start()
    for step in range(steps):
        clock.begin_step()
        for phase in ("data", "transfer", "data", "forward", "backward", "optimizer"):
            clock.mark(phase)
        clock.end_step()
        if step % every == every - 1:
            with clock.paused():
                pass
    clock.stop()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "µs a timed step": 1e6 * (time.perf_counter() - began) / steps,
        "MiB more": (after - before) / 1024,
        "steps whose phases are known": clock.sampled_steps,
    }


def jpegs(dry: bool, folder: str, count: int, processes: int) -> dict[str, Any]:
    """Write `count` JPEG files of 288 x 256 pixels in four classes, a fifth of them to test on."""
    names = [
        Path(folder, "test" if number % 5 == 0 else "train", f"c{number % 4}", f"{number}.jpg")
        for number in range(count)
    ]
    for parent in {name.parent for name in names}:
        parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(jpeg, names, range(count), chunksize=max(1, count // processes)))
    return {"files": count}


def jpeg(name: Path, seed: int) -> None:
    from PIL import Image

    small = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(small).resize((288, 256)).save(name, quality=90)


if __name__ == "__main__":
    name, given, into = sys.argv[1:]
    write_json(Path(into), globals()[name](**json.loads(given)))
