"""Plays studies whose truth is known, and says how often what is told of them is false."""

import argparse
import importlib
import json
import math
import sys
from multiprocessing import Pool
from pathlib import Path

import numpy as np

from .world import World, truth

SAME = math.log(1.02)
COLUMNS = ("misses", "at any look", "false", "decided", "half-width", "rms error", "bias")


def study(args):
    """Play one; return a value for each of COLUMNS, nan where there is none."""
    case, true, seed, adapter = args
    world, (module, _, name) = World(case, seed), adapter.partition(":")
    played = importlib.import_module(module).play(world, *filter(None, [name]))
    scripts, end, looks = case["scripts"], played.looks[-1], played.looks

    def log(pair):  # of the true speedup
        first, second = (true.get(name) or world.spec(name)["step"] for name in pair)
        return math.log(first / second)

    def misses(said, pair):
        return said.low is not None and not said.low <= math.exp(log(pair)) <= said.high

    def is_wrong(verdict, pair):
        far = log(pair)
        return {"faster": far < 1e-9, "slower": far > -1e-9, "tie": abs(far) > SAME + 1e-9}.get(
            verdict, False
        )

    known = {pair: said for pair, said in end.items() if said.low is not None}
    errors = [math.log(said.speedup) - log(pair) for pair, said in end.items() if said.speedup]
    decided = [said.verdict in ("faster", "slower", "tie") for said in end.values()]
    false = any(is_wrong(said.verdict, pair) for look in looks for pair, said in look.items())
    if "named" in played.told:  # of `--try`: what is named, and what is told to be no faster
        (base, *changes), named, no_faster = scripts, played.told["named"], played.told["no faster"]
        false = any(is_wrong("faster", (base, name)) for name in named)
        false |= any(log((base, name)) > SAME for name in no_faster)
        better = [
            name for name in changes if log((base, name)) > 0 and not scripts[name].get("part")
        ]
        decided = [name in named for name in better] or [not named]
    if "best" in played.told:  # of a study that asks for it: who is named, once that is decided
        named = played.told["best"]
        false |= any(log((name, other)) > SAME + 1e-9 for name in named for other in scripts)
        decided = [bool(named)]
    return (
        mean([misses(said, pair) for pair, said in known.items()]),
        mean([any(misses(look[pair], pair) for look in looks if pair in look) for pair in end]),
        float(false),
        mean(decided),
        mean([math.log(said.high / said.low) / 2 for said in known.values()], np.median),
        mean(np.square(errors)),
        mean(errors),
    )


def mean(values, of=np.mean):
    return float(of(values)) if len(values) else math.nan


def summed(rows):
    """A row of the table, in percent: the means over studies, and their standard errors."""
    row = {"studies": len(rows)}
    for name, values in zip(COLUMNS, np.array(rows).T, strict=True):
        values = 100 * values[np.isfinite(values)]
        row[name] = mean(values, np.median if name == "half-width" else np.mean)
        row[f"{name} se"] = mean(values, np.std) / math.sqrt(max(len(values), 1))
    row["rms error"] = 10 * math.sqrt(row["rms error"])  # it was of squares
    return row


def line(label, row):
    errors = {
        name: f"±{row[f'{name} se']:4.1f}"
        for name in COLUMNS
        if name not in ("half-width", "rms error")
    }
    return f"{label:54}" + "".join(f"{row[name]:7.1f} {errors.get(name, ''):5}" for name in COLUMNS)


def failures(label, row, limits):
    """What of a row does not hold, as far as so many studies can tell: two standard errors."""
    for name in ("misses", "false"):
        most = limits["known"].get(label, limits[name])
        room = 2 * math.sqrt(most * (100 - most) / row["studies"])
        if row[name] > most + room:
            yield f"{label}: {name} {row[name]:.1f} %, at most {most} (+ {room:.1f}) is allowed"
    least = limits["decided"].get(label, 0.0)
    if row["decided"] < least - 2 * max(row["decided se"], 50 / math.sqrt(row["studies"])):
        yield f"{label}: decided {row['decided']:.0f} %, at least {least:.0f} is asked for"


def main():
    add = (
        parser := argparse.ArgumentParser(prog="python -m tests.long.lab", description=__doc__)
    ).add_argument
    add("shapes", nargs="*", help="of the file of cases; none: all")
    add("--studies", type=int, default=200, help="of each case")
    add("--seed", type=int, default=0)
    add("--jobs", type=int, default=1)
    add("--cases", type=Path, default=Path(__file__).with_name("cases.json"))
    add("--thresholds", type=Path, default=Path(__file__).with_name("thresholds.json"))
    add(
        "--adapter",
        default="tests.long.lab.adapter",
        help="MODULE with play(world), or MODULE:NAME",
    )
    add("--json", type=Path, help="a file for the table")
    args = parser.parse_args()
    cases, limits = (json.loads(path.read_text()) for path in (args.cases, args.thresholds))
    found, bad = {}, []
    print(f"{'percent':54}{''.join(f'{name:13}' for name in COLUMNS)}")
    with Pool(args.jobs) as pool:
        for shape in args.shapes or cases:
            pooled = []
            for name, own in cases[shape]["cases"].items():
                label, case = f"{shape}: {name}", {**cases[shape]["all"], **own}
                true, first = truth(case["scripts"]), 1_000_000 * args.seed
                each = [(case, true, first + n, args.adapter) for n in range(args.studies)]
                rows = pool.map(study, each, chunksize=4)
                pooled, found[label] = pooled + rows, summed(rows)
                print(line(label, found[label]), flush=True)
            found[shape] = summed(pooled)
            print(line(f"{shape}, all", found[shape]), flush=True)
            bad += [each for label in found if label.partition(":")[0] == shape
                    for each in failures(label, found[label], limits)]  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    sys.exit("\n".join(bad) or 0)


if __name__ == "__main__":
    main()
