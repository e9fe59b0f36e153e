"""Holds what time studies promise against what whole long runs of the same cells take.

    python -m benchmarks true [WORKLOAD ...] [--rounds 8] [--neighbor 0.5] [--output FILE.json]
    python -m benchmarks true convnet_64 --handicap

For each workload a study of the time question is made amid rounds of whole runs: each is a command
of its own that trains for some ten seconds, the cells in shuffled order, the first epoch left out.
A pair of cells agrees if the ratio that the study found and that of the whole runs differ by no
more than a joint 99 % interval (Welch) of both allows. `--handicap` also computes the study's times
from the fastest half of its turns, as ninefold did once: fewer pairs must then agree, or the bench
is red. `--study OVERRIDE` (again for more studies) times another way, against the same whole runs.
`--neighbor` keeps a core busy for a share of the time, for studies and whole runs alike.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.known_answers import ROOT, neighbor
from ninefold.files import write_json
from ninefold.measure.environment import environment
from ninefold.report.render.tables import grid

Values = Mapping[str, Mapping[int, float]]  # cell -> round -> seconds per epoch

AXES = ("none", "ddp"), ("fp32", "autocast", "scaler")  # dp repeats none on a CPU
CELLS = [f"{parallel}-{amp}" for parallel in AXES[0] for amp in AXES[1]]
COMMON = ("launch.cpu_processes=2", "checkpoint.every=null", "logger=quiet")
# Overrides of each workload; FOLDER is one of images that the bench makes.
WORKLOADS = {
    "convnet_64": ("dataset=digits", "model=convnet", "batch_size=64"),
    "convnet_256": ("dataset=digits", "model=convnet", "batch_size=256"),
    "resnet_32px": (
        *("dataset=synthetic", "dataset.train_count=320", "dataset.test_count=32"),
        *("model=resnet18", "batch_size=32"),
    ),
    "files_32px": (
        *("dataset=folder", "dataset.root=FOLDER", "dataset.shape=[3,32,32]"),
        *("model=convnet", "batch_size=64"),
    ),
}
IMAGES, CLASSES, SIDE = 960, 4, 64  # of the folder: training images, their classes, pixels
SECONDS = 10  # that a whole run trains, at least; its number of epochs follows
LEVEL = 0.01  # of the joint interval
HEADER = ("pair", "study", "99.3 % interval", "whole runs", "se", "off by", "allowed", "agrees")
AGREE = 0.95  # share of the pairs, at least
RMS = {"quiet": 0.03, "beside a neighbor": 0.05}  # at most, without the noise of the whole runs
EPOCH = 0.03  # share by which the seconds per epoch of the named cell may be off


def make_images(folder: Path) -> None:
    """Images of noise over a gradient, as PNG files: decoding one takes some 0.2 ms."""
    from PIL import Image

    draw = np.random.default_rng(0)
    ramp = np.linspace(0, 128, SIDE, dtype=np.float64)[:, None, None]
    for split, count in (("train", IMAGES), ("test", 64)):
        for number in range(count):
            into = folder / split / f"class{number % CLASSES}"
            into.mkdir(parents=True, exist_ok=True)
            pixels = ramp + draw.integers(0, 128, (SIDE, SIDE, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(into / f"{number}.png")


def train(*overrides: str) -> None:
    """Run train.py. Raises CalledProcessError."""
    command = [sys.executable, "train.py", *overrides]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def whole_run(cell: str, seed: int, workload: Sequence[str], folder: Path) -> float:
    """Train a cell by a command of its own; return its mean seconds per epoch without the first."""
    parallel, amp = cell.split("-")
    into = folder / f"{seed}_{cell}"
    where = f"hydra.run.dir={into}"
    train(*workload, *COMMON, f"parallel={parallel}", f"amp={amp}", f"seed={seed}", where)
    seconds = json.loads((into / "result.json").read_text())["epoch_seconds"]
    return statistics.fmean(seconds[1:])


def epochs_for(cell: str, workload: Sequence[str], folder: Path) -> int:
    """Epochs of a run of SECONDS: an epoch takes 50 ms on one machine and a second on another."""
    return 1 + max(2, math.ceil(SECONDS / whole_run(cell, 0, (*workload, "epochs=3"), folder)))


def study(workload: Sequence[str], more: Sequence[str], folder: Path) -> None:
    """Run a study of the time question of all cells."""
    axes = [
        f"{key}={','.join(names)}" for key, names in zip(("parallel", "amp"), AXES, strict=True)
    ]
    own = (
        "study.ask=[time]",
        "study.pairs=all",
        "study.time_budget=1.75",
        f"hydra.sweep.dir={folder}",
    )
    train("-m", *workload, *COMMON, *axes, *own, *more)


def handicap(folder: Path) -> None:
    """Keep the fastest half of the turns of each run of a study, and write its report again."""
    for path in folder.glob("timing/*/*/result.json"):
        result = json.loads(path.read_text())
        turns = sorted(result["turn_seconds"])
        result["turn_seconds"] = turns[: math.ceil(len(turns) / 2)]
        path.write_text(json.dumps(result))
    command = [sys.executable, "-m", "ninefold.report", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def promised(folder: Path) -> dict[str, Any]:
    """What a study says: seconds per epoch by cell and round, pairs, named cell, controls."""
    report = json.loads((folder / "report" / "report.json").read_text())
    (group,) = report["groups"]
    return {
        "values": {
            cell["cell"]: {int(n): x for n, x in cell["measures"]["seconds"]["values"].items()}
            for cell in group["cells"]
        },
        "pairs": {
            f"{pair['first']} : {pair['second']}": pair for pair in group["comparison"]["seconds"]
        },
        "named": report["answer"]["cell"],
        "sentence": report["answer"]["lead"],
        "caveats": report["answer"]["caveats"],
        "control": group["comparison"]["control"],
        "steady": group["comparison"]["steady"],
        "conditions": report["conditions"],
    }


def logs(values: Values, first: str, second: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Logarithms of second / first in the rounds that both have: float64 [rounds]."""
    both = sorted(values[first].keys() & values[second].keys())
    return np.log([values[second][number] / values[first][number] for number in both])


