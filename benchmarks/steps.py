"""Who names a winner among equal training steps: time_steps, torch's Compare, or a plain loop?

    python -m benchmarks steps [--tries 30] [--minutes 0.1] [--neighbor 0.5] [--output FILE.json]

In each try the three compare a step with itself, under two names, and then with one that takes 5 %
longer (it waits). time_steps names a winner if it calls a step faster. torch.utils.benchmark has as
long, and its Compare names one if the medians that it prints, cut to the digits that it holds to be
significant, differ by more than 2 %. The plain loop times 100 steps of each, one after the other,
and names one if these differ by more than 2 %. `--neighbor` keeps a core busy for a share of the
time (neighbor.py). Other programs on the machine are part of the conditions; `busy` tells of them.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils import benchmark

import ninefold
from benchmarks.known_answers import neighbor
from ninefold.files import write_json
from ninefold.machine import environment
from ninefold.report.render.markdown import grid

SAME = 0.02  # times that differ by less are no claim
SLOWER = 0.05
STEPS = 100  # of each in the plain loop
Step = Callable[[], None]
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
    """The ratio second / first where a step is called faster, else None; and `busy`."""
    found = ninefold.time_steps({"first": first, "second": second}, minutes=minutes, show=False)
    (pair,) = found.pairs
    return pair.estimate if pair.verdict in ("faster", "slower") else None, found.busy


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
    """Their ratio, if it is a claim."""
    ratio = second / first
    return ratio if not 1 / (1 + SAME) <= ratio <= 1 + SAME else None


def tried(minutes: float) -> tuple[dict[str, dict[str, float | None]], list[float]]:
    """What each says of equal steps, and of one that is slower; and `busy` of both."""
    step, found, busy = training_step(), {}, []
    for case, second in (("equal", step), ("slower", slowed(step))):
        ratio, others = ours(step, second, minutes)
        busy += [] if others is None else [others]
        found[case] = {
            "time_steps": ratio,
            "Compare": compared(step, second, minutes),
            "plain loop": looped(step, second),
        }
    return found, busy


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks steps", description=__doc__)
    parser.add_argument("--tries", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=0.1, help="of time_steps and Compare each")
    parser.add_argument("--neighbor", type=float, default=0.0, help="share of a core that it uses")
    parser.add_argument("--output", type=Path, help="keep what was found")
    given = parser.parse_args(arguments)
    tries: list[dict[str, dict[str, float | None]]] = []
    busy: list[float] = []
    named, right, wrong = Counter[str](), Counter[str](), Counter[str]()
    with neighbor(given.neighbor):
        for number in range(given.tries):
            found, others = tried(given.minutes)
            tries.append(found)
            busy += others
            named.update(who for who, ratio in found["equal"].items() if ratio)
            right.update(who for who, ratio in found["slower"].items() if ratio and ratio > 1)
            wrong.update(who for who, ratio in found["slower"].items() if ratio and ratio < 1)
            print(f"{number + 1} of {given.tries}: {found}", flush=True)
    rows = [
        (who, f"{named[who]} of {len(tries)}", f"{right[who]} of {len(tries)}", f"{wrong[who]}")
        for who in ("time_steps", "Compare", "plain loop")
    ]
    print("\n" + grid(HEADER, rows))
    if busy:
        print(f"other programs used {100 * fmean(busy):.0f} % of the CPU time")
    if given.output is not None:
        record: dict[str, Any] = {"given": vars(given) | {"output": None}, "tries": tries}
        write_json(given.output, {**record, "busy": busy, "environment": environment()})
    return 0
