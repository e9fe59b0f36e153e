"""Makes report.md and what the console shows, both from the content of report.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninefold.errors import one_line
from ninefold.report.data.cells import MOST, Group, groups, shown
from ninefold.report.data.rounds import round_number
from ninefold.report.data.runs import Run
from ninefold.report.numbers import MISSING, signed
from ninefold.report.render.markdown import code, grid, plain
from ninefold.report.render.notes import mark_cells, number_notes, superscript
from ninefold.report.render.tables import measure_table
from ninefold.report.stats.measures import ACCURACY, SECONDS


def report_text(report: Mapping[str, Any], tables: str) -> str:
    """Return the text of report.md: the answer, what it rests on, then table.md's `tables`."""
    parts = [f"# {plain(report['title'])}"]
    if report["question"]:
        parts.append(f"Question: {plain(report['question'])}")
    parts += [_answer(report["answer"])]
    several = len(report["groups"]) > 1
    confidence = report["settings"]["confidence"]
    for group in report["groups"][:MOST]:
        sections = [
            _pairs(group["pairs"]["seconds"], "Verdicts on seconds per epoch", _ratio, confidence),
            _pairs(group["pairs"]["accuracy"], "Verdicts on test accuracy", _points, confidence),
            _safety(group, report["settings"]), _controls(group), _numerics(group),
            _rounds(group, report["settings"]["drift"]),
        ]  # fmt: skip
        if several and any(sections):
            parts.append(f"## {plain(group['title'])}")
        parts += [section for section in sections if section]
    lowered = "\n".join(f"#{line}" if line.startswith("#") else line for line in tables.split("\n"))
    return "\n\n".join([*parts, lowered.rstrip("\n")]) + "\n"


def _answer(answer: Mapping[str, Any]) -> str:
    parts = [f"**{plain(answer['sentence'])}**"]
    if answer["train"]:
        parts.append(f"Train with it: {code(answer['train'])}")
    for goal in answer["goals"]:
        parts.append(f"## For {_article(goal['goal'])}\n\n{plain(goal['sentence'])}")
        if goal["reasons"]:
            parts.append("\n".join(f"- {plain(reason)}" for reason in goal["reasons"]))
    if answer["caveats"]:
        parts.append("## Caveats\n\n" + "\n".join(f"- {plain(c)}" for c in answer["caveats"]))
    return "\n\n".join(part for part in parts if part)


def _article(goal: str) -> str:
    return goal if goal.startswith("fastest to") else f"the {goal}"


def _ratio(value: float | None) -> str:
    return MISSING if value is None else f"×{value:.3f}"


def _points(value: float | None) -> str:
    return MISSING if value is None else signed(value, 2)


def _probability(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}" if value >= 0.001 else "< 0.001"


def _pairs(pairs: Sequence[Mapping[str, Any]], title: str, shown: Any, confidence: float) -> str:
    rows = [
        [
            pair["second"], pair["first"], pair["verdict"], shown(pair["estimate"]),
            _interval(pair, shown), _probability(pair["adjusted"]), str(pair["n"]),
            str(pair["needed"] or MISSING),
        ]
        for pair in pairs
    ]  # fmt: skip
    header = [
        "cell", "against", "verdict", "estimate", f"{confidence:.3g} % interval", "p", "seeds",
        "seeds needed",
    ]  # fmt: skip
    return f"## {title}\n\n{grid(header, rows)}" if rows else ""


def _interval(entry: Mapping[str, Any], shown: Any) -> str:
    if entry["low"] is None or entry["high"] is None:
        return MISSING
    return f"{shown(entry['low'])} to {shown(entry['high'])}"


