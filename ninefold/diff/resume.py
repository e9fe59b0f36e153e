"""What a resumed training has not restored: a start that is killed, one that goes on, one whole."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ninefold.bench.contestant import Command
from ninefold.diff.compare import Difference, Found, distance, entry_of, find, of_step
from ninefold.diff.kinds import Case, common, explain, place, size, taken
from ninefold.diff.starts import Asked, Training, record
from ninefold.errors import ConfigError

RESTORED = 1e-7  # how far apart weights may be that were restored
OF_FIRST = ("params", "ties", "modules", "born")  # that is recorded with the first step alone
LOOKED_AT = 2  # steps of the resumed training: a schedule shows in the second one


def resumed(
    one: Command, other: Command, keep: Path, steps: int, kill_after: int | None
) -> dict[str, Any]:
    """Compare a resumed training with one that was not interrupted. Raises ConfigError."""
    out = Path(tempfile.mkdtemp(prefix="shared-", dir=keep))
    until = "save" if kill_after is None else None
    killed = record(one, keep, Asked(kill_after or steps, until=until, out=out))
    saved = killed.steps[-1][0]["saved"]
    if saved is None and kill_after is None:
        raise ConfigError(
            "--resume", one.text, f"it called no torch.save after one of its first {steps} steps",
            "a checkpoint is what is resumed", "--steps N, or --kill-after STEP",
        )  # fmt: skip
    second = record(other, keep, Asked(steps, out=out))
    whole = record(one, keep, Asked(steps))
    return compare(whole, second, saved or kill_after or 0)


def compare(whole: Training, second: Training, saved: int) -> dict[str, Any]:
    """What was found, as JSON has it. saved: the step behind which the last checkpoint came."""
    after = begin(whole, second)
    shift = saved if after is None else after
    rest = whole.since(shift)
    if not rest.steps:
        raise ConfigError(
            "--steps",
            len(whole.steps),
            f"it goes on after step {shift}",
            "more are needed",
            "ask for more",
        )
    rest.steps[0][0].update(
        {key: whole.first[key] for key in ("params", "ties", "modules", "born")}
    )
    facts = dict(lost(rest, second, after is not None))
    gone = [name for name, is_lost in facts.items() if is_lost]
    kept = [name for name, is_lost in facts.items() if not is_lost]
    for rank in second.steps[0]:
        rank["entries"] = [each for each in rank["entries"] if each[0] not in ("start", "held")]
    found = find(rest, second)
    kind, text = verdict(whole, rest, second, found)
    said = f"{second.name} goes on after {whole.name}'s step {shift}. "
    said += f"Not restored: {', '.join(gone)}. " if gone else ""
    said += f"Restored: {', '.join(kept)}. " if kept else ""
    step, first = found.first or found.inexact or (None, None)
    inexact = found.inexact and [found.inexact[0] + shift, *found.inexact[1][:3]]
    return {
        "version": 1,
        "kind": kind,
        "step": step and step + shift,
        "phase": first and first.phase,
        "name": first and first.name,
        "distance": first and first.distance,
        "text": f"{said}{text}",
        "also": [],
        "inexact": inexact,
        "worst": found.worst,
        "steps": found.steps,
        "behind": [],
        "lost": gone,
        "kept": kept,
        "shift": shift,
    }


def verdict(whole: Training, rest: Training, second: Training, found: Found) -> tuple[str, str]:
    """The kind and the sentence on the first step that differs."""
    shift = len(whole.steps) - len(rest.steps)
    if found.first:
        case = Case(rest, second, found, *found.first, whole)
        said = explain(case)
        step = found.first[0] + shift
        return said.kind, f"They part at step {step}: {said.text}."
    if found.inexact:
        step, each = found.inexact
        said_ = f"Nothing differs up to step {shift + found.steps} but by rounding (from step "
        return "rounding", f"{said_}{step + shift}, {place(each)} on, {size(each.distance)})."
    return "equal", f"Nothing differs up to step {shift + found.steps}: bit for bit."


def begin(whole: Training, second: Training) -> int | None:
    """The step of the whole training after which weights are those that the second begins with."""
    start = {raw[1]: entry_of(raw) for raw in second.first["entries"] if raw[0] == "start"}
    for number, ranks in enumerate(whole.steps):
        after = {raw[1]: entry_of(raw) for raw in ranks[0]["entries"] if raw[0] == "param"}
        shared = start.keys() & after.keys()
        if shared and all(distance(start[n], after[n], True) <= RESTORED for n in shared):
            return number + 1
    return None


def lost(rest: Training, second: Training, weights: bool) -> Iterator[tuple[str, bool]]:
    """What a training has to restore, each with whether it is lost, from its first steps alone."""
    mine, theirs = rest.steps[0], second.steps[0]
    found = [each for each in of_step(mine, theirs, {}) if each.phase not in ("start", "held")]
    yield "weights", not weights
    later = zip(rest.steps[:LOOKED_AT], second.steps, strict=False)
    yield "learning rate", any(a[0]["hyper"] != b[0]["hyper"] for a, b in later)
    states = [each for each in found if each.phase == "state"]
    if states:
        yield "optimizer", any(is_lost(each) for each in states)
    if mine[0]["scale"] is not None:
        yield "GradScaler", mine[0]["scale"] != theirs[0]["scale"]
    position = common(taken(mine), taken(theirs)) < 1
    yield "position in the data", position
    values = not position and any(is_lost(each) for each in found if each.phase == "input")
    for name in mine[0]["rng"]:
        draws = any(mine[n]["after"][name] != mine[n]["rng"][name] for n in range(len(mine)))
        differs = any(
            a["rng"].get(name) != b["rng"].get(name) for a, b in zip(mine, theirs, strict=False)
        )
        if draws or (values and differs):
            yield f"random state of {name}", differs


def is_lost(each: Difference) -> bool:
    return each.distance > RESTORED or each.distance == math.inf
