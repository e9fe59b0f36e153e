"""Studies of the time question whose answers are known: equal cells, and cells slowed on purpose.

    python -m benchmarks.known_answers --studies 10 --delay 0.0002 --output FILE.json
    python -m benchmarks.known_answers --studies 10 --delay 0.0002 --neighbor 0.5

Nine cells of the ConvNet on digits: parallel=none,dp,ddp with amp=fp32, `again` (the same under
another name) and `delayed` (each training step takes `--delay` seconds longer). So on a CPU
none-fp32, none-again, dp-fp32 and dp-again are equal; a study that calls two of them, or ddp's two,
different is wrong, and so is one that names another cell. The delayed cells are to be found slower.
Other processes on the machine are part of the conditions: `--neighbor` adds one (neighbor.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ninefold.engine.amp import Amp
from ninefold.files import write_json
from ninefold.measure.environment import environment
from ninefold.stats.verdicts import UNDECIDED

ROOT = Path(__file__).parents[1]
EQUAL = [("none-fp32", "none-again", "dp-fp32", "dp-again"), ("ddp-fp32", "ddp-again")]
DELAYED = [(f"{name}-fp32", f"{name}-delayed") for name in ("none", "dp", "ddp")]
STUDY = ("model=convnet", "dataset=digits", "parallel=none,dp,ddp", "amp=fp32,again,delayed",
         "study.ask=[time]", "launch.cpu_processes=2")  # fmt: skip
KEYS = ("first", "second", "speedup", "low", "high", "verdict")
OPTION = "_target_: benchmarks.known_answers.Delayed\ndtype: float32\ndelay: {delay}\n"


@dataclass(frozen=True)
class Delayed(Amp):
    """A precision in which each training step takes `delay` seconds longer."""

    delay: float = 0.0

    def wrap(self, model: nn.Module) -> nn.Module:
        model.register_forward_pre_hook(self._wait)
        return super().wrap(model)

    def _wait(self, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        until = time.perf_counter() + self.delay * model.training
        while time.perf_counter() < until:
            pass


@contextmanager
def neighbor(share: float) -> Iterator[None]:
    """Keep one core busy for a share of the time meanwhile; 0: without a neighbor."""
    if not share:
        yield
        return
    command = ["-m", "benchmarks.neighbor", "--seconds", "1e9", "--share", str(share)]
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def study(folder: Path, delay: float, overrides: list[str]) -> dict[str, Any]:
    """Run one study; returns what it found. delay: in seconds."""
    for name, seconds in (("again", 0.0), ("delayed", delay)):
        option = folder / "conf" / "amp" / f"{name}.yaml"
        option.parent.mkdir(parents=True, exist_ok=True)
        option.write_text(OPTION.format(delay=seconds))
    command = [sys.executable, "train.py", "--config-dir", str(folder / "conf"), "-m", *STUDY]
    began = time.monotonic()
    subprocess.run(
        [*command, f"hydra.sweep.dir={folder / 'sweep'}", *overrides],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return {
        "minutes": (time.monotonic() - began) / 60,
        **found(json.loads((folder / "sweep" / "report" / "report.json").read_text())),
    }


def found(report: dict[str, Any]) -> dict[str, Any]:
    """What a study says: of a report.json."""
    (group,) = report["groups"]
    pairs = {(pair["first"], pair["second"]): pair for pair in group["comparison"]["seconds"]}
    times = [cell["measures"]["seconds"]["mean"] for cell in group["cells"]
             if cell["cell"] in EQUAL[0]]  # fmt: skip

    def brief(first: str, second: str) -> dict[str, Any]:
        pair = pairs.get((first, second)) or pairs[second, first]
        return {key: pair[key] for key in KEYS}

    return {
        "rounds": group["timing_rounds"],
        "named": report["answer"]["cell"],
        "chance": report["answer"].get("chance"),
        "seconds": statistics.median(times),
        "decided": sum(pair["verdict"] not in UNDECIDED for pair in pairs.values()),
        "floor": group["comparison"]["floor"],
        "equal": [brief(*pair) for cells in EQUAL for pair in combinations(cells, 2)],
        "delayed": [brief(*pair) for pair in DELAYED],
    }


def summary(studies: list[dict[str, Any]]) -> list[str]:
    """The sentences at the end."""
    count = len(studies)
    false = sum(pair["verdict"] in ("slower", "faster") for s in studies for pair in s["equal"])
    right = sum(s["named"] in EQUAL[0] for s in studies)
    silent = sum(s["named"] is None for s in studies)
    lines = [
        f"{count} studies, {statistics.mean(s['minutes'] for s in studies):.1f} minutes each",
        f"equal cells called different: {false} of {count * len(studies[0]['equal'])} pairs",
        f"named a cell that is as fast as any: {right}; named none: {silent}",
    ]
    for number, (plain, delayed) in enumerate(DELAYED):
        verdicts = [s["delayed"][number] for s in studies]
        shown = sum(_says_slower(pair, delayed) for pair in verdicts)
        lines.append(f"{delayed} found slower than {plain}: {shown} of {count}")
    return lines


def _says_slower(pair: dict[str, Any], cell: str) -> bool:
    return bool(pair["verdict"] == ("slower" if pair["second"] == cell else "faster"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.known_answers", description=__doc__)
    parser.add_argument("--studies", type=int, default=10)
    parser.add_argument("--delay", type=float, default=0.0002, help="seconds of a delayed step")
    parser.add_argument("--neighbor", type=float, default=0, help="share of a core it keeps busy")
    parser.add_argument("--output", type=Path, help="a JSON file for what was seen")
    parser.add_argument("overrides", nargs="*", help="such as study.time_budget=2")
    given = parser.parse_args()
    studies: list[dict[str, Any]] = []
    for _ in range(given.studies):
        with tempfile.TemporaryDirectory() as folder, neighbor(given.neighbor):
            studies.append(study(Path(folder), given.delay, given.overrides))
        print(json.dumps(studies[-1]), flush=True)
        if given.output:
            conditions = {key: value for key, value in vars(given).items() if key != "output"}
            write_json(
                given.output,
                {"conditions": conditions, "environment": environment(), "studies": studies},
            )
    print("\n".join(summary(studies)))


if __name__ == "__main__":
    main()
