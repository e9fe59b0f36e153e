"""Run the benches, each in a new process, and print one table.

    python -m benchmarks [NAME ...] [--pairs N] [--output FOLDER] [--handicap] [--list]

In every round each contestant of a bench has a turn, and ours has two. One round before the others
does not count; 10 do, unless the table says otherwise. If the interval of ours over its second turn
does not contain 1, the machine was not quiet: the recording is repeated once, and its rows say
`void` if that does not help. *Met* or *not met* is decided by the median; *within the noise* says
that the interval includes the goal.

`--handicap` slows ours down on purpose, by 50 µs a step, 10 ms a batch and a save that waits for
the disk: its rows must then say *not met*. Rivals have Lightning's barebones Trainer, DataLoaders
that fetch whole batches, and no logging where ours does not log. GPUs are hidden: these figures are
of a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import (
    CONTROL,
    OURS,
    Array,
    Bench,
    estimate,
    is_quiet,
    ratio,
    take_turns,
    verdict,
)
from ninefold.files import write_json
from ninefold.measure.environment import environment
from ninefold.tables import grid

SUBJECTS = ("step", "inputs", "scaling", "start", "checkpoints")
ATTEMPTS = 2  # recordings of a bench, if the first is void
HEADER = ("what", "compared with", "value", "95 % interval", "goal", "verdict")


def main() -> int:
    arguments = parse()
    # The contestants train on the CPU: ours would take a GPU where there is one, the others not.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    benches = known()
    if unknown := [name for name in arguments.names if name not in benches]:
        print(
            f"error: bench={unknown[0]}: no such bench; there are {', '.join(benches)}; "
            "see python -m benchmarks --list",
            file=sys.stderr,
        )
        return 2
    chosen = [benches[name] for name in arguments.names or benches]
    if arguments.list:
        for bench in chosen:
            print(f"{bench.name}: {bench.conditions}")
    elif arguments.into is not None:  # the process of one bench
        figures = take_turns(chosen[0], arguments.pairs or chosen[0].pairs, arguments.handicap)
        arguments.into.write_text(json.dumps({name: of.tolist() for name, of in figures.items()}))
    else:
        records, broken = [], []
        for bench in chosen:
            try:
                records.append(measure(bench, arguments))
            except subprocess.CalledProcessError as error:
                lines = error.stderr.strip().splitlines() or [f"it ended with {error.returncode}"]
                broken.append(f"not measured: {bench.name}: {lines[-1]}")
                print(broken[-1], file=sys.stderr)
            if arguments.output is not None:  # after each bench, so that a crash loses nothing
                folder = write(arguments.output, records, list(benches))
        print("\n" + "\n\n".join([table(records), *broken]))
        if arguments.output is not None:
            print(f"record {folder}")
        return 1 if broken else 0
    return 0


def parse() -> argparse.Namespace:
    description, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=description)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benches; all if none is named")
    parser.add_argument("--pairs", type=int, help="rounds; each bench has its own default")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="keep a record in there")
    parser.add_argument("--handicap", action="store_true", help="slow ours down on purpose")
    parser.add_argument("--list", action="store_true", help="list the benches, and end")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def known() -> dict[str, Bench]:
    found = [bench for name in SUBJECTS for bench in import_module(f"benchmarks.{name}").BENCHES]
    return {bench.name: bench for bench in found}


def measure(bench: Bench, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run a bench; returns its figures, and the value and verdict of each row."""
    print(f"{bench.name}: {bench.conditions}", flush=True)
    began, void = time.monotonic(), -1
    quiet = False
    while not quiet and void + 1 < ATTEMPTS:
        void += 1
        figures = figures_of(bench, arguments)
        control = estimate(ratio(OURS, CONTROL)(figures))
        quiet = is_quiet(control)
    rows = []
    for row in bench.rows:
        found = estimate(row.value(figures))
        said = verdict(found, row.goal, quiet)
        rows.append(
            {
                "what": row.what,
                "rival": row.rival,
                "value": found.median,
                "low": found.low,
                "high": found.high,
                "unit": row.unit,
                "goal": str(row.goal or "–"),
                "verdict": said,
            }
        )
        print("  " + "  ".join(cells(rows[-1])), flush=True)
    took = time.monotonic() - began
    print(
        f"  control {control.median:.3f} [{control.low:.3f}, {control.high:.3f}], "
        f"{void} void before, {took:.0f} s",
        flush=True,
    )
    return {
        "name": bench.name,
        "conditions": bench.conditions,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "pairs": len(figures[OURS]),
        "void_sittings_before": void,
        "control": [control.median, control.low, control.high],
        "seconds": took,
        "rows": rows,
        "figures": {name: values.tolist() for name, values in figures.items()},
    }


def figures_of(bench: Bench, arguments: argparse.Namespace) -> dict[str, Array]:
    """Run a bench once in a new process; returns each contestant's figures.

    Raises CalledProcessError, with the process's stderr, if it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        command = [sys.executable, "-m", "benchmarks", bench.name, "--into", str(file)]
        command += ["--pairs", str(arguments.pairs)] * (arguments.pairs is not None)
        command += ["--handicap"] * arguments.handicap
        subprocess.run(
            command, check=True, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        return {name: np.array(of) for name, of in json.loads(file.read_text()).items()}


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Format a row as the columns of HEADER."""
    digits = 3 if abs(row["value"]) < 10 else 1
    value, low, high = (f"{row[key]:.{digits}f}" for key in ("value", "low", "high"))
    return (
        row["what"],
        row["rival"],
        f"{value} {row['unit']}",
        f"[{low}, {high}]",
        row["goal"],
        row["verdict"],
    )


def table(records: list[dict[str, Any]]) -> str:
    rows = [cells(row) for record in records for row in record["rows"]]
    minutes = sum(record["seconds"] for record in records) / 60
    return f"{grid(HEADER, rows)}\n\n{len(records)} benches in {minutes:.0f} minutes."


def write(folder: Path, records: list[dict[str, Any]], names: list[str]) -> Path:
    """Write figures, table and environment to a folder named after day and hardware.

    Records of the same day stay, except those of a bench that was measured again.
    names: all benches, in order.
    """
    found = {name: value for name, value in environment().items() if name != "hostname"}
    for rival in ("lightning", "accelerate"):
        with suppress(PackageNotFoundError):
            found["versions"][rival] = version(rival)
    hardware = re.sub(r"[^a-z0-9]+", "-", str(found["cpu"]).lower()).strip("-")
    into = folder / f"{time.strftime('%Y-%m-%d')}_{hardware}-{found['cores']}-cores"
    into.mkdir(parents=True, exist_ok=True)
    file = into / "figures.json"
    earlier = json.loads(file.read_text()) if file.exists() else []
    of = {record["name"]: record for record in [*earlier, *records]}
    kept = [of[name] for name in names if name in of]
    left_out = [f"Not measured: {name}." for name in names if name not in of]
    conditions = [
        f"- **{record['name']}** ({record['pairs']} rounds, control "
        f"[{record['control'][1]:.3f}, {record['control'][2]:.3f}], "
        f"{record['void_sittings_before']} void before): {record['conditions']}"
        for record in kept
    ]
    text = "\n\n".join([table(kept), *left_out, "\n".join(conditions)])
    (into / "table.md").write_text(f"{text}\n")
    write_json(file, kept)
    write_json(into / "environment.json", found)
    return into
