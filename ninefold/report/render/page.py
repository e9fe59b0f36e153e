"""Makes report.html: one page that needs no network, from the content of report.json."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from ninefold.report.data.cells import MOST
from ninefold.report.data.rounds import round_number
from ninefold.report.render import matrix, pictures
from ninefold.report.render.heat import panels
from ninefold.report.render.strips import chance, counted, number, signed, small, times
from ninefold.report.stats.numerics import OTHER, SAME, WITHIN
from ninefold.result import PHASES

_HERE = Path(__file__).parent


def page(report: Mapping[str, Any]) -> str:
    """Return the text of report.html; the same report gives the same bytes."""
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    return _template().render(
        report=report,
        groups=[_group(group, report) for group in report["groups"][:MOST]],
        every=report["groups"] if len(report["groups"]) > MOST else [],
        facts=_facts(report),
        plain=_plain(report),
        conditions=_conditions(report),
        endings=_endings(report["runs"]),
        environment=_flat(
            # Overlays are whole configurations: recommended.yaml has the one that matters.
            {
                key: value
                for key, value in (report["environment"] or {}).items()
                if key != "overlays"
            }
        ),
        phases=PHASES,
        interval=f"{report['settings']['confidence'] or 95:.3g} % interval",
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


@cache
def _template() -> Template:
    templates = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    templates.filters.update(
        number=number, signed=signed, times=times, small=small, chance=chance, counted=counted,
        round_number=round_number,
    )  # fmt: skip
    return templates.get_template("page.html")


def _group(group: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group with all that is drawn or worded of it."""
    margin = report["settings"]["margin"]
    curves = [
        (title, picture)
        for title, picture in (
            ("over epochs", pictures.curves(group, 0)), ("over seconds", pictures.curves(group, 1))
        ) if picture
    ]  # fmt: skip
    return {
        **group,
        "panels": panels(group),
        "verdicts": matrix.pairs(group),
        "safety": matrix.safety(group, margin),
        "controls": matrix.controls(group),
        "phases": pictures.phases(group),
        "speedups": pictures.speedups(group),
        "curves": curves,
        "drift": pictures.drift(group, report["settings"]["drift"]),
        "ceilings": any(cell["ceiling"] for cell in group["cells"]),
        "bound": [cell["cell"] for cell in group["cells"] if cell["data_bound"]],
        "numerics_looks": {
            SAME: matrix.Look("=", "the same", "good"),
            WITHIN: matrix.Look("≈", "within its precision", "even"),
            OTHER: matrix.Look("≠", "not the same", "bad"),
        },
    }


def _plain(report: Mapping[str, Any]) -> str:
    """Return the answer as text that can be pasted anywhere."""
    answer = report["answer"]
    lines = [f"{report['title']}: {answer['sentence']}"]
    for goal in answer["goals"]:
        lines.append(f"{goal['goal'].capitalize()}: {goal['cell'] or '–'}. {goal['sentence']}")
        lines += [f"- {reason}" for reason in goal["reasons"]]
    lines += [f"Keep in mind: {caveat}" for caveat in answer["caveats"]]
    lines += [f"Train with it: {answer['train']}"] * bool(answer["train"])
    return "\n".join([*lines, " ".join([report["machine"], "; ".join(_conditions(report))])])


def _conditions(report: Mapping[str, Any]) -> list[str]:
    """Return the conditions that the sentence on the machine does not already name."""
    machine = report["machine"].lower()
    return [phrase for phrase in report["conditions"] if phrase.lower() not in machine]


def _facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the sitting in a few figures, each with what it counts."""
    runs, groups = report["runs"], report["groups"]
    cells = {cell["cell"] for group in groups for cell in group["cells"]}
    used = sum(run["counted"] and run["status"] == "ok" for run in runs)
    facts = [
        (str(len(runs)), "run" if len(runs) == 1 else "runs"),
        (str(used), "of them in the figures"),
        (str(len(cells)), "cell" if len(cells) == 1 else "cells"),
    ]
    seeds = [cell["seeds"] for group in groups for cell in group["cells"]]
    if seeds:
        span = str(max(seeds)) if min(seeds) == max(seeds) else f"{min(seeds)}–{max(seeds)}"
        facts.append((span, "seed a cell" if span == "1" else "seeds a cell"))
    if floors := [c["floor"] for group in groups for c in group["controls"] if c["floor"]]:
        facts.append((f"{100 * max(floors):.1f} %", "noise floor"))
    if drifted := len({
        (group["part"], found["round"])
        for group in groups for found in group["rounds"] if found["drifted"]
    }):  # fmt: skip
        facts.append((str(drifted), "round drifted" if drifted == 1 else "rounds drifted"))
    return facts


def _endings(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return how the runs ended: `44 ok, 1 failed; 9 do not count`."""
    words = ", ".join(f"{count} {status}" for status, count in
                      Counter(run["status"] for run in runs).most_common())  # fmt: skip
    left_out = sum(not run["counted"] for run in runs)
    return words + (f"; {left_out} {'does' if left_out == 1 else 'do'} not count" if left_out
                    else "")  # fmt: skip


def _flat(tree: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Return environment.json as a name and a text each, in its order."""
    rows: list[tuple[str, str]] = []
    for key, value in tree.items():
        name = f"{above}{key}"
        if name == "sweep: rounds":
            continue  # they are drawn
        if not isinstance(value, Mapping):
            rows.append((name, _worded(value)))
        elif value.keys() == {"values"}:
            rows.append((name, f"{_worded(value['values'])} (not the same in all runs)"))
        elif value.keys() == {"first", "last"}:
            rows.append((name, f"{value['first']} to {value['last']}"))
        else:
            rows += _flat(value, "" if key == "environment" else f"{name}: ")
    return rows


def _worded(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_worded(item) for item in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_worded(item)}" for key, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
