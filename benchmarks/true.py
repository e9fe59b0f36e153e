"""Holds what time studies promise against what whole long runs of the same cells take.

    python -m benchmarks true [WORKLOAD ...] [--rounds 8] [--neighbor 0.5] [--output FILE.json]
    python -m benchmarks true convnet_64 --handicap

For each workload a study of the time question is made amid rounds of whole runs: each is a command
of its own that trains for some ten seconds, the cells in shuffled order, the first epoch left out.
A pair of cells agrees if the speedup that the study found and that of the whole runs' median epochs
differ by no more than a joint 99 % interval (Welch) of both allows. The same is told of their mean
epochs, which a burst of another program can move by any amount, and how much of them was disturbed.
`--handicap` also computes the study's times from the fastest half of its turns, as ninefold did
once: fewer pairs must then agree, or the bench is red. `--study OVERRIDE` (again for more studies)
times another way, against the same whole runs. `--neighbor` keeps a core busy for a share of the
time, for studies and whole runs alike.
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
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.known_answers import ROOT, neighbor
from ninefold.files import write_json
from ninefold.measure.environment import environment
from ninefold.tables import grid

Values = Mapping[str, Mapping[int, float]]  # cell -> round -> seconds per epoch
WholeRuns = Mapping[str, Mapping[int, "WholeRun"]]  # cell -> round

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
DISTURBED = 1.25  # times the median of its run, from which on an epoch is disturbed
MEDIAN, MEAN = "median epoch", "mean epoch"  # what a whole run is summed up by; the first decides
HEADER = (
    *("pair", "speedup in the study", "interval", MEDIAN, "se", "off by", "allowed", "agrees"),
    *(MEAN, "se", "off by", "agrees"),
)
AGREE = 0.95  # share of the pairs, at least
RMS = {"quiet": 0.03, "beside a neighbor": 0.05}  # at most, without the noise of the whole runs
EPOCH = 0.03  # share by which the seconds per epoch of the named cell may be off


@dataclass(frozen=True)
class WholeRun:
    """A whole run without its first epoch.

    mean, median: seconds per epoch. disturbed: the share of its seconds that it spent in epochs
    from DISTURBED times the median on, 0 to 1.
    """

    mean: float
    median: float
    disturbed: float

    @classmethod
    def of(cls, epochs: Sequence[float]) -> WholeRun:
        """epochs: seconds of each."""
        median = statistics.median(epochs)
        slow = sum(seconds for seconds in epochs if seconds >= DISTURBED * median)
        return cls(statistics.fmean(epochs), median, slow / sum(epochs))


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


def whole_run(cell: str, seed: int, workload: Sequence[str], folder: Path) -> WholeRun:
    """Train a cell by a command of its own."""
    parallel, amp = cell.split("-")
    into = folder / f"{seed}_{cell}"
    where = f"hydra.run.dir={into}"
    train(*workload, *COMMON, f"parallel={parallel}", f"amp={amp}", f"seed={seed}", where)
    return WholeRun.of(json.loads((into / "result.json").read_text())["epoch_seconds"][1:])


def epochs_for(cell: str, workload: Sequence[str], folder: Path) -> int:
    """Epochs of a run of SECONDS: an epoch takes 50 ms on one machine and a second on another."""
    short = whole_run(cell, 0, (*workload, "epochs=3"), folder)
    return 1 + max(2, math.ceil(SECONDS / short.mean))


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
        turns = result["turn_seconds"]
        fast = sorted(sorted(range(len(turns)), key=turns.__getitem__)[: math.ceil(len(turns) / 2)])
        for key, of_turns in result.items():
            if key.startswith("turn_") and len(of_turns) == len(turns):
                result[key] = [of_turns[number] for number in fast]
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
        "conditions": report["conditions"],
    }


def logs(values: Values, first: str, second: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Logarithms of the speedups of the second over the first, by rounds of both: float64."""
    both = sorted(values[first].keys() & values[second].keys())
    return np.log([values[first][number] / values[second][number] for number in both])