def compare(found: dict[str, Any], whole: Values) -> dict[str, Any]:
    """Hold what a study found against whole runs."""
    rows = []
    for first, second in combinations(CELLS, 2):
        own, long = logs(found["values"], first, second), logs(whole, first, second)
        parts = [float(x.var(ddof=1)) / len(x) for x in (own, long)]
        freedom = sum(parts) ** 2 / sum(
            part**2 / (len(x) - 1) for part, x in zip(parts, (own, long), strict=True)
        )
        off = float(own.mean() - long.mean())
        allowed = float(stats.t.ppf(1 - LEVEL / 2, freedom)) * math.sqrt(sum(parts))
        pair = found["pairs"].get(f"{first} : {second}") or found["pairs"][f"{second} : {first}"]
        ends = [pair["low"], pair["high"]]
        if pair["first"] != first and None not in ends:
            ends = [1 / pair["high"], 1 / pair["low"]]
        rows.append(
            {
                "pair": f"{first} : {second}",
                "study": math.exp(own.mean()),
                "interval": ends,
                "whole": math.exp(long.mean()),
                "se_study": math.sqrt(parts[0]),
                "se_whole": math.sqrt(parts[1]),
                "off": off,
                "allowed": allowed,
                "agrees": abs(off) <= allowed,
            }
        )
    named = found["named"]
    epoch = None
    if named is not None:
        took, said = (
            statistics.fmean(values[named].values()) for values in (whole, found["values"])
        )
        spread = statistics.stdev(whole[named].values()) / math.sqrt(len(whole[named]))
        epoch = {
            "cell": named,
            "study": said,
            "whole": took,
            "off": said / took - 1,
            "se": spread / took,
        }
    squares = [row["off"] ** 2 for row in rows]
    noise = [statistics.fmean(row[key] ** 2 for row in rows) for key in ("se_whole", "se_study")]
    return {
        "rows": rows,
        "agree": statistics.fmean(row["agrees"] for row in rows),
        "rms": math.sqrt(statistics.fmean(squares)),
        "rms_without": math.sqrt(max(statistics.fmean(squares) - noise[0], 0.0)),
        "noise_of_whole_runs": math.sqrt(noise[0]),
        "noise_of_study": math.sqrt(noise[1]),
        "beyond_noise": math.sqrt(max(statistics.fmean(squares) - sum(noise), 0.0)),
        "epoch": epoch,
    }


def goals(said: dict[str, Any], where: str) -> list[tuple[str, bool]]:
    """A line on each goal, and whether it is met. where: a key of RMS."""
    found = [
        (
            f"{100 * said['agree']:.0f} % of {len(said['rows'])} pairs agree, goal at least "
            f"{100 * AGREE:.0f} %",
            said["agree"] >= AGREE,
        ),
        (
            f"rms {100 * said['rms']:.1f} %, {100 * said['rms_without']:.1f} % without the noise "
            f"of the whole runs ({100 * said['noise_of_whole_runs']:.1f} %), goal at most "
            f"{100 * RMS[where]:.0f} %; {100 * said['beyond_noise']:.1f} % without that of the "
            f"study as well ({100 * said['noise_of_study']:.1f} %)",
            said["rms_without"] <= RMS[where],
        ),
    ]
    if epoch := said["epoch"]:
        found.append(
            (
                f"seconds per epoch of {epoch['cell']}: {epoch['study']:.4g} promised, "
                f"{epoch['whole']:.4g} taken, {100 * epoch['off']:+.1f} % (se of the whole runs "
                f"{100 * epoch['se']:.1f} %), goal within {100 * EPOCH:.0f} %",
                abs(epoch["off"]) <= EPOCH,
            )
        )
    return found


