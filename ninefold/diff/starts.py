"""Starts a command and records its first steps."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ninefold.bench.command import Command
from ninefold.bench.held import HeldCommand
from ninefold.diff.compare import Training, is_recorded, recorded, recording
from ninefold.errors import ConfigError
from ninefold.numbers import counted
from ninefold.tournament.contestant import Ended
from ninefold.waits import poll_until

SAVES = "torch.save"  # of a step's marks


def record(
    command: Command, keep: Path, steps: int, until_saved: bool = False, **how: Any
) -> Training:
    """Start a command, and return its first steps. Raises Failure where it takes none.

    until_saved: whether it ends after the step behind the one in which torch.save was called; else
    after so many steps. how: see `recording`.
    """
    number = len([*command.log(keep, 0).parent.glob("*.log")])
    started = replace(command, text=command.text.replace("{seed}", "0"))
    marking, variables = {SAVES} if until_saved else set(), recording(steps, **how)
    saves = over = False
    with closing(HeldCommand(started, number, keep, marking, False, True, variables)) as held:
        try:
            # A step that a GradScaler skips is recorded, and no step of an optimizer.
            poll_until(lambda: held.arrived() or (steps > 1 and is_recorded(held.folder, steps)))
            for _ in range(steps - 1):
                if saves or is_recorded(held.folder, steps):
                    break
                saves = SAVES in held.train(0, 1, records=True).marked
        except ConfigError as error:
            if error.field != "command":
                raise
            do = f"see its output, {held.log}"  # what bench advises is of no use here
            raise command.failure(error.wrong, error.allowed, do) from None
        except Ended as ended:
            if ended.code:
                raise held.failure_of_end(ended.code) from None
            over = True
    taken = recorded(held.folder)
    if not taken:
        allowed = "steps with torch 2, in the thread that imports it, are"
        raise command.failure("no step of it was recorded", allowed, f"see {held.log}")
    late = held.steps > len(taken)  # where each step saves, it goes on until that is known
    if until_saved and (late or not saves):
        wrong = f"it called no {SAVES} behind one of its first {counted(steps, 'step')}"
        if late:
            wrong = f"each step calls {SAVES}: it ended after step {held.steps}"
        elif over:
            wrong = f"it ended after {counted(taken, 'step')}: none came behind a {SAVES}"
        allowed, do = "a checkpoint is what is resumed", "--steps N, or --kill-after STEP"
        raise ConfigError("--resume", command.text, wrong, allowed, do)
    return Training(command.name, taken, held.hellos)
