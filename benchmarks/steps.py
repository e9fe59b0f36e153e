"""Who names a winner among equal training steps: time_steps, torch's Compare, or a plain loop?

    python -m benchmarks steps [--tries 30] [--minutes 0.1] [--neighbor 0.5] [--output FILE.json]
    python -m benchmarks steps --long [--tries 5] [--minutes 0.5] ...  # speedups against long loops

In each try the three compare a step with itself, under two names, and then with one that takes 5 %
longer (it waits). time_steps names a winner if it calls a step faster. torch.utils.benchmark has as
long, and its Compare names one if the medians that it prints, cut to the digits that it holds to be
significant, differ by more than 2 %. The plain loop times 100 steps of each, one after the other,
and names one if these differ by more than 2 %. `--neighbor` keeps a core busy for a share of the
time (neighbor.py). Other programs on the machine are part of the conditions; `busy` tells of them.

With `--long` the speedups of time_steps are held against those of long loops: one step trains alone
for seconds, then the next does, in an order that is reversed each time. Half of these loops run
before time_steps and half after it, so that both meet the same machine.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils import benchmark

import ninefold
from benchmarks.known_answers import neighbor
from ninefold.files import write_json
from ninefold.measure.environment import environment
from ninefold.tables import grid

SAME = 0.02  # times that differ by less are no claim
SLOWER = 0.05
STEPS = 100  # of each in the plain loop
LOOPS = 3  # long loops of each step before time_steps, and as many after it
Step = Callable[[], None]
LONG_HEADER = ("pair", "time_steps", "99.3 % interval", "long loops", "se", "off by")
HEADER = ("who", "names a winner of equal steps", "finds the faster one", "names the slower one")


def training_step() -> Step:
    """A step of a small network on one thread: some 2 ms."""
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    inputs, targets = torch.randn(128, 256), torch.randint(0, 10, (128,))

    def step() -> None:
        loss = functional.cross_entropy(net(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def slowed(step: Step) -> Step:
    """The same, and then 5 % longer."""

    def longer() -> None:
        began = time.perf_counter()
        step()
        end = time.perf_counter() + SLOWER * (time.perf_counter() - began)
        while time.perf_counter() < end:
            pass

    return longer


def ours(first: Step, second: Step, minutes: float) -> tuple[float | None, float | None]:
    """The speedup of the second where a step is called faster, else None; and `busy`."""
    found = ninefold.time_steps({"first": first, "second": second}, minutes=minutes, show=False)
    (pair,) = found.pairs
    return pair.speedup if pair.verdict in ("faster", "slower") else None, found.busy


def compared(first: Step, second: Step, minutes: float) -> float | None:
    """The same of the medians that torch.utils.benchmark.Compare prints."""
    measured = [
        benchmark.Timer(
            "step()", globals={"step": step}, label="s", sub_label=name, description="t"
        ).blocked_autorange(min_run_time=60 * minutes / 2)
        for name, step in (("first", first), ("second", second))
    ]
    table = benchmark.Compare(measured)
    table.trim_significant_figures()
    rows = re.findall(r"^\s+(?:first|second)\s+\|\s+([\d.]+)", str(table), re.MULTILINE)
    return claimed(*map(float, rows))


def looped(first: Step, second: Step) -> float | None:
    """The same of 100 steps of each, after three that are not timed."""
    took = []
    for step in (first, second):
        for _ in range(3):
            step()
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        took.append(time.perf_counter() - began)
    return claimed(*took)


def claimed(first: float, second: float) -> float | None:
    """The speedup of the second, if it is a claim. first, second: seconds."""
    speedup = first / second
    return speedup if not 1 / (1 + SAME) <= speedup <= 1 + SAME else None


def precision_steps() -> dict[str, Step]:
    """Steps of a small convolutional network, which differ as those that people compare do."""
    torch.set_num_threads(1)
    inputs, targets = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))

    def made(width: int, dtype: torch.dtype | None) -> Step:
        net = nn.Sequential(
            *(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(2 * width * 64, 10)),
        )
        optimizer = torch.optim.AdamW(net.parameters(), fused=True)

        def step() -> None:
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = functional.cross_entropy(net(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return step

    return {"fp32": made(16, None), "bf16": made(16, torch.bfloat16), "wide": made(24, None)}


def looped_alone(steps: Mapping[str, Step], seconds: float, times: int) -> dict[str, list[float]]:
    """Seconds of a step in loops of so many seconds, one step after the other, `times` times."""
    took: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(times):
        for name in list(steps)[:: 1 if number % 2 == 0 else -1]:
            began, calls = time.perf_counter(), 0
            while time.perf_counter() < began + seconds:
                steps[name]()
                calls += 1
            took[name].append((time.perf_counter() - began) / calls)
    return took


def held_against_loops(minutes: float) -> tuple[list[dict[str, Any]], float | None]:
    """Each pair's speedup and interval in time_steps, and that in long loops; and `busy`.

    The loops take as long as time_steps may. `error` is the standard error of their mean speedup.
    """
    steps = precision_steps()
    seconds = 60 * minutes / (2 * LOOPS * len(steps))
    took = looped_alone(steps, seconds, LOOPS)
    found = ninefold.time_steps(steps, minutes=minutes, show=False)
    for name, more in looped_alone(steps, seconds, LOOPS).items():
        took[name] += more
    rows: list[dict[str, Any]] = []
    for pair in found.pairs:
        first, second = str(pair.first), str(pair.second)
        speedups = [a / b for a, b in zip(took[first], took[second], strict=True)]
        rows.append(
            {
                "pair": f"{second} : {first}",
                "speedup": pair.speedup,
                "low": pair.low,
                "high": pair.high,
                "loops": fmean(took[first]) / fmean(took[second]),
                "error": stdev(speedups) / len(speedups) ** 0.5,
                "rounds": found.rounds,
                "seconds": {name: (found.seconds[name], took[name]) for name in (first, second)},
            }
        )
    return rows, found.busy


def tried(minutes: float) -> tuple[dict[str, dict[str, float | None]], list[float]]:
    """What each says of equal steps, and of one that is slower; and `busy` of both."""
    step, found, busy = training_step(), {}, []
    for case, second in (("equal", step), ("slower", slowed(step))):
        speedup, others = ours(step, second, minutes)
        busy += [] if others is None else [others]
        found[case] = {
            "time_steps": speedup,
            "Compare": compared(step, second, minutes),
            "plain loop": looped(step, second),
        }
    return found, busy


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks steps", description=__doc__)
    parser.add_argument("--tries", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=0.1, help="of time_steps and Compare each")
    parser.add_argument("--neighbor", type=float, default=0.0, help="share of a core that it uses")
    parser.add_argument("--long", action="store_true", help="hold speedups against long loops")
    parser.add_argument("--output", type=Path, help="keep what was found")
    given = parser.parse_args(arguments)
    with neighbor(given.neighbor):
        tries, busy = (against_loops if given.long else against_others)(given)
    if busy:
        print(f"other programs used {100 * fmean(busy):.0f} % of the CPU time")
    if given.output is not None:
        record: dict[str, Any] = {"given": vars(given) | {"output": None}, "tries": tries}
        write_json(given.output, {**record, "busy": busy, "environment": environment()})
    return 0


def against_others(given: argparse.Namespace) -> tuple[list[Any], list[float]]:
    """Who named a winner how often, printed; what each try found, and `busy`."""
    tries: list[dict[str, dict[str, float | None]]] = []
    busy: list[float] = []
    named, right, wrong = Counter[str](), Counter[str](), Counter[str]()
    for number in range(given.tries):
        found, others = tried(given.minutes)
        tries.append(found)
        busy += others
        named.update(who for who, speedup in found["equal"].items() if speedup)
        right.update(who for who, speedup in found["slower"].items() if speedup and speedup < 1)
        wrong.update(who for who, speedup in found["slower"].items() if speedup and speedup > 1)
        print(f"{number + 1} of {given.tries}: {found}", flush=True)
    rows = [
        (who, f"{named[who]} of {len(tries)}", f"{right[who]} of {len(tries)}", f"{wrong[who]}")
        for who in ("time_steps", "Compare", "plain loop")
    ]
    print("\n" + grid(HEADER, rows))
    return tries, busy


def against_loops(given: argparse.Namespace) -> tuple[list[Any], list[float]]:
    """Speedups and how far they are from those of long loops, printed; the same, and `busy`."""
    tries: list[list[dict[str, Any]]] = []
    busy: list[float] = []
    for _ in range(given.tries):
        found, others = held_against_loops(given.minutes)
        tries.append(found)
        busy += [] if others is None else [others]
        rows = [
            (
                row["pair"],
                f"{row['speedup']:.3f}",
                "not known" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}",
                f"{row['loops']:.3f}",
                f"{100 * row['error'] / row['loops']:.1f} %",
                f"{100 * (row['speedup'] / row['loops'] - 1):+.1f} %",
            )
            for row in found
        ]
        print(grid(LONG_HEADER, rows), flush=True)
    return tries, busy
