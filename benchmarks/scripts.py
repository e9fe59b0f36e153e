"""Holds what `ninefold bench A B` says of training scripts against a stopwatch.

    python -m benchmarks scripts [--shapes plain gan ...] [--output FILE.jsonl]

For each of the twelve pairs of scripts in shapes.py, some of the stopwatch's runs come before the
bench and the others after it, so that both meet the same machine. Nothing else should compute then.

The stopwatch is none of bench's parts. A script runs alone, without a pause and without a hook, and
logs `step N` as people's scripts do; these lines are timed as they arrive, the first 50 steps left
out. While it does something else, from a line `step N` to one that is not, the clock stands: bench
does not count steps with an evaluation. (Nor those with a new pass over a loader, which only
`accumulation` has, one in 13; there the stopwatch goes on.) Whole runs of two lengths, subtracted,
would have the noise of two starts in each figure; a hook that stamps steps is what bench has.

A pair of runs is A and B, the next one B and A. Lines come after whole cycles (of a heavy step, of
evaluations, of accumulation), and each run has as many steps as A's first, which takes `--seconds`:
both train on the same batches. The true speedup is the geometric mean over the pairs of runs, with
Student's 95 % interval of their logarithms.

inside: the true speedup lies in the interval that bench says.
allowing: it does so if the stopwatch's own error is allowed for: in logarithms, |true - said| is at
    most sqrt(b^2 + s^2). b: from what bench says to that end of its interval which is on the side
    of the true one. s: half of the stopwatch's interval.
Where bench says no interval, neither is known.

Shapes that are in the file already are not measured again. Ctrl-C keeps those that are done.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, NamedTuple

from scipy import stats

from benchmarks.shapes import SHAPES
from ninefold.measure.environment import environment
from ninefold.tables import grid

UNTIMED = 50  # steps at the start of a run
STEP = re.compile(r"step (\d+) ")
TO_END = 30.0  # seconds that a script has to end
RANKS = "-m torch.distributed.run --standalone --nproc-per-node 2"
SAID = (0, 9)  # exit codes of a bench that has an answer, or none
HEADER = (
    *("shape", "bench", "95 % interval", "verdict", "stopwatch", "95 % interval"),
    *("inside", "allowing", "ms per step of A: bench", "stopwatch"),
)


class Ratio(NamedTuple):
    """A speedup of B over A and the ends of its interval."""

    speedup: float
    low: float
    high: float


class Watched(NamedTuple):
    """A run. steps: that were timed. seconds: of them. away: besides, in which it did not train."""

    steps: int
    seconds: float
    away: float


def command(shape: str, changed: bool) -> str:
    """The command line of a script."""
    python = f"{shlex.quote(sys.executable)} {RANKS if shape == 'ddp' else ''}".rstrip()
    script = shlex.quote(str(Path(__file__).with_name("shapes.py")))
    return f"{python} {script} {shape}{' --changed' if changed else ''}"


def watch(line: str, enough: Callable[[int, float], bool]) -> Watched:
    """Run a command, and end it after enough steps. enough: of steps and their seconds.

    Raises CalledProcessError if it ends by itself.
    """
    with (
        TemporaryFile("w+") as errors,
        subprocess.Popen(
            shlex.split(line), stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True,
        ) as process,
    ):  # fmt: skip
        first, began, last, away = None, 0.0, 0.0, 0.0
        try:
            for said in process.stdout or ():
                now = time.perf_counter()
                step = STEP.match(said)
                if first is None:
                    if step and int(step[1]) >= UNTIMED:
                        first, began = int(step[1]), now
                elif step is None:
                    away += now - last
                elif enough(int(step[1]) - first, now - began - away):
                    return Watched(int(step[1]) - first, now - began - away, away)
                last = now
        finally:
            end(process)
        errors.seek(0)
        raise subprocess.CalledProcessError(process.returncode, line, stderr=errors.read())


def end(process: subprocess.Popen[str]) -> None:
    """End a script with what it has started; torchrun ends its own processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(TO_END)


def pairs(runs: list[list[Watched]], shape: str, number: int, seconds: float) -> None:
    """Add so many pairs of runs. runs: those of A and B. seconds: that the first one takes."""
    for _ in range(number):
        first = len(runs[0]) % 2  # B goes first in every second pair
        for changed in (first, 1 - first):
            steps = runs[0][0].steps if runs[0] else None

            def enough(taken: int, took: float, steps: int | None = steps) -> bool:
                return took >= seconds if steps is None else taken >= steps

            runs[changed].append(watch(command(shape, bool(changed)), enough))


