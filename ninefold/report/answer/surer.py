"""What would make an answer surer: the command that measures more, and how long it takes."""

from __future__ import annotations

import math
import re
import shlex
from statistics import fmean

from ninefold.report.answer.evidence import Evidence
from ninefold.report.answer.recommend import Recommendation
from ninefold.report.answer.tree import Surer
from ninefold.report.data.recording import Recording
from ninefold.report.data.runs import finite
from ninefold.report.numbers import counted
from ninefold.stats.verdicts import OPEN

MAX_SEEDS = 20  # seeds in all that a command proposes at most


def surer(evidence: Evidence, found: Recommendation, recording: Recording) -> Surer | None:
    """Return what measures more; None where the answer is decided, or more would not change it."""
    sweep = recording.sweep
    command = recording.command or sweep.command
    if not command or not (sweep.rounds or sweep.timing):
        return None
    folder = recording.environment.get("report_folder")
    folder = folder if isinstance(folder, str) else ""
    live = folder.endswith("/report")  # else it is a recording, which has no run folders
    words = {"study.resume": folder.removesuffix("/report")} if live else {}
    spent, each = sweep.wall_seconds - sweep.timing_seconds, _seconds_of_a_seed(evidence) or 0.0
    no_budget = {"study.budget": "null"}  # for a command that it would end
    budget = finite(sweep.settings.get("study", {}).get("budget"))
    limit = math.inf if budget is None else 60 * budget
    if evidence.unfinished and live:
        words |= no_budget if spent + each > limit else {}
        return Surer(_with(command, words), None, "The study is not finished.")
    open_scores = evidence.scored and (
        bool(found.unscored) if evidence.asks_time else OPEN in evidence.safe.values()
    )
    asked = found.unscored if evidence.asks_time else evidence.cells
    if open_scores:
        done = max((test.n for test in evidence.comparison.safety if test.cell in asked), default=0)
        seeds = min(2 * done, MAX_SEEDS)
        if seeds <= done:
            return None
        words["seed"] = ",".join(map(str, range(seeds)))
        further = each * (seeds - (len(sweep.rounds) if live else 0))
        words |= no_budget if (spent if live else 0) + further > limit else {}
        text = f"Scores are open: {counted(seeds, 'seed')} in all may settle them."
        return Surer(_with(command, words), further / 60 if each else None, text)
    if found.decided or not evidence.timed or found.cell is None:
        return None
    budget = finite(sweep.settings.get("study", {}).get("time_budget"))
    if budget is None or (live and sweep.timing_ended == "rounds"):
        return None
    made = counted(len(sweep.timing), "timing round")
    if live:  # study.time_budget is that of all commands of a study together
        spent = sweep.timing_seconds / 60
        more = max(budget, 2 * spent / max(len(sweep.timing), 1))  # at least two rounds fit
        words["study.time_budget"] = f"{math.ceil(100 * (spent + more)) / 100:g}"
        text = f"{made} so far: further ones are added to them."
        return Surer(_with(command, words), more, text)
    words["study.time_budget"] = f"{2 * budget:g}"
    text = f"{made} were made: a study of twice the time tells more."
    return Surer(_with(command, words), 2 * budget, text)


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


def _with(command: str, words: dict[str, str]) -> str:
    """The study's command with these keys in place of its own, and no folder but theirs."""
    replaced = ("study.resume", "hydra.sweep.dir", *words)
    try:
        kept = shlex.split(command)
    except ValueError:
        kept = command.split()
    kept = [word for word in kept if word.partition("=")[0] not in replaced]
    named = [re.sub(r"^([\w.]+)=\.\.\..*", _placeholder, word) for word in kept]
    return shlex.join([*named, *(f"{key}={value}" for key, value in words.items())])


def _placeholder(found: re.Match[str]) -> str:
    """A word whose folder a report does not repeat: `dataset.root=DATASET_ROOT`, to fill in."""
    key = found.group(1)
    return f"{key}={key.replace('.', '_').upper()}"