def compare(found: dict[str, Any], whole: Values) -> dict[str, Any]:
    """Hold what a study found against whole runs. whole: what sums each of them up."""
    rows = list[dict[str, Any]]()
    for first, second in combinations([cell for cell in CELLS if cell in found["values"]], 2):
        own, long = logs(found["values"], first, second), logs(whole, first, second)
        if len(own) < 2:  # nothing is known of the noise of this pair
            continue
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
    squared = {
        key: sum(row[key] ** 2 for row in rows) / max(len(rows), 1)
        for key in ("off", "se_whole", "se_study")
    }
    beyond = squared["off"] - squared["se_whole"]
    return {
        "rows": rows,
        "agree": sum(row["agrees"] for row in rows) / max(len(rows), 1),
        "rms": math.sqrt(squared["off"]),
        "rms_without": math.sqrt(max(beyond, 0.0)),
        "noise_of_whole_runs": math.sqrt(squared["se_whole"]),
        "noise_of_study": math.sqrt(squared["se_study"]),
        "beyond_noise": math.sqrt(max(beyond - squared["se_study"], 0.0)),
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


def text_of(name: str, said: Mapping[str, dict[str, Any]], where: str) -> str:
    """The table of a study, and a line on each goal. said: by what sums up a whole run."""
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
            f"{mean['whole']:.3f}",
            f"{100 * mean['se_whole']:.1f} %",
            f"{100 * mean['off']:+.1f} %",
            "yes" if mean["agrees"] else "NO",
        )
        for row, mean in zip(said[MEDIAN]["rows"], said[MEAN]["rows"], strict=True)
    ]
    lines = [
        f"{name}: {text}: {'met' if met else 'NOT MET'}" for text, met in goals(said[MEDIAN], where)
    ]
    lines += [f"{name}, by the {MEAN}: {text}" for text, _ in goals(said[MEAN], where)]
    return "\n".join([grid(HEADER, rows), *lines])


def disturbed_text(name: str, whole: WholeRuns) -> str:
    """A line on how much of the whole runs was disturbed."""
    shares = {
        f"{cell} of round {number + 1}": run.disturbed
        for cell, runs in whole.items()
        for number, run in runs.items()
    }
    worst = max(shares, key=shares.__getitem__)
    return (
        f"{name}: whole runs spent {100 * statistics.fmean(shares.values()):.0f} % of their time "
        f"in epochs of {DISTURBED} times their median or more, {worst} {100 * shares[worst]:.0f} %"
    )


def measure(overrides: Sequence[str], given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make the studies and whole runs of a workload; return what both found."""
    studies = [option.split() for option in given.study or [""]]
    whole: dict[str, dict[int, WholeRun]] = {cell: {} for cell in CELLS}
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
    summed_up: dict[str, Values] = {
        MEDIAN: {cell: {n: run.median for n, run in runs.items()} for cell, runs in whole.items()},
        MEAN: {cell: {n: run.mean for n, run in runs.items()} for cell, runs in whole.items()},
    }
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
        "studies": [
            {**each, "said": {by: compare(each, values) for by, values in summed_up.items()}}
            for each in found
        ],
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
            runs = {
                cell: {number: asdict(run) for number, run in of.items()}
                for cell, of in found["whole"].items()
            }
            record["workloads"][name] = {"overrides": WORKLOADS[name], **found, "whole": runs}
            for each in found["studies"]:
                title = " ".join([name, *each["overrides"], *["(handicap)"] * each["handicap"]])
                print(text_of(title, each["said"], where), flush=True)
                said = each["said"][MEDIAN]
                agreed[each["handicap"]] += [row["agrees"] for row in said["rows"]]
                if not each["handicap"]:
                    green &= all(met for _, met in goals(said, where))
            print(disturbed_text(name, found["whole"]))
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
