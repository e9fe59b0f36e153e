"""What a resumed training has not restored: a start that is killed, one that goes on, one whole."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ninefold.bench.command import Command
from ninefold.diff.compare import EXACT, PHASES, Steps, Training, differences, find, renamed, taken
from ninefold.diff.kinds import answer, common, remarks
from ninefold.diff.starts import record
from ninefold.errors import ConfigError

RESTORED = 1e-7  # how far apart weights may be that were restored
AFTER_SAVE = 2  # steps that a start has taken behind a save when it ends
LOOKED_AT = 2  # steps of the resumed training, at least: a schedule shows in the second one


def resumed(
    one: Command, other: Command, keep: Path, steps: int, kill_after: int | None
) -> dict[str, Any]:
    """Compare a resumed training with one that was not interrupted. Raises ConfigError."""
    out = shlex.quote(tempfile.mkdtemp(prefix="shared-", dir=keep))
    first, then = (replace(each, text=each.text.replace("{out}", out)) for each in (one, other))
    killed = record(first, keep, kill_after or steps, until_saved=kill_after is None)
    saved = kill_after or len(killed.steps) - AFTER_SAVE
    second, whole = record(then, keep, steps), record(one, keep, steps)
    second = renamed(second, whole)
    begun = begin(whole, second, saved)
    after = saved if begun is None else begun
    if not (rest := whole.steps[after:]):
        wrong = f"{second.name} goes on after step {after}"
        raise ConfigError("--steps", steps, wrong, "more are needed", "ask for more")
    parting = find(whole, second, after)
    facts = dict(lost(rest, second.steps, max(LOOKED_AT, parting.steps)))
    gone = [name for name, is_lost in facts.items() if is_lost]
    kept = [name for name, is_lost in facts.items() if not is_lost]
    data = answer(parting, exact=True)
    said = f"{second.name} goes on after {whole.name}'s step {after}. "
    said += f"Not restored: {', '.join(gone)}. " if gone else ""
    said += f"Restored: {', '.join(kept)}. " if kept else ""
    text = {"text": "\n".join([f"{said}{data['text']}", *remarks(whole, second)])}
    return {**data, **text, "lost": gone, "kept": kept, "shift": after}


def begin(whole: Training, second: Training, saved: int) -> int | None:
    """The steps of the whole training after which weights are what the second begins with.

    saved: about when; a step that a GradScaler skips leaves them as they were.
    """
    found = list[int]()
    for number, ranks in enumerate(whole.steps):
        apart = [each.distance for each in differences(ranks, second.steps[0])
                 if each.phase == "param"]  # fmt: skip
        if number and max(apart, default=1.0) <= RESTORED:
            found.append(number)
    return min(found, key=lambda number: abs(number - saved), default=None)


def lost(rest: Steps, second: Steps, looked_at: int = LOOKED_AT) -> Iterator[tuple[str, bool]]:
    """What a training has to restore, each with whether it is lost: from its first step, or of
    options of the optimizer from the first `looked_at`.
    """
    steps = [*zip(rest[:looked_at], second, strict=False)]
    (mine, theirs), found = steps[0], [differences(a, b) for a, b in steps]

    def apart(phase: str) -> bool:
        looked, limit = (looked_at, EXACT) if phase == "hyper" else (1, RESTORED)
        return any(each.distance > limit
                   for of in found[:looked] for each in of if each.phase == phase)  # fmt: skip

    for phase, of in PHASES.items():
        if of.restored and any(each.phase == phase for each in found[0]):
            yield of.restored, apart(phase)
    # What a loader hands out ahead is not what was trained on: inputs tell, where there are some.
    seen, inputs_differ = any(each.phase == "input" for each in found[0]), apart("input")
    position = common(taken(mine), taken(theirs)) < 1 and (inputs_differ or not seen)
    yield "position in the data", position
    augmented = inputs_differ and not position
    for name in mine[0]["rng"]:
        draws = any(rank["after"].get(name) != rank["rng"].get(name) for rank in mine)
        pairs = zip(mine, theirs, strict=False)
        differs = any(a["rng"].get(name) != b["rng"].get(name) for a, b in pairs)
        if draws or (augmented and differs):
            yield f"random state of {name}", differs