def _safety(group: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    rows = [
        [
            safety["cell"], safety["verdict"], _points(safety["difference"]),
            _points(safety["low"]), _probability(safety["adjusted"]), str(safety["n"]),
            str(safety["needed"] or MISSING),
        ]
        for safety in group["safety"]
    ]  # fmt: skip
    about = (
        f"Safe is a cell whose test accuracy is not more than {settings['margin']:g} points below "
        "none-fp32's: the lower bound says so, and not the mean alone."
    )
    header = ["cell", "verdict", "difference, points", "lower bound", "p", "seeds", "seeds needed"]
    return f"## Is accuracy safe?\n\n{about}\n\n{grid(header, rows)}" if rows else ""


def _controls(group: Mapping[str, Any]) -> str:
    rows = [
        [
            control["second"], control["first"], _ratio(control["ratio"]),
            _interval(control, _ratio), "yes" if control["held"] else "no",
        ]
        for control in group["controls"]
    ]  # fmt: skip
    about = (
        "dp on one device does what none does: but for a few µs a step of its wrapper, what "
        "differs between them is noise."
    )
    header = ["cell", "the same work as", "ratio of seconds", "interval", "held"]
    return f"## A/A control\n\n{about}\n\n{grid(header, rows)}" if rows else ""


def _numerics(group: Mapping[str, Any]) -> str:
    numerics = group["numerics"]
    if not numerics or not numerics.get("rows"):
        return ""
    rows = [
        [
            str(row.get("cell")), str(row.get("verdict")),
            *(
                _scientific(row.get(name))
                for name in ("first_loss_deviation", "loss_deviation", "cosine", "flushed",
                             "update_ratio")
            ),
            plain(str(row.get("sentence") or "")),
        ]
        for row in numerics["rows"]
    ]  # fmt: skip
    header = [
        "cell", "verdict", "loss, first step", "loss, all", "cosine", "flushed", "update ratio", "",
    ]  # fmt: skip
    about = plain(str(numerics.get("about") or ""))
    return f"## Do the cells compute the same?\n\n{about}\n\n{grid(header, rows)}"


def _scientific(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else MISSING


def _rounds(group: Mapping[str, Any], limit: float | None) -> str:
    rows = [
        [
            round_number(entry), str(entry.get("seed")),
            f"{100 * entry['drift']:.1f} %" if isinstance(entry.get("drift"), int | float)
            else MISSING,
            "yes" if entry.get("drifted") else "no", "yes" if entry.get("counted") else "no",
        ]
        for entry in group["rounds"]
    ]  # fmt: skip
    about = (
        "A round is one run of every cell. Its drift is how much slower the machine was in it than "
        "at its best."
    )
    if limit:
        about += f" Above {100 * limit:g} % it has drifted, and is repeated: 2.2 is the second try."
    header = ["round", "seed", "drift", "drifted", "counted"]
    return f"## Rounds\n\n{about}\n\n{grid(header, rows)}" if rows else ""


def console_text(report: Mapping[str, Any], runs: Sequence[Run]) -> str:
    """Return what the console shows: the answer, then the tables of time and accuracy."""
    answer = report["answer"]
    parts = [f"answer: {one_line(answer['sentence'])}"]
    parts += [f"caveat: {one_line(caveat)}" for caveat in answer["caveats"]]
    if answer["train"]:
        parts.append(f"train with it: {answer['train']}")
    every = groups(runs)
    found = shown(every)
    notes = number_notes(runs)
    tables = [_tables(group, mark_cells(group, notes)) for group in found]
    bad = sum(not run.ok for run in runs)
    below = [_left_out(every), f"{bad} of {len(runs)} runs are not ok" if bad else ""]
    return "\n\n".join(filter(None, [
        "\n".join(parts), *tables, "\n".join(_marked_notes(found, notes)), *below
    ]))  # fmt: skip


def progress_text(runs: Sequence[Run]) -> str:
    """Return the tables of seconds per epoch and accuracy of each group so far."""
    every = groups(runs)
    tables = [_tables(group, {}) for group in shown(every)]
    return "\n\n".join(filter(None, [*tables, _left_out(every)]))


def _left_out(every: Sequence[Group]) -> str:
    more = len(every) - MOST
    return f"{more} more conditions are in table.md of the report" if more > 0 else ""


def _tables(group: Group, marks: Mapping[str, str]) -> str:
    tables = [
        f"{measure.title}\n{measure_table(group, measure, marks)}"
        for measure in (SECONDS, ACCURACY)
    ]
    return "\n\n".join([plain(group.title), *tables])


def _marked_notes(found: Sequence[Group], notes: Mapping[str, int]) -> list[str]:
    """The notes that some cell of the tables is marked with."""
    marks = "".join(mark for group in found for mark in mark_cells(group, notes).values())
    shown = [(superscript(number), note) for note, number in notes.items()]
    return [f"{mark} {one_line(note)}" for mark, note in shown if mark in marks.split()]
