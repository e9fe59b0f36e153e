"""The content of report.json: the answer, what it rests on, and every run.

Numbers are None where unknown; times are seconds, memory bytes, accuracies percent, energies
joules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ninefold.errors import one_line
from ninefold.report.answer.conditions import conditions, join
from ninefold.report.answer.evidence import Evidence, gather_evidence
from ninefold.report.answer.recommend import Recommendation, caveats
from ninefold.report.data.cells import PLAIN, groups, largest_first, parts
from ninefold.report.data.environment import values
from ninefold.report.data.overlay import arguments, left_out
from ninefold.report.data.published import Published
from ninefold.report.data.recording import Recording
from ninefold.report.data.rounds import (
    LargestBatch,
    drift_allowed,
    is_unfinished,
    largest_batch,
    rounds_of,
    why_not,
)
from ninefold.report.data.runs import Run
from ninefold.report.render.notes import holders, number_notes
from ninefold.report.render.published import EPOCHS, LIMITS, about, applies
from ninefold.report.stats import numerics
from ninefold.report.stats.measures import (
    ACCURACY,
    BYTES,
    ENERGY,
    SECONDS,
    THROUGHPUT,
    TO_TARGET,
    Measure,
)
from ninefold.report.stats.statistics import estimate
from ninefold.report.stats.summaries import phase_shares, summarize

FORMAT = 1


def evidence_of(recording: Recording) -> list[Evidence]:
    """Return the evidence of each group, largest first: the answer is of the first."""
    unfinished = is_unfinished(recording.sweep, recording.runs)
    return [
        gather_evidence(
            group,
            recording.points,
            recording.sweep,
            numerics.summarize(recording.numerics, group.runs),
            unfinished,
        )
        for group in largest_first(groups(recording.runs))
    ]


def build(
    recording: Recording, found: Sequence[Evidence], goals: Sequence[Recommendation]
) -> dict[str, Any]:
    """Return the content of report.json. found: of all groups; goals: what the first comes to."""
    studies = values(recording.environment.get("study"))
    command = recording.sweep.get("command")
    settings = found[0].settings if found else None
    return {
        "format": FORMAT,
        "title": one_line(join(studies)) if studies else "Runs",
        "study": studies[0] if len(studies) == 1 else None,
        "question": recording.question and one_line(recording.question),
        "command": one_line(command) if isinstance(command, str) else None,
        "conditions": [
            one_line(phrase) for phrase in conditions(recording.runs, recording.environment)
        ],
        "machine": _machine(recording),
        "settings": {
            **{
                name: getattr(settings, name, None)
                for name in ("margin", "same", "level", "looks", "confidence")
            },
            "drift": drift_allowed(recording.sweep),
            "target": found[0].target if found else None,
        },
        "answer": _answer(recording, found, goals),
        "groups": [_group(evidence, recording) for evidence in found],
        "notes": _notes(recording.runs, found),
        "runs": [_run(run, recording.sweep) for run in recording.runs],
        "environment": recording.environment,
    }  # fmt: skip


def _machine(recording: Recording) -> str:
    known = [
        phrase for phrase in conditions(recording.runs, recording.environment)
        if phrase.startswith(("on ", "torch ")) or "CPU thread" in phrase
    ]  # fmt: skip
    text = one_line(", ".join(known))
    return f"{text[:1].upper()}{text[1:]}." if text else "The machine is not known."


def _answer(
    recording: Recording, found: Sequence[Evidence], goals: Sequence[Recommendation]
) -> dict[str, Any]:
    if not found:
        return {
            "sentence": "Not enough runs: none of them names a cell and counts.",
            "goals": [], "caveats": [], "train": None,
        }  # fmt: skip
    first, best = found[0], winner(goals)
    said = caveats(first, recording.sweep)
    if keys := left_out(overlay_of(recording, best) if best else None):
        said.append(
            f"The command wants {' and '.join(keys)} from you: a report repeats neither paths nor "
            "what names something to call."
        )
    if len(found) > 1:
        most = first.group.ok > found[1].group.ok
        why = "has the most of them" if most else "has the best accuracy of those with as many"
        said.insert(
            0,
            f"Runs of {len(found)} conditions are never put into one figure; the answer is of "
            f"{one_line(first.group.title)}, which {why}.",
        )
    return {
        "sentence": sentence(goals),
        "goals": [
            {
                "goal": goal.goal.name, "cell": goal.cell, "sentence": goal.sentence,
                "reasons": goal.reasons, "tied": goal.tied,
            }
            for goal in goals
        ],
        "caveats": said,
        "train": train_command(recording, best),
    }  # fmt: skip


def winner(goals: Sequence[Recommendation]) -> Recommendation | None:
    """Return the recommendation that recommended.yaml holds: the first goal's that has a cell."""
    return next((goal for goal in goals if goal.cell is not None), None)


