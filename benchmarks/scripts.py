"""Who names a winner among equal training scripts: bench, hyperfine, or timing one after another?

    python -m benchmarks scripts [--kinds plain workers ...] [--seconds 40] [--output FILE.jsonl]
    python -m benchmarks scripts --burst 6 ...  # four programs run for 20 s amid each comparison

Each compares a script of tests/bench/zoo.py with a copy of itself, and with one that
does one more forward and backward pass in every 20th step. `alone` times the steps of each script
for so many seconds, and names a winner if they differ by more than 2 %. hyperfine times five whole
runs of each, starts included, after one for the caches; it names one if the ratio that it prints
differs from 1 by more than the `±` behind it. `ninefold bench` names one if its verdict is faster
or slower. hyperfine must be installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import Process
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ZOO = Path(__file__).parents[1] / "tests/bench/zoo.py"
KINDS = ("plain", "workers", "compiled-model")
PLANTED = "ZOO_PLANTED=0.05"
SAME = 0.02
UNTIMED, RUNS, RUN_SECONDS = 50, 5, 5.0  # steps; runs of hyperfine, and their seconds of training
BURST_SECONDS, SPINNERS = 20.0, 4


def timed(seconds: float, steps: int, script: str) -> None:
    """Run a script until it has trained so long, or so many steps; print seconds per step."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    count, began = 0, 0.0

    def after_step(*_: object) -> None:
        nonlocal count, began
        count += 1
        took = time.perf_counter() - began
        if count == steps or (count > UNTIMED and took > seconds):
            print(f"seconds {took / (count - UNTIMED)}", flush=True)
            os._exit(0)
        if count == UNTIMED:
            began = time.perf_counter()

    register_optimizer_step_post_hook(after_step)
    sys.argv = [str(ZOO), script]
    runpy.run_path(str(ZOO), run_name="__main__")


def command(kind: str, seconds: float, steps: int) -> list[str]:
    """The command that is `timed`."""
    module = [sys.executable, "-m", "benchmarks.scripts"]
    return [*module, "--timed", str(seconds), str(steps), kind]


def alone(kind: str, seconds: float) -> list[float]:
    """Seconds of a step of the script, its copy, and the slower one, one after another."""
    found = []
    for variables in ({}, {}, dict([PLANTED.split("=")])):
        environment = {**os.environ, **variables}
        argv = command(kind, seconds, sys.maxsize)
        said = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        found.append(float(said.stdout.rpartition("seconds ")[2]))
    return found


def hyperfine(kind: str, steps: int, folder: Path) -> list[tuple[float, float]]:
    """Speedup and its `±` of the copy, and of the slower script, by what hyperfine prints."""
    plain = " ".join(command(kind, 1e9, steps))
    scripts = [plain, f"env COPY=1 {plain}", f"env {PLANTED} {plain}"]
    found = folder / "hyperfine.json"
    options = ["--warmup", "1", "--runs", str(RUNS), "--export-json", str(found)]
    subprocess.run(["hyperfine", *options, *scripts], check=True, stdout=subprocess.DEVNULL)
    runs = [(run["mean"], run["stddev"]) for run in json.loads(found.read_text())["results"]]
    mean, sd = runs[0]
    return [(mean / m, mean / m * ((s / m) ** 2 + (sd / mean) ** 2) ** 0.5) for m, s in runs[1:]]


def bench(kind: str, minutes: float, folder: Path) -> list[Any]:
    """What `ninefold bench` says of the script and its copy, and of it and the slower one."""
    script, found = f"{sys.executable} {ZOO} {kind}", folder / "found.json"
    options = ["--minutes", str(minutes), "--json", str(found), "--keep", str(folder / "keep")]
    argv = [sys.executable, "-m", "ninefold", "bench", *options, script, script]
    subprocess.run([*argv, f"{PLANTED} {script}"], check=True, stdout=subprocess.DEVNULL)
    return [pair for pair in json.loads(found.read_text())["pairs"] if pair["first"] == "A"]


@contextlib.contextmanager
def burst(after: float) -> Iterator[None]:
    """Have programs compute for a while, so many seconds from now."""
    processes = [Process(target=spin, args=(after,)) for _ in range(SPINNERS)]
    for process in processes:
        process.start()
    yield
    for process in processes:
        process.join()


def spin(after: float) -> None:
    os.setsid()  # Linux shares a core among sessions: in ours it would take little from us
    time.sleep(after)
    end = time.monotonic() + BURST_SECONDS
    while time.monotonic() < end:
        pass


def compared(kind: str, seconds: float, disturbed: bool) -> dict[str, Any]:
    """What each says of a kind of script."""
    minutes = 3 * seconds / 60
    during = (lambda: burst(1.5 * seconds)) if disturbed else contextlib.nullcontext
    with TemporaryDirectory() as name:
        with during():
            took = alone(kind, seconds)
        with during():
            ours = bench(kind, minutes, Path(name))
        steps = UNTIMED + int(RUN_SECONDS / took[0])
        whole = [] if disturbed else hyperfine(kind, steps, Path(name))
    speedups = [took[0] / each for each in took[1:]]
    return {
        "kind": kind,
        "alone": [(speedup, abs(speedup - 1) > SAME) for speedup in speedups],
        "hyperfine": [(speedup, error, abs(speedup - 1) > error) for speedup, error in whole],
        "bench": [(p["speedup"], p["low"], p["high"], p["verdict"]) for p in ours],
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scripts", description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--seconds", type=float, default=40, help="of each script alone")
    parser.add_argument("--burst", type=int, default=0, help="tries with a burst instead")
    parser.add_argument("--timed", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help="a line of JSON for each comparison")
    given = parser.parse_args(arguments)
    if given.timed:
        timed(float(given.timed[0]), int(given.timed[1]), given.timed[2])
    for kind in list(given.kinds) * max(given.burst, 1):
        found = json.dumps(compared(kind, given.seconds, bool(given.burst)))
        print(found, flush=True)
        if given.output:
            with given.output.open("a") as file:
                file.write(f"{found}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
