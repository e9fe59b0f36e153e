"""A report.json of made-up runs, in every shape that the page has to show."""

from __future__ import annotations

import math
import random
import statistics
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from itertools import combinations
from typing import Any, get_args, get_origin, get_type_hints

from ninefold.report.answer.tree import Figures, LargestBatch, Report
from ninefold.report.data.cell import Cell

PARALLELS = ("none", "dp", "ddp")
AMPS = ("fp32", "autocast", "scaler")
SLOWER = {
    "none": 1.0, "dp": 1.0, "ddp": 1.09,
    "fp32": 1.0, "autocast": 1.22, "scaler": 1.24, "tf32": 0.97, "bf16": 0.93,
}  # fmt: skip
MEASURES = (
    ("seconds", "Seconds per epoch", "s", "less"),
    ("throughput", "Images per second", "images/s", "more"),
    ("accuracy", "Test accuracy", "%", "more"),
    ("memory", "Peak memory", "bytes", "less"),
    ("energy", "Energy per epoch", "J", "less"),
    ("to_target", "Time to 64.28 %", "s", "less"),
    ("max_batch", "Largest batch", "images", "more"),
)
DP_NOTE = "dp is a no-op here: DataParallel replicates nothing on a CPU"


def report_of(content: Any) -> Report:
    """The report whose report.json has this content."""
    report = _typed(Report, content)
    assert isinstance(report, Report)
    return report


