"""The table of strategies by precisions, once for each measure, as the page shows it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninefold.report.data.cells import PLAIN
from ninefold.report.numbers import decimals_for
from ninefold.report.render.strips import Strip, between, counted, number, scale, signed, times

# A table in which all are nearly the same has pale differences: the darkest tint and the lightest
# are at least so far apart, as a share of the best value, or in points for the accuracy.
_LEAST_RANGE, _LEAST_POINTS = 0.1, 1.0


@dataclass(frozen=True)
class Field:
    """One field of the table. `words` is what stands there instead of a value that is missing.

    `why` is what is to be known of a value.
    """

    cell: str
    marks: list[int]
    words: str = ""
    why: str = ""
    mean: str = ""
    sd: str = ""
    relative: str = ""
    interval: str = ""
    seeds: str = ""
    extreme: str = ""
    tint: float = 0.0
    strip: Strip | None = None


@dataclass(frozen=True)
class Panel:
    """One measure's table, or why there is none; `best` is what the best field is tagged with."""

    key: str
    title: str
    unit: str
    about: str
    why_not: str | None
    best: str
    span: str
    tagged: bool
    rows: list[tuple[str, list[Field]]]


def panels(group: Mapping[str, Any]) -> list[Panel]:
    """Return the tables of a group, one for each measure."""
    return [_panel(group, measure) for measure in group["measures"]]


def _panel(group: Mapping[str, Any], measure: Mapping[str, Any]) -> Panel:
    key = measure["key"]
    cells = {cell["cell"]: cell for cell in group["cells"]}
    found = {
        name: cell["measures"][key] for name, cell in cells.items()
        if cell["measures"].get(key) and cell["measures"][key]["mean"] is not None
    }  # fmt: skip
    unit, factor = _unit(measure["unit"], [summary["mean"] for summary in found.values()])
    decimals = _decimals(key, [abs(summary["mean"]) * factor for summary in found.values()])
    best = "lowest" if measure["better"] == "less" else "highest"

    def possible(value: float) -> float:
        """No measure can be negative, nor a share above 100 %, whatever an interval allows."""
        return max(0.0, min(value, 100.0) if key == "accuracy" else value)

    ends = [
        possible(value) for summary in found.values()
        for value in (*summary["values"].values(), summary["low"], summary["high"], summary["mean"])
        if value is not None
    ]  # fmt: skip
    place = scale(ends)
    tints = _tints({name: summary["mean"] for name, summary in found.items()}, measure)

    top = max(tints.values(), default=0.0)

    def show(value: float | None) -> str:
        return number(None if value is None else value * factor, decimals)

    ahead = {show(found[name]["mean"]) for name in found if tints[name] == top}
    extremes = [name for name in found if show(found[name]["mean"]) in ahead]

    def field(name: str) -> Field:
        cell = cells.get(name)
        if cell is None:
            planned = name in group["planned"]
            return Field(name, [], words="not run" if planned else "not in this study")
        summary = found.get(name)
        if summary is None:
            why = (cell["measures"].get(key) or {}).get("why")
            words = why or cell["status"] or ("not known" if cell["seeds"] else "not run")
            return Field(name, cell["marks"], words=words)
        relative = summary["relative"]
        low, high = (
            None if summary[end] is None else possible(summary[end]) for end in ("low", "high")
        )
        interval = between(low, high, show)
        seeds = ", ".join(f"{seed}: {show(value)}" for seed, value in summary["values"].items())
        return Field(
            name, cell["marks"],
            mean=show(summary["mean"]),
            sd="" if summary["sd"] is None else show(summary["sd"]),
            relative=("" if relative is None or name == PLAIN else
                      f"{signed(relative, 2)} pt" if key == "accuracy" else times(relative)),
            interval="" if low is None else interval,
            why=summary.get("why") or "",
            seeds=f"{summary['n']} of {counted(cell['seeds'], 'seed')}"
            if 1 < cell["seeds"] != summary["n"] and key != "max_batch" else "",
            extreme=best if extremes == [name] and len(found) > 1 else "",
            tint=tints[name],
            strip=Strip(
                place(summary["mean"]),
                None if low is None else place(low),
                None if high is None else place(high),
                dots=tuple(place(value) for value in summary["values"].values()),
                rule=place(found[PLAIN]["mean"]) if PLAIN in found else None,
                about=f"{name}: {show(summary['mean'])} {unit}; 95 % interval {interval}; "
                f"by seed {seeds}",
            ) if len(summary["values"]) > 1 else None,
        )  # fmt: skip

    return Panel(
        key, measure["title"].partition(",")[0], unit, measure["about"],
        why_not=None if measure["available"] else measure["why_not"] or "It was not measured.",
        best=best,
        span=f"{show(min(ends))} to {show(max(ends))} {unit}"
        if any(summary["low"] is not None for summary in found.values()) else "",
        tagged=len(extremes) == 1 < len(found),
        rows=[
            (parallel, [field(f"{parallel}-{amp}") for amp in group["amps"]])
            for parallel in group["parallels"]
        ],
    )  # fmt: skip


def _tints(means: Mapping[str, float], measure: Mapping[str, Any]) -> dict[str, float]:
    """How strongly each cell is tinted: 1 the best, 0 the worst or what is far from the best."""
    if not means:
        return {}
    less = measure["better"] == "less"
    best, worst = (min, max) if less else (max, min)
    top = best(means.values())
    least = _LEAST_POINTS if measure["key"] == "accuracy" else _LEAST_RANGE * abs(top)
    width = max(abs(worst(means.values()) - top), least) or 1.0
    return {name: round(1 - abs(mean - top) / width, 3) for name, mean in means.items()}


def _unit(unit: str, means: list[float]) -> tuple[str, float]:
    """The unit to show in, and what values are multiplied with for it: bytes are too many."""
    if unit != "bytes":
        return unit, 1.0
    large = max(means, default=0.0) >= 10 * 2**30
    return ("GiB", 2.0**-30) if large else ("MiB", 2.0**-20)


def _decimals(key: str, sizes: list[float]) -> int:
    if key in ("accuracy", "max_batch"):
        return 2 if key == "accuracy" else 0
    known = [size for size in sizes if size and math.isfinite(size)]
    return decimals_for(min(known, default=1.0))
