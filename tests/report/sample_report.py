"""A report of made-up numbers, in every shape that a page has to show."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from itertools import combinations, product
from typing import Any, get_args, get_origin, get_type_hints

from ninefold.report.answer.recommend import COPY, FAILED_RUN, NEEDLESS
from ninefold.report.answer.tree import (
    Answer,
    CellReport,
    Chip,
    Curve,
    Figures,
    Further,
    Group,
    Limits,
    MeasureInfo,
    Note,
    PairVerdicts,
    Report,
    RunLine,
    Speed,
    Surer,
)
from ninefold.report.data.cell import Cell
from ninefold.stats.verdicts import Control, Pair, Safety, Steady

PARALLELS = ("none", "dp", "ddp")
AMPS = ("fp32", "autocast", "scaler")
FASTER = {"none": 1.0, "dp": 1.0, "ddp": 0.93, "fp32": 1.0, "autocast": 1.7, "scaler": 1.71}
BASE = Cell("none", "fp32")
MEASURES = (
    ("seconds", "Seconds per epoch", "s", "less"),
    ("throughput", "Images per second", "images/s", "more"),
    ("accuracy", "Test accuracy, percent", "%", "more"),
    ("memory", "Peak memory", "bytes", "less"),
)
PHASES = {"data": 18.0, "transfer": 1.0, "forward": 30.0, "backward": 45.0, "optimizer": 6.0}


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


def each_text(tree: Any, change: Callable[[str], str]) -> Any:
    """A report with every text in it changed, but for keys and cells."""
    if isinstance(tree, Cell):
        return tree
    if is_dataclass(tree) and not isinstance(tree, type):
        known = {each.name: getattr(tree, each.name) for each in fields(tree)}
        return replace(tree, **{name: each_text(value, change) for name, value in known.items()})
    if isinstance(tree, Mapping):
        return {key: each_text(value, change) for key, value in tree.items()}
    if isinstance(tree, list):
        return [each_text(value, change) for value in tree]
    return change(tree) if isinstance(tree, str) else tree


def sample(
    parallels: Sequence[str] = PARALLELS,
    amps: Sequence[str] = AMPS,
    seeds: int = 5,
    failed: Sequence[str] = (),
    asks_time: bool = True,
    decided: bool = True,
) -> Report:
    """A report of one group; `failed` cells have no figure."""
    cells = [Cell(*each) for each in product(parallels, amps)]
    ok = [cell for cell in cells if str(cell) not in failed]
    own = [cell for cell in ok if cell.parallel != "dp" and cell.amp != "scaler"]
    named = max(own, key=_speed, default=None)
    reports = [_cell(cell, cells, seeds, cell in ok) for cell in cells]
    if asks_time:
        stand = {cell: "named" if decided and cell == named else "open" for cell in own}
        reports = [replace(each, standing=stand.get(each.cell, "out")) for each in reports]
    group = Group(
        title="convnet on cifar10, batch 64, 8 epochs", dataset="cifar10", model="convnet",
        batch_size=64, epochs=8, score="accuracy", floor=0.013,
        measures=[MeasureInfo(key, title, unit, better, True)
                  for key, title, unit, better in MEASURES],
        cells=reports,
        pairs=PairVerdicts(
            [_pair(*pair, _speed(pair[0]) / _speed(pair[1]), 1.0) for pair in combinations(ok, 2)],
            [_pair(*pair, 0.01, 0.0) for pair in combinations(ok, 2)],
        ),
        safety=[Safety(cell, seeds, -0.01, -0.11, 0.001, 0.02, "safe", None)
                for cell in ok if cell != BASE],
        control=Control([(BASE, Cell("dp", "fp32"))], 12, 1.002, 0.991, 1.013, "passed", 0.013),
        steady=[Steady(BASE, 4, 1.004, 0.97, 1.04, "not shown")],
        check="A/A check passed: dp does the work of none here, in the same time within 2 %.",
        numerics={"about": "The first 3 steps.", "rows": [_numerics(cell) for cell in ok]},
        curves=[Curve(cell, seed, [[n, 5.0 * n, 64 - 30 / n] for n in range(1, 9)])
                for cell in ok for seed in range(seeds)],
        further=[Further("mean error", "mm", "less",
                         {cell: _figures(2.1, seeds) for cell in ok})],
        timing_rounds=12 if asks_time else None, asks_time=asks_time,
    )  # fmt: skip
    chips = [
        Chip("confidence", "98.9 %", "good"),
        Chip("accuracy", "-0.01 points; a loss above 0.11 is ruled out", "good"),
        Chip("memory", "4 % less", "good"),
    ]
    answer = Answer(
        lead=f"Use {named and ', '.join(named[:2])}: 1.7 times as fast as fp32.",
        decided=decided, cell=named, chance=0.989 if decided else None, chips=chips,
        reasons=["none, autocast takes 31.8 s per epoch."],
        caveats=["The machine was busy.", "It waits for data."],
        train="python train.py parallel=none amp=autocast dataset=cifar10" if decided else None,
        trains=["It trains for 8 epochs, as the study did."] * decided,
        code=['with torch.autocast("cpu"):', "    loss = f(model(x), y)"] * decided,
        surer=None if decided else Surer("python train.py study.time_budget=10", 10, "So it is."),
    )  # fmt: skip
    holders = [cell for cell in cells if cell.parallel == "dp"]
    return Report(
        format=2, title="cifar10_cpu", study="cifar10_cpu",
        question="which of the nine configurations is fastest, and do they learn alike?",
        command="python train.py experiments=cifar10_cpu dataset.root=data",
        conditions=["dataset cifar10", "model convnet", "torch 2.15.0", "2026-11-20"],
        machine="2 CPU threads, on cpu (AMD EPYC, 2 cores), torch 2.15.0.",
        settings=Limits(0.5, 0.02, 0.05, 7, 99.3, None, 95.0),
        answer=answer, groups=[group], notes=[Note(1, "dp is a no-op here.", holders)],
        runs=[_run(cell, seed, cell in ok) for seed in range(seeds) for cell in cells],
        environment={"environment": {"torch": "2.15.0"}, "threads": {"values": [1, 2]}},
    )  # fmt: skip


def _speed(cell: Cell) -> float:
    return FASTER.get(cell.parallel, 1.1) * FASTER.get(cell.amp, 1.2)


def _figures(mean: float, seeds: int) -> Figures:
    sd, half = (0.02 * mean, 0.03 * mean) if seeds > 1 else (None, math.nan)
    ends = (mean - half, mean + half) if seeds > 1 else (None, None)
    return Figures(seeds, mean, sd, *ends, 1.0, {str(n): mean for n in range(seeds)}, seeds)


def _cell(cell: Cell, cells: Sequence[Cell], seeds: int, ok: bool) -> CellReport:
    means = {"seconds": 54 / _speed(cell), "throughput": 94 * _speed(cell), "accuracy": 61.28,
             "memory": (2 if cell.parallel == "ddp" else 1) * 1.2e9}  # fmt: skip
    label = f"{cell.parallel}, {cell.amp}{'' if cell.amp == 'fp32' else ' (bf16)'}"
    plain = Cell("none", cell.amp)
    repeats = plain if cell.parallel == "dp" and plain in cells else None
    times = _speed(cell)
    verdict = "faster" if times > 1.1 else "not enough runs"
    speed = Speed(times, times * 0.9, times * 1.2, verdict)
    return CellReport(
        cell=cell, status=None if ok else "failed",
        seeds=seeds, data_bound=ok, speedup=None, label=label, repeats=repeats,
        measures={key: _figures(mean, seeds) if ok else None for key, mean in means.items()},
        phases=PHASES if ok else None, notes=[],
        speed=None if not ok else Speed(1.0, None, None, "baseline") if cell == BASE else speed,
        excluded=FAILED_RUN if not ok else COPY if repeats
        else NEEDLESS if cell.amp == "scaler" else None,
    )  # fmt: skip


def _pair(first: Cell, second: Cell, value: float, even: float) -> Pair:
    verdict = "faster" if even and value < 0.8 else "not enough runs"
    low, high = value - 0.05, value + 0.05
    return Pair(first, second, 5, value, low, high, 0.01, 0.04, verdict, 14)


def _numerics(cell: Cell) -> dict[str, Any]:
    same = cell.amp == "fp32"
    return {
        "cell": cell, "seeds": 5, "first_loss_deviation": 0.0003, "loss_deviation": 0.002,
        "cosine": 0.99983, "flushed": 0.0002, "update_ratio": 1.003, "by_design": False,
        "verdict": "the same" if same else "the same within its precision",
        "sentence": "What bfloat16 rounds away.",
    }  # fmt: skip


def _run(cell: Cell, seed: int, ok: bool) -> RunLine:
    return RunLine(
        folder=f"{cell.parallel}_{cell.amp}_seed{seed}", cell=cell, seed=seed, round=seed,
        status="ok" if ok else "failed", counted=ok and seed != 2,
        seconds=5.0 if ok else None, accuracy=61.0 if ok else None,
        error=None if ok else "error: device=cuda: no GPU; found cpu; use device=cpu",
        why="it is in no round that counts" if ok and seed == 2 else None,
    )  # fmt: skip