def bench(shape: str, minutes: float) -> dict[str, Any]:
    """What `ninefold bench` says of A and B. Raises CalledProcessError."""
    with TemporaryDirectory() as folder:
        found = Path(folder, "found.json")
        options = ["--minutes", str(minutes), "--json", str(found), "--keep", f"{folder}/keep"]
        argv = [sys.executable, "-m", "ninefold", "bench", *options]
        argv += [command(shape, changed) for changed in (False, True)]
        done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode not in SAID:
            done.check_returncode()
        return dict(json.loads(found.read_text()))


def stopwatch(first: Sequence[float], second: Sequence[float]) -> Ratio:
    """The speedup of the second. first, second: seconds of a step in each pair of runs."""
    logs = [math.log(a / b) for a, b in zip(first, second, strict=True)]
    half = stats.t.ppf(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    mean = fmean(logs)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def holds(said: Ratio, true: Ratio, allowing: bool) -> bool:
    """Whether the interval of bench has the true speedup in it. allowing: for what that errs."""
    off = math.log(true.speedup / said.speedup)
    half = math.log(said.high / said.speedup if off > 0 else said.speedup / said.low)
    error = math.log(true.high / true.low) / 2 if allowing else 0.0
    return abs(off) <= math.hypot(half, error)


def measured(shape: str, given: argparse.Namespace) -> dict[str, Any]:
    """What bench and the stopwatch find of a shape."""
    runs: list[list[Watched]] = [[], []]
    pairs(runs, shape, given.pairs // 2, given.seconds)
    found = bench(shape, given.minutes)
    pairs(runs, shape, given.pairs - given.pairs // 2, given.seconds)
    seconds = [[run.seconds / run.steps for run in of] for of in runs]
    (said,), true = found["pairs"], stopwatch(*seconds)
    known = said["low"] is not None
    of_bench = Ratio(*(said[key] for key in Ratio._fields)) if known else None
    return {
        "shape": shape,
        "bench": {**said, "seconds": [each["seconds"] for each in found["commands"]]},
        "true": true._asdict(),
        "inside": of_bench and holds(of_bench, true, allowing=False),
        "allowing": of_bench and holds(of_bench, true, allowing=True),
        "runs": [[run._asdict() for run in of] for of in runs],
        "others": found["others"],
        "given": {key: getattr(given, key) for key in ("minutes", "seconds", "pairs")},
        "environment": {k: v for k, v in environment().items() if not k.startswith("host")},
    }


def row(found: dict[str, Any]) -> tuple[str, ...]:
    """Format what was found as the columns of HEADER."""
    said, true = found["bench"], found["true"]
    watched = fmean(run["seconds"] / run["steps"] for run in found["runs"][0])

    def number(value: float | None) -> str:
        return "not known" if value is None else f"{value:.3f}"

    def interval(of: dict[str, Any]) -> str:
        return "not known" if of["low"] is None else f"{of['low']:.3f} to {of['high']:.3f}"

    held = [{True: "yes", False: "no", None: "–"}[found[key]] for key in ("inside", "allowing")]
    return (
        *(found["shape"], number(said["speedup"]), interval(said), said["verdict"]),
        *(number(true["speedup"]), interval(true), *held),
        *("–" if s is None else f"{1000 * s:.2f}" for s in (said["seconds"][0], watched)),
    )


def text(found: Sequence[dict[str, Any]]) -> str:
    """The table, and how many hold."""
    known = [each for each in found if each["inside"] is not None]
    counts = [f"{sum(each[key] for each in known)} of {len(known)}" for key in HEADER[6:8]]
    said = f"inside: {counts[0]}; allowing for the stopwatch's own error: {counts[1]}"
    return f"{grid(HEADER, [row(each) for each in found])}\n\n{said}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks scripts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=[*SHAPES], metavar="NAME")
    parser.add_argument("--minutes", type=float, default=2, help="of each bench")
    parser.add_argument("--seconds", type=float, default=15, help="of each uninterrupted run")
    parser.add_argument("--pairs", type=int, default=5, help="of uninterrupted runs, at least 2")
    parser.add_argument("--output", type=Path, help="a file: a line of JSON for each shape")
    given = parser.parse_args(arguments)
    if given.pairs < 2:
        parser.error(f"--pairs {given.pairs}: an interval takes two")
    found: list[dict[str, Any]] = []
    if given.output and given.output.exists():
        found = [json.loads(line) for line in given.output.read_text().splitlines()]
    code, done = 0, {each["shape"] for each in found}
    try:
        for shape in given.shapes:
            if shape in done:
                continue
            try:
                found.append(measured(shape, given))
            except subprocess.CalledProcessError as error:
                lines = (error.stderr or "").strip().splitlines() or [f"code {error.returncode}"]
                print(f"not measured: {shape}: {lines[-1]}", file=sys.stderr)
                code = 1
                continue
            print("  ".join(row(found[-1])), flush=True)
            if given.output:
                with given.output.open("a") as file:
                    file.write(f"{json.dumps(found[-1])}\n")
    except KeyboardInterrupt:
        code = 130
    print(f"\n{text(found)}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