def _typed(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if get_origin(kind) is types.UnionType:
        return _typed(get_args(kind)[0], value)
    if kind is Cell:
        strategy, _, amp = value.rpartition("-")
        parallel, _, processes = strategy.partition(" x")
        return Cell(parallel, amp, int(processes) if processes else None)
    if kind is Figures and "why" in value:
        kind = LargestBatch
    if is_dataclass(kind):
        cells = dict.fromkeys(("first", "second", "cell"), Cell)  # of statistics: a Name
        hints = {name: cells.get(name, hint) for name, hint in get_type_hints(kind).items()}
        known = {field.name: field for field in fields(kind)}
        needed = {
            name
            for name, field in known.items()
            if field.default is MISSING and field.default_factory is MISSING
        }
        assert needed <= value.keys() <= known.keys(), (kind, value.keys())
        found: Any = kind(**{name: _typed(hints[name], each) for name, each in value.items()})
        return found
    if get_origin(kind) is list:
        return [_typed(get_args(kind)[0], each) for each in value]
    if get_origin(kind) in (dict, Mapping):
        names, values = get_args(kind)
        return {_typed(names, key): _typed(values, each) for key, each in value.items()}
    return value


def sample(
    parallels: Sequence[str] = PARALLELS,
    amps: Sequence[str] = AMPS,
    seeds: int = 5,
    epochs: int = 8,
    failed: Sequence[str] = (),
    unavailable: Sequence[str] = ("energy",),
) -> dict[str, Any]:
    """A report of one group; `failed` cells have no figure, `unavailable` measures no value."""
    cells = [f"{parallel}-{amp}" for parallel in parallels for amp in amps]
    tables = {cell: _values(cell, seeds, unavailable) for cell in cells if cell not in failed}
    winner = min(
        tables, key=lambda cell: statistics.fmean(tables[cell]["seconds"].values()), default=None
    )
    group = {
        "title": f"convnet on cifar10, batch 64, {epochs} epochs",
        "dataset": "cifar10", "model": "convnet", "batch_size": 64, "epochs": epochs,
        "variant": "", "part": 0, "parallels": list(parallels), "amps": list(amps),
        "planned": cells,
        "measures": [
            {
                "key": key, "title": title, "unit": unit, "better": better,
                "about": f"{title}: the mean over seeds, with its 95 % interval.",
                "available": key not in unavailable and bool(tables),
                "why_not": f"{title} was not measured here." if key in unavailable else None,
            }
            for key, title, unit, better in MEASURES
        ],
        "cells": [_cell(cell, seeds, tables) for cell in cells],
        "pairs": {
            "seconds": [_pair(first, second, tables, "seconds") for first, second in
                        combinations(tables, 2)],
            "accuracy": [_pair(first, second, tables, "accuracy") for first, second in
                         combinations(tables, 2)],
        },
        "safety": [_safety(cell, tables) for cell in tables if cell != "none-fp32"]
        if "none-fp32" in tables else [],
        "controls": [
            {"first": f"none-{amp}", "second": f"dp-{amp}", "ratio": 1.002, "low": 0.991,
             "high": 1.013, "floor": 0.013, "held": amp != "scaler"}
            for amp in amps if f"none-{amp}" in tables and f"dp-{amp}" in tables
        ],
        "steady": [
            {"cell": f"{parallel}-fp32", "n": 4, "ratio": ratio, "low": ratio * 0.97,
             "high": ratio * 1.03, "held": parallel != "ddp"}
            for parallel, ratio in (("none", 1.004), ("ddp", 0.91)) if f"{parallel}-fp32" in tables
        ],
        "floor": 0.1,
        "numerics": _numerics(list(tables), seeds) if "none-fp32" in tables else None,
        "curves": [
            {"cell": cell, "seed": seed, "points": _curve(cell, seed, epochs, tables)}
            for cell in tables for seed in range(seeds)
        ],
        "rounds": [
            {"round": number, "attempt": attempt, "seed": number, "drift": drift,
             "drifted": drift > 0.1, "counted": attempt == 1 or drift <= 0.1}
            for number in range(seeds)
            for attempt, drift in ([(0, 0.184), (1, 0.021)] if number == 2
                                   else [(0, 0.01 + 0.008 * number)])
        ],
        "score": "accuracy",
        "further": [
            {"name": "mean error", "unit": "mm", "better": "less", "cells": _further(tables, 31.0)},
            {"name": "top-5 accuracy", "unit": "%", "better": "more", "cells": _further(tables, 1)},
        ],
    }  # fmt: skip
    notes = []
    if "dp" in parallels:
        holders = [cell for cell in cells if cell.startswith("dp-")]
        notes.append({"number": 1, "text": DP_NOTE, "cells": holders})
    if "scaler" in amps:
        holders = [cell for cell in cells if cell.endswith("-scaler")]
        text = "bfloat16 has no underflow for the GradScaler to prevent"
        notes.append({"number": len(notes) + 1, "text": text, "cells": holders})
    for cell in group["cells"]:
        cell["marks"] = [note["number"] for note in notes if cell["cell"] in note["cells"]]
    return {
        "format": 1, "title": "cifar10_cpu", "study": "cifar10_cpu",
        "question": "On a CPU with a real dataset: which of the nine cells is fastest, and do "
        "they learn alike?",
        "command": "python train.py experiments=cifar10_cpu dataset.root=data",
        "conditions": ["dataset cifar10", "model convnet", "batch size 64", f"{epochs} epochs",
                       "2 CPU threads", "torch 2.15.0", "commit 7bb264f012 clean", "2026-11-20"],
        "machine": "Two cores of an AMD EPYC, no GPU, Linux.",
        "settings": {"margin": 0.5, "same": 0.02, "level": 0.05, "target": None, "looks": 1,
                     "confidence": 95.0, "drift": 0.1},
        "answer": _answer(winner, tables, unavailable),
        "groups": [group],
        "notes": notes,
        "runs": _runs(cells, seeds, tables),
        "environment": {
            "study": "cifar10_cpu", "dataset": "cifar10", "model": "convnet", "batch_size": 64,
            "epochs": epochs, "threads": 2, "devices": ["cpu", "cpu"],
            "environment": {
                "python": "3.11.7", "torch": "2.15.0", "cuda": None, "cpu": "AMD EPYC", "cores": 2,
                "commit": {"values": ["7bb264f01262eff1", "6bb264f01262eff2"]}, "dirty": False,
                "time": {"first": "2026-11-20T04:31:30+00:00", "last": "2026-11-20T04:55:13+00:00"},
            },
            "sweep": {"study": "cifar10_cpu", "wall_seconds": 1475.09, "runs": len(cells) * seeds,
                      "command": "python train.py experiments=cifar10_cpu"},
        },
    }  # fmt: skip


def _values(cell: str, seeds: int, unavailable: Sequence[str]) -> dict[str, dict[int, float]]:
    parallel, amp = cell.split("-")
    noise = random.Random(cell)
    own = {seed: noise.gauss(0, 0.012) for seed in range(seeds)}
    seconds = {seed: 5 * SLOWER[parallel] * SLOWER[amp] * (1 + own[seed]) for seed in own}
    talent = 0.12 * (amp != "fp32")
    values = {
        "seconds": seconds,
        "throughput": {seed: 20000 / value for seed, value in seconds.items()},
        "accuracy": {seed: 64.8 + talent + random.Random(seed + (parallel == "ddp") * 99)
                     .gauss(0, 0.35) for seed in own},
        "memory": {seed: (2 if parallel == "ddp" else 1) * 876.6e6 + 4e4 * seed for seed in own},
        "energy": {seed: 61 * value for seed, value in seconds.items()},
        "to_target": {seed: 6.4 * value for seed, value in seconds.items()},
        "max_batch": {0: {"none": 4096.0, "dp": 4096.0, "ddp": 2048.0}[parallel]},
    }  # fmt: skip
    return {key: value for key, value in values.items() if key not in unavailable}


def _further(tables: dict, divisor: float) -> dict[str, Any]:
    """A further figure in proportion to the score."""
    return {
        cell: {
            "n": len(table["accuracy"]), "sd": 0.25, "low": None, "high": None, "relative": -0.125,
            "tried": len(table["accuracy"]),
            "mean": statistics.fmean(table["accuracy"].values()) / divisor, "values": {},
        }
        for cell, table in tables.items() if "accuracy" in table
    }  # fmt: skip


def _interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    if len(values) < 2:
        return None, None, None
    sd = statistics.stdev(values)
    t = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}.get(len(values), 2.2)
    half = t * sd / math.sqrt(len(values))
    return sd, statistics.fmean(values) - half, statistics.fmean(values) + half


