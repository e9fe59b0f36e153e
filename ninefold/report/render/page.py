"""Writes report.html: one page that needs neither a network nor scripts."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ninefold.report.answer.tree import Further, Group, Report, RunLine
from ninefold.report.data.cell import PLAIN
from ninefold.report.data.cells import MOST, score_of, unit_of
from ninefold.report.numbers import MISSING, NOT_KNOWN, capitalized, decimals_of, plural
from ninefold.report.render import matrix, pictures, scales
from ninefold.report.render.heat import panels
from ninefold.report.render.templates import FOLDER, render
from ninefold.report.render.text import intervals, margin_of, of_safety
from ninefold.report.stats.numerics import OTHER, SAME, WITHIN
from ninefold.result import PHASES, TIMING

_NUMERICS = {
    SAME: matrix.Look("=", "the same", "good"),
    WITHIN: matrix.Look("≈", "within its precision", "even"),
    OTHER: matrix.Look("≠", "not the same", "bad"),
}


def page(report: Report) -> str:
    """Return the text of report.html; the same report gives the same bytes."""
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    # Overlays are whole configurations: recommended.yaml has the one that matters.
    environment = {key: value for key, value in report.environment.items() if key != "overlays"}
    return render(
        "report.html.j2",
        report=report,
        groups=[_group(group, report) for group in report.groups[:MOST]],
        every=report.groups if len(report.groups) > MOST else [],
        facts=_facts(report),
        plain=_plain(report),
        conditions=_conditions(report),
        endings=_endings(report.runs),
        score=score_of(report.groups),
        unit=unit_of(report.groups),
        environment=_flat(environment),
        phases=PHASES,
        base=PLAIN,
        **intervals(report),
        style=Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _group(group: Group, report: Report) -> dict[str, Any]:
    """Return a group's fields, with tables and plots in place of those that are drawn."""
    curves = [
        ("over epochs", pictures.curves(group, 0)),
        ("over seconds", pictures.curves(group, 1)),
    ]
    return {
        **vars(group),
        "panels": panels(group),
        "verdicts": matrix.pairs(group),
        "safety": matrix.safety(group, margin_of(group, report)),
        **of_safety(group, report),
        "unit": group.unit,
        "controls": matrix.controls(group),
        "steady": matrix.steady(group),
        "phases": pictures.phases(group),
        "speedups": None if group.scaling else pictures.speedups(group),
        "scales": scales.tables(group.scaling),
        "scaled": None if group.scaling is None else scales.draw(group.scaling),
        "curves": [(title, drawn) for title, drawn in curves if drawn],
        # Where times are from timing rounds, a slow minute in a training round does no harm.
        "drift": None if group.timing_rounds else pictures.drift(group, report.settings.drift),
        "bound": [cell.cell for cell in group.cells if cell.data_bound],
        "launching": [cell.cell for cell in group.cells if cell.host_bound],
        "numerics_looks": _NUMERICS,
        "further": [_further(figure) for figure in group.further],
    }


def _further(figure: Further) -> dict[str, Any]:
    """Return a further figure with its heading and the decimals of its values."""
    means = [found.mean for found in figure.cells.values()]
    decimals = decimals_of(figure.unit, means)
    return {**vars(figure), "title": figure.heading, "decimals": decimals}


def _plain(report: Report) -> str:
    """Return the answer as text that can be pasted anywhere."""
    answer = report.answer
    lines = [f"{report.title}: {answer.sentence}"]
    for goal in answer.goals:
        lines.append(f"{capitalized(goal.goal)}: {goal.cell or MISSING}. {goal.sentence}")
        lines += [f"- {reason}" for reason in goal.reasons]
    lines += [f"Keep in mind: {caveat}" for caveat in answer.caveats]
    lines += [f"Train with it: {answer.train}"] * bool(answer.train)
    return "\n".join([*lines, f"{report.machine} {'; '.join(_conditions(report))}"])


def _conditions(report: Report) -> list[str]:
    """Return the conditions that the sentence on the machine does not already name."""
    machine = report.machine.lower()
    return [phrase for phrase in report.conditions if phrase.lower() not in machine]


def _facts(report: Report) -> list[tuple[str, str]]:
    """Return the study in a few numbers, each with what it counts."""
    runs, groups = report.runs, report.groups
    cells = {cell.cell for group in groups for cell in group.cells}
    used = sum(run.counted and run.status == "ok" for run in runs)
    facts = [
        (str(len(runs)), plural(len(runs), "run")),
        (str(used), "of them in the figures"),
        (str(len(cells)), plural(len(cells), "cell")),
    ]
    if timing := len({run.number for run in runs if run.folder.startswith(f"{TIMING}/")}):
        facts.append((str(timing), plural(timing, "timing round")))
    seeds = [cell.seeds for group in groups for cell in group.cells]
    if any(seeds):
        span = str(max(seeds)) if min(seeds) == max(seeds) else f"{min(seeds)}–{max(seeds)}"
        facts.append((span, "seed a cell" if span == "1" else "seeds a cell"))
    if controls := [control for group in groups for control in group.controls]:
        known = [control.floor for control in controls if control.floor is not None]
        shown = f"{100 * max(known):.1f} %" if len(known) == len(controls) else NOT_KNOWN
        facts.append((shown, "noise floor"))
    drifted = {
        (group.part, each.round) for group in groups for each in group.rounds if each.drifted
    }
    if drifted:
        facts.append((str(len(drifted)), f"{plural(len(drifted), 'round')} drifted"))
    return facts


def _endings(runs: Sequence[RunLine]) -> str:
    """Return how the runs ended: `44 ok, 1 failed; 9 do not count`."""
    statuses = Counter(run.status for run in runs).most_common()
    words = ", ".join(f"{count} {status}" for status, count in statuses)
    left_out = sum(not run.counted for run in runs)
    if not left_out:
        return words
    return f"{words}; {left_out} {plural(left_out, 'does', 'do')} not count"


def _flat(tree: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Return environment.json as a name and a text each, in its order."""
    rows: list[tuple[str, str]] = []
    for key, value in tree.items():
        name = f"{above}{key}"
        if name in ("sweep: rounds", "sweep: timing"):
            continue  # the runs are listed, and the rounds of training runs are plotted
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
