"""What would make an answer surer: the command that measures more, and how long it takes."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from statistics import fmean

from ninefold.answer.needed import rounds_for_best, seeds_for_scores
from ninefold.numbers import counted, listed_and
from ninefold.report.answer.evidence import Evidence
from ninefold.report.answer.recommend import Recommendation
from ninefold.report.answer.tree import Surer
from ninefold.report.data.recording import Recording
from ninefold.report.data.runs import finite
from ninefold.stats.verdicts import OPEN
from ninefold.words import key_of

MAX_SEEDS = 20  # seeds in all that a command proposes at most


def surer(found: Recommendation, recording: Recording) -> Surer | None:
    """Return what measures more; None where the answer is decided, or more would not change it."""
    evidence = found.facts
    sweep, live = recording.sweep, _live(recording)
    if not sweep.command or not (sweep.rounds or sweep.timing):
        return None
    if evidence.unfinished and live:
        words = _budget(recording, _seconds_of_a_seed(evidence) or 0.0)
        return _surer(recording, words, None, "The study is not finished.")
    asked = found.unscored if evidence.asks_time else evidence.open_scores
    if evidence.scored and asked:
        tests = [test for test in evidence.comparison.safety if test.cell in asked]
        done = max((test.n for test in tests), default=0)
        open_ = [test for test in tests if test.verdict == OPEN]
        needed = seeds_for_scores(open_, evidence.settings, MAX_SEEDS)
        seeds = needed or min(2 * done, MAX_SEEDS)
        if seeds <= done:
            return None
        would = "would" if needed else "may"
        text = f"Scores are open: {counted(seeds, 'seed')} in all {would} decide them."
        return of_seeds([evidence], recording, seeds, text)
    if found.decided or not evidence.timed or found.named is None:
        return None
    return of_time(evidence, recording, found)


def of_seeds(
    found: Sequence[Evidence], recording: Recording, seeds: int, text: str
) -> Surer | None:
    """Return what trains so many seeds in all; None where nothing can. text: what they are for."""
    sweep = recording.sweep
    if not sweep.command:
        return None
    # A resumed study goes on with the seeds that it has run.
    run = (entry.seed for entry in sweep.rounds if isinstance(entry.seed, int))
    own = list(dict.fromkeys(run))  # a round may have been repeated
    after = max(own, default=-1) + 1
    words = {"seed": ",".join(map(str, [*own, *range(after, after + seeds - len(own))]))}
    if isinstance(sweep.settings.get("study", {}).get("rounds"), int):
        words["study.rounds"] = str(seeds)
    each = sum(_seconds_of_a_seed(evidence) or 0.0 for evidence in found)
    further = each * (seeds - (len(sweep.rounds) if _live(recording) else 0))
    words |= _budget(recording, further)
    return _surer(recording, words, further / 60 if each else None, text)


def of_time(
    evidence: Evidence, recording: Recording, found: Recommendation | None = None
) -> Surer | None:
    """Return what measures more of the times of a study; None where nothing can.

    found: the decision, if the study asks for the fastest.
    """
    sweep, live = recording.sweep, _live(recording)
    if not sweep.command or evidence.group.on_hosts > 1:
        return None
    if not evidence.timed:
        asked = {"study.ask": "[time,score]"}
        return _surer(recording, asked, None, "This also compares speed, interleaved.")
    budget = finite(sweep.settings.get("study", {}).get("time_budget"))
    if budget is None or (live and sweep.timing_ended == "rounds"):
        return None
    made = counted(len(sweep.timing), "round")
    if live:  # study.time_budget is that of all commands of a study together
        spent = sweep.timing_seconds / 60
        each, text = spent / max(len(sweep.timing), 1), "further ones are added to them"
        more = max(budget, 2 * each)  # at least two rounds fit
        if found and (needed := rounds_for_best(found)):
            more = max(each * (needed - len(sweep.timing)), 2 * each)
            text = f"{needed} in all would decide it"
        words = {"study.time_budget": f"{math.ceil(100 * (spent + more)) / 100:g}"}
        return _surer(recording, words, more, f"{made} so far: {text}.")
    text = f"{made} were made: a study of twice the time tells more."
    return _surer(recording, {"study.time_budget": f"{2 * budget:g}"}, 2 * budget, text)


def _budget(recording: Recording, further: float) -> dict[str, str]:
    """The budget of a command that trains so many seconds more: none if it would end it."""
    sweep = recording.sweep
    budget = finite(sweep.settings.get("study", {}).get("budget"))
    spent = sweep.wall_seconds - sweep.timing_seconds if _live(recording) else 0.0
    ends = budget is not None and spent + further > 60 * budget
    return {"study.budget": "null"} if ends else {}


def _live(recording: Recording) -> str:
    """Return the folder of a study that can be resumed; empty of a recording, without its runs."""
    folder = recording.environment.get("report_folder")
    if not isinstance(folder, str) or not folder.endswith("/report"):
        return ""
    return folder.removesuffix("/report")


def _seconds_of_a_seed(evidence: Evidence) -> float | None:
    """Return how long one run of each cell took."""
    total = 0.0
    for cell in evidence.cells:
        known = [
            run.total_seconds
            for run in evidence.group.completed(cell)
            if not run.timed and run.total_seconds
        ]
        if not known:
            return None
        total += fmean(known)
    return total


def _surer(
    recording: Recording, words: Mapping[str, str], minutes: float | None, text: str
) -> Surer:
    """The study's command with these keys in place of its own, and no folder but theirs."""
    command = (recording.as_typed or recording.sweep).command or ""
    if folder := _live(recording):
        words = {"study.resume": folder, **words}
    replaced = ("study.resume", "hydra.sweep.dir", *words)
    try:
        kept = shlex.split(command)
    except ValueError:
        kept = command.split()
    kept = [word for word in kept if key_of(word) not in replaced]
    # A word whose folder a report does not repeat is one to fill in: dataset.root=DATASET_ROOT.
    gaps = [found[1] for word in kept if (found := re.match(r"([\w.]+)=\.\.\.", word))]
    names = {key: key.replace(".", "_").upper() for key in gaps}
    kept = [
        f"{key}={names[key]}" if (key := word.partition("=")[0]) in names else word for word in kept
    ]
    if names:
        text += f" Put your own path in place of {listed_and(list(names.values()))}."
    command = shlex.join([*kept, *(f"{key}={value}" for key, value in words.items())])
    return Surer(command, minutes, text)