def _cell(cell: str, seeds: int, tables: dict) -> dict[str, Any]:
    parallel, amp = cell.split("-")
    table = tables.get(cell)
    measures: dict[str, Any] = dict.fromkeys(key for key, *_ in MEASURES)
    for key, values in (table or {}).items():
        found = list(values.values())
        sd, low, high = _interval(found)
        base = tables.get("none-fp32", {}).get(key)
        relative = None
        if base:
            mean = statistics.fmean(base.values())
            relative = statistics.fmean(found) - mean if key == "accuracy" else (
                statistics.fmean(found) / mean)  # fmt: skip
        measures[key] = {
            "n": len(found), "mean": statistics.fmean(found), "sd": sd, "low": low, "high": high,
            "relative": relative, "values": {str(seed): value for seed, value in values.items()},
            "tried": len(found) if key == "max_batch" else seeds,
        }  # fmt: skip
    backward = 54 if amp == "fp32" else 66
    return {
        "cell": cell, "parallel": parallel, "amp": amp, "seeds": seeds,
        "status": None if table else "failed", "marks": [], "measures": measures,
        "phases": {"data": 8.0 if amp != "autocast" else 21.0, "transfer": 0.3,
                   "forward": 88.7 - backward - 13 * (amp == "autocast"),
                   "backward": float(backward), "optimizer": 3.0} if table else None,
        "data_bound": bool(table) and amp == "autocast",
        "speedup": {"value": 1 / SLOWER[parallel], "devices": 1, "ideal": 1}
        if table and parallel != "none" else None,
    }  # fmt: skip


def _pair(first: str, second: str, tables: dict, key: str) -> dict[str, Any]:
    one, two = tables[first][key], tables[second][key]
    if key == "seconds":
        found = [two[seed] / one[seed] for seed in one]
        none, less, more, same = 1.0, "faster", "slower", 0.02
    else:
        found = [two[seed] - one[seed] for seed in one]
        none, less, more, same = 0.0, "worse", "better", 0.5
    _, low, high = _interval(found)
    verdict = "not enough runs"
    if low is not None and high is not None:
        if high < none:
            verdict = less
        elif low > none:
            verdict = more
        elif high < none + same and low > none - same:
            verdict = "tie"
    settled = verdict != "not enough runs"
    return {
        "first": first, "second": second, "n": len(found), "estimate": statistics.fmean(found),
        "low": low, "high": high, "p": 0.00004 if settled else 0.08, "verdict": verdict,
        "adjusted": None if low is None else 0.0014 if settled else 0.61,
        "needed": None if settled else 14,
    }  # fmt: skip


def _safety(cell: str, tables: dict) -> dict[str, Any]:
    pair = _pair("none-fp32", cell, tables, "accuracy")
    low = pair["low"]
    safe = low is not None and low > -0.5
    return {
        "cell": cell, "n": pair["n"], "difference": pair["estimate"], "low": low,
        "p": 0.003 if safe else 0.2, "adjusted": 0.021 if safe else 0.4,
        "verdict": "safe" if safe else "not enough runs", "needed": None if safe else 11,
    }  # fmt: skip