def train_command(recording: Recording, best: Recommendation | None) -> str | None:
    """Return the command that trains with recommended.yaml, None where there is none.

    What the overlay leaves out stands in it with a value to be filled in; it takes keys away that
    the cell's runs had not.
    """
    overlay = None if best is None else overlay_of(recording, best)
    if overlay is None:
        return None
    folder = recording.environment.get("report_folder")
    # Nothing that a shell would read otherwise: it is there to be pasted.
    plain = isinstance(folder, str) and re.fullmatch(r"[\w./+=@][\w./+=@-]*", folder)
    words = [f"python train.py --config-dir {folder if plain else 'FOLDER/report'}",
             "experiments=recommended", *arguments(overlay)]  # fmt: skip
    return " ".join(words)


def overlay_of(recording: Recording, best: Recommendation) -> dict[str, Any] | None:
    """Return what was recorded of how the recommended cell was configured."""
    overlays = recording.environment.get("overlays")
    overlay = overlays.get(best.cell) if isinstance(overlays, dict) else None
    return overlay if isinstance(overlay, dict) else None


def sentence(goals: Sequence[Recommendation]) -> str:
    """Return the answer in a sentence for the first goal, and one for the others."""
    first = goals[0]
    text = first.sentence if first.cell is None else f"Train with {first.sentence}"
    others = [goal for goal in goals[1:] if goal.cell is not None]
    same = [goal.goal.name for goal in others if goal.cell == first.cell]
    if same:  # the choice, and not the best: others may not be told apart from it
        text += f" It is also the choice for {' and '.join(same)}."
    for goal in others:
        if goal.cell != first.cell:
            text += f" {goal.goal.name.capitalize()}: {goal.cell}."
    return text


def _group(evidence: Evidence, recording: Recording) -> dict[str, Any]:
    group, comparison = evidence.group, evidence.comparison
    measures = _measures(evidence, recording.sweep)
    notes = number_notes(recording.runs)
    return {
        "title": one_line(group.title), "dataset": group.dataset, "model": group.model,
        "batch_size": group.batch_size, "epochs": group.epochs, "variant": one_line(group.variant),
        "part": group.part, "parallels": group.parallels, "amps": group.amps,
        "planned": list(evidence.planned),
        "measures": [about for about, _ in measures],
        "cells": [
            {
                "cell": cell, "parallel": parts(cell)[0], "amp": parts(cell)[1],
                "status": evidence.bad.get(cell),
                "seeds": len({run.seed for run in evidence.runs(cell)}),
                "marks": [
                    number for note, number in notes.items()
                    if cell in (held := holders(group, note)) and set(evidence.cells) > set(held)
                ],
                "measures": {about["key"]: figures.get(cell) for about, figures in measures},
                "phases": phase_shares(group, *parts(cell)),
                "ceiling": _ceiling(evidence, cell),
                "data_bound": (c := evidence.ceiling(cell)) is not None and c.data_bound,
                "speedup": evidence.speedup(cell),
            }
            for cell in evidence.cells
        ],
        "pairs": {
            "seconds": [asdict(pair) for pair in comparison.seconds],
            "accuracy": [asdict(pair) for pair in comparison.accuracy],
        },
        "safety": [asdict(safety) for safety in comparison.safety],
        "controls": [asdict(control) for control in comparison.controls],
        "numerics": evidence.numerics,
        "curves": _curves(evidence),
        "rounds": [
            {name: entry.get(name)
             for name in ("round", "attempt", "seed", "drift", "drifted", "counted")}
            for entry in rounds_of(recording.sweep, group.part)
        ],
        "published": _published(evidence, recording.published),
    }  # fmt: skip


def _measures(
    evidence: Evidence, sweep: Mapping[str, Any]
) -> list[tuple[dict[str, Any], dict[str, dict[str, Any]]]]:
    """Return each measure as report.json describes it, and the figures of the cells."""
    shown = [SECONDS, THROUGHPUT, ACCURACY, BYTES, ENERGY, evidence.to_target]
    found: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]] = []
    for measure in shown:
        if measure is None:
            continue
        figures = {
            cell: _figures(evidence, cell, measure, known)
            for cell, known in evidence.values(measure).items()
        }
        about = measure.about
        if measure is ENERGY and (sources := {run.energy_source for run in evidence.group.runs}):
            named = sorted(filter(None, sources))
            about += f" Here: {', '.join(named)}." if named else ""
        if measure is evidence.to_target and evidence.short and figures:
            missed = [f"{cell} ({reached})" for cell, reached in evidence.short.items()]
            about += f" Not reached by every run: {', '.join(missed)}."
        found.append((_about(measure, about, figures), figures))
    if evidence.to_target is None:
        found.append((
            _of_measure(TO_TARGET, "Seconds to a target accuracy", "s", "", "less", False,
                        f"There is no target: {PLAIN} has no accuracy to set one by."), {},
        ))  # fmt: skip
    return [*found, _max_batch(evidence, sweep)]