def text_of(name: str, said: dict[str, Any], where: str) -> str:
    """The table of a study, and a line on each goal."""
    rows = [
        (
            row["pair"],
            f"{row['study']:.3f}",
            "not known" if None in row["interval"] else "{:.3f} to {:.3f}".format(*row["interval"]),
            f"{row['whole']:.3f}",
            f"{100 * row['se_whole']:.1f} %",
            f"{100 * row['off']:+.1f} %",
            f"{100 * row['allowed']:.1f} %",
            "yes" if row["agrees"] else "NO",
        )
        for row in said["rows"]
    ]
    lines = [f"{name}: {text}: {'met' if met else 'NOT MET'}" for text, met in goals(said, where)]
    return "\n".join([grid(HEADER, rows), *lines])


def measure(overrides: Sequence[str], given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make the studies and whole runs of a workload; return what both found."""
    studies = [option.split() for option in given.study or [""]]
    whole: dict[str, dict[int, float]] = {cell: {} for cell in CELLS}
    long = {cell: epochs_for(cell, overrides, folder / "short") for cell in CELLS}
    # Studies lie amid the rounds: what changes slowly is in both alike.
    after = [
        round((place + 1) * given.rounds / (len(studies) + 1)) for place in range(len(studies))
    ]
    for number in range(given.rounds + 1):
        for place, more in enumerate(studies):
            if after[place] == number:
                study(overrides, more, folder / f"study{place}")
        if number < given.rounds:
            cells = list(CELLS)
            random.Random(number).shuffle(cells)
            for cell in cells:
                own = (*overrides, f"epochs={long[cell]}")
                whole[cell][number] = whole_run(cell, number, own, folder / "whole")
    found = []
    for place, more in enumerate(studies):
        into = folder / f"study{place}"
        found.append({"overrides": more, "handicap": False, **promised(into)})
        if given.handicap:
            handicap(into)
            found.append({"overrides": more, "handicap": True, **promised(into)})
    return {
        "whole": whole,
        "epochs": long,
        "studies": [{**each, **compare(each, whole)} for each in found],
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks true",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=8, help="of whole runs, at least 2")
    parser.add_argument("--neighbor", type=float, default=0, help="share of a core it keeps busy")
    parser.add_argument("--study", action="append", help="overrides of a study, in one word")
    parser.add_argument("--handicap", action="store_true", help="also the fastest half of turns")
    parser.add_argument("--output", type=Path, help="a JSON file for what was seen")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.workloads if name not in WORKLOADS]:
        parser.error(f"no such workload: {unknown[0]}; there are {', '.join(WORKLOADS)}")
    record: dict[str, Any] = {
        "conditions": {key: value for key, value in vars(given).items() if key != "output"},
        "environment": environment(),
        "workloads": {},
    }
    where = "beside a neighbor" if given.neighbor else "quiet"
    agreed: dict[bool, list[bool]] = {False: [], True: []}  # by whether it was handicapped
    green = True
    with tempfile.TemporaryDirectory() as text, neighbor(given.neighbor):
        make_images(Path(text) / "images")
        for name in given.workloads or WORKLOADS:
            began = time.monotonic()
            images = str(Path(text) / "images")
            own = [override.replace("FOLDER", images) for override in WORKLOADS[name]]
            found = measure(own, given, Path(text) / name)
            record["workloads"][name] = {"overrides": WORKLOADS[name], **found}
            for each in found["studies"]:
                title = " ".join([name, *each["overrides"], *["(handicap)"] * each["handicap"]])
                print(text_of(title, each, where), flush=True)
                agreed[each["handicap"]] += [row["agrees"] for row in each["rows"]]
                if not each["handicap"]:
                    green &= all(met for _, met in goals(each, where))
            print(f"{name} took {time.monotonic() - began:.0f} s\n", flush=True)
            if given.output:
                write_json(given.output, record)
    for handicapped, pairs in agreed.items():
        if pairs:
            which = "with the handicap " if handicapped else ""
            print(
                f"in all {which}{100 * statistics.fmean(pairs):.0f} % of {len(pairs)} pairs agree"
            )
    if agreed[True] and statistics.fmean(agreed[True]) >= AGREE:
        print("the handicap was not seen: this bench shows nothing")
        green = False
    return 0 if green else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