def _curve(cell: str, seed: int, epochs: int, tables: dict) -> list[list[float]]:
    table = tables[cell]
    last, seconds = table["accuracy"][seed], table["seconds"][seed]
    noise = random.Random(f"{cell}{seed}")
    return [
        [epoch, epoch * seconds, last - 30 * math.exp(-0.45 * epoch) * (1 + noise.gauss(0, 0.06))]
        for epoch in range(1, epochs + 1)
    ]


def _numerics(cells: list[str], seeds: int) -> dict[str, Any]:
    rows = []
    for cell in cells:
        same, within = cell in ("none-fp32", "dp-fp32"), cell != "ddp-scaler"
        rows.append({
            "cell": cell, "seeds": seeds, "first_loss_deviation": 0.0 if same else 3.2e-4,
            "loss_deviation": 0.0 if same else 2.1e-3, "cosine": 1.0 if same else 0.99983,
            "flushed": 0.0 if same else 0.00021, "update_ratio": 1.0 if same else 1.003,
            "verdict": "the same" if same else "the same within its precision" if within
            else "not the same",
            "sentence": "Its losses are those of none-fp32 to the last bit." if same
            else "Its losses and gradients differ as rounding in bfloat16 makes them differ." if
            within else "Its gradients point elsewhere: this cell computes something different.",
        })  # fmt: skip
    return {"steps": 20, "about": "The first 20 steps of every cell, compared with none-fp32's of "
            "the same seed and round.", "rows": rows}  # fmt: skip


def _answer(winner: str | None, tables: dict, unavailable: Sequence[str]) -> dict[str, Any]:
    if winner is None:
        return {"sentence": "There is no answer: no run ended well.", "caveats": [],
                "goals": [{"goal": goal, "cell": None, "sentence": "No cell has a figure.",
                           "reasons": [], "tied": []}
                          for goal in ("fastest epoch", "fastest to target", "least memory")],
                "train": None}  # fmt: skip
    tied = [cell for cell in tables if cell != winner][:1]
    goals = [
        {"goal": "fastest epoch", "cell": winner, "tied": tied,
         "sentence": f"{winner} takes 5.00 s an epoch (95 % interval 4.93 to 5.07).",
         "reasons": ["It is 1.09 times as fast as ddp-fp32 (interval 1.06 to 1.11).",
                     "Its accuracy is the baseline's own."]},
        {"goal": "fastest to target", "cell": winner, "tied": tied,
         "sentence": "It reaches 64.28 % after 31.9 s.",
         "reasons": ["All 5 seeds reached the target."]},
        {"goal": "least memory", "cell": None if len(tables) > 8 else winner, "tied": [],
         "sentence": "Six cells need the same memory, 836 MiB; ddp needs twice that.",
         "reasons": ["Memory on a CPU counts libraries once for each process."]},
    ]  # fmt: skip
    return {
        "sentence": f"Train with {winner}: no cell is faster, and its accuracy is safe. "
        "Mixed precision takes 1.22 times as long here.",
        "goals": goals,
        "caveats": ["One round drifted by 18 % and was repeated.",
                    "Times that differ by less than 1.3 % mean nothing in this recording."],
        "train": f"python train.py experiments={winner.replace('-', '_')}/recommended.yaml "
        "dataset.root=data",
    }  # fmt: skip


def _runs(cells: Sequence[str], seeds: int, tables: dict) -> list[dict[str, Any]]:
    runs = []
    for seed in range(seeds):
        for cell in cells:
            ok = cell in tables
            runs.append({
                "folder": f"{len(runs)}_{cell.replace('-', '_')}_seed{seed}", "cell": cell,
                "seed": seed, "round": seed, "attempt": 0, "status": "ok" if ok else "failed",
                "counted": ok and seed != 2, "drifted": seed == 2,
                "seconds": tables[cell]["seconds"][seed] if ok else None,
                "accuracy": tables[cell]["accuracy"][seed] if ok else None,
                "error": None if ok else "error: device=cuda: no GPU; found cpu; use device=cpu",
                "why": "its round drifted and was repeated" if ok and seed == 2 else None,
            })  # fmt: skip
    return runs