def _about(measure: Measure, about: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    return _of_measure(
        measure.key, measure.title, measure.unit, about, measure.better, bool(figures),
        measure.why_not,
    )  # fmt: skip


def _of_measure(
    key: str, title: str, unit: str, about: str, better: str, available: bool, why_not: str
) -> dict[str, Any]:
    return {
        "key": key, "title": title, "unit": unit, "about": about.replace("`", ""),
        "better": better, "available": available, "why_not": None if available else why_not,
    }  # fmt: skip


def _figures(
    evidence: Evidence, cell: str, measure: Measure, known: Mapping[int, float]
) -> dict[str, Any]:
    summary = summarize(evidence.group, *parts(cell), measure)
    return {
        **asdict(estimate(known)),
        "relative": summary.relative,
        "values": {str(key): value for key, value in sorted(known.items())},
    }


def _max_batch(
    evidence: Evidence, sweep: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the largest batch that fits, which the study looks for once, by cell.

    `why` is what is to be known of a cell's, None where it is simply the largest.
    """
    parts_seen = [entry.get("part") for entry in rounds_of(sweep)]
    last = max((part for part in parts_seen if isinstance(part, int)), default=0)
    found: dict[str, tuple[float | None, str | None]] = {}
    for run in evidence.group.runs:
        batch = largest_batch(run, sweep)
        if batch is not None and evidence.group.part == last:
            found[run.cell] = batch.batch_size, _unsure(batch)
    plain, unsure = found.get(PLAIN, (None, None))
    figures: dict[str, dict[str, Any]] = {
        cell: {
            "n": 1, "mean": size, "sd": None, "low": None, "high": None,
            "relative": size / plain if size and plain and not (why or unsure) else None,
            "values": {}, "why": why,
        }
        for cell, (size, why) in found.items()
    }  # fmt: skip
    about = "Global batch, looked for once per cell."
    if any(why == _OR_MORE for _, why in found.values()):
        about += f" “{_OR_MORE}”: the whole training set fits, and the limit is not known."
    return _of_measure(
        "max_batch", "Largest batch that fits", "images", about, "more", bool(figures),
        "study.max_batch=true looks for it.",
    ), figures  # fmt: skip


_OR_MORE = "or more"


def _unsure(batch: LargestBatch) -> str | None:
    """Why there is no largest batch, or it may be larger than the one at which a search ended."""
    if batch.status == "whole_set":
        return _OR_MORE
    if batch.batch_size is None or batch.status == "failed":
        return one_line(batch.why.replace("error: ", "").partition("; ")[0]) or None
    return None


def _ceiling(evidence: Evidence, cell: str) -> dict[str, Any] | None:
    found = evidence.ceiling(cell)
    if found is None:
        return None
    return {"images_per_second": found.images_per_second, "share": found.share}


def _curves(evidence: Evidence) -> list[dict[str, Any]]:
    by_folder: dict[str, list[list[float | None]]] = {}
    for point in evidence.points:
        by_folder.setdefault(point.folder, []).append(
            [point.epoch, point.seconds, 100 * point.accuracy]
        )
    return [
        {"cell": run.cell, "seed": run.seed, "points": by_folder[run.folder]}
        for run in evidence.group.runs
        if run.folder in by_folder
    ]


def _published(evidence: Evidence, published: Sequence[Published]) -> dict[str, Any] | None:
    if not published or not applies(evidence.group):
        return None
    rows = []
    for cell in published:
        ours = {
            measure.key: summarize(evidence.group, cell.parallel, cell.amp, measure).mean
            for measure in (SECONDS, ACCURACY)
        }
        seconds = ours[SECONDS.key]
        accuracy, theirs = ours[ACCURACY.key], cell.accuracy and 100 * cell.accuracy
        alike = evidence.group.epochs == EPOCHS and accuracy is not None and theirs is not None
        rows.append({
            "cell": f"{cell.parallel}-{cell.amp}", "minutes_published": cell.minutes,
            "minutes": None if seconds is None else seconds * EPOCHS / 60,
            "accuracy_published": theirs, "accuracy": accuracy,
            "points": accuracy - theirs if alike else None,  # type: ignore[operator]
        })  # fmt: skip
    return {"about": about(evidence.group), "caveat": LIMITS, "rows": rows}


def _notes(runs: Sequence[Run], found: Sequence[Evidence]) -> list[dict[str, Any]]:
    return [
        {
            "number": number, "text": one_line(note),
            "cells": list(dict.fromkeys(
                cell for evidence in found for cell in holders(evidence.group, note)
            )),
        }
        for note, number in number_notes(runs).items()
    ]  # fmt: skip


def _run(run: Run, sweep: Mapping[str, Any]) -> dict[str, Any]:
    accuracy = ACCURACY.value(run)
    return {
        "folder": run.folder, "cell": run.cell, "seed": run.seed, "round": run.round,
        "attempt": run.attempt, "status": run.status, "counted": run.counts,
        "drifted": bool(run.drifted), "seconds": SECONDS.value(run), "accuracy": accuracy,
        "error": None if run.error is None else one_line(run.error),
        "why": why_not(run, sweep),
    }  # fmt: skip
