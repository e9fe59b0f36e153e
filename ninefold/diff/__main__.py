"""The command `ninefold diff 'COMMAND' ['COMMAND']`: its arguments, to an exit code."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from ninefold.bench import output
from ninefold.bench.__main__ import STOPPED, failure_of
from ninefold.bench.change import require_effect
from ninefold.bench.command import Command
from ninefold.bench.commands import prepared, set_up_copies
from ninefold.bench.options import CommandsParser, Rule, add_shared
from ninefold.diff.compare import Divergence, find, growth
from ninefold.diff.kinds import answer, remarks
from ninefold.diff.resume import resumed
from ninefold.diff.starts import record
from ninefold.diff.twice import two_starts
from ninefold.errors import ConfigError, Parted, printable
from ninefold.exits import exit_code_of

EXAMPLES = """examples:
  ninefold diff 'python train.py' 'torchrun --nproc-per-node 2 train.py'
  ninefold diff 'python train.py'
  ninefold diff --resume 'python train.py --out {out}' \\
      'python train.py --out {out} --resume {out}/last.pt'
  ninefold diff --revisions main HEAD -- python train.py
"""
EQUAL = ("equal", "rounding")
PLACE = itemgetter("step", "phase", "name")  # of an answer
ORDER = "A's order of the data"
# Kinds that hide what comes behind them, and what both have to look there.
BEHIND = {
    **dict.fromkeys(("order", "epoch", "same-on-ranks"), ORDER),
    "dropout": "no dropout",
    "batchnorm": "running statistics of BatchNorm",
}


def parser() -> CommandsParser:
    """All options."""
    options = CommandsParser(
        "diff",
        "Where do two trainings part? Both commands run for a few steps, unedited and with the "
        "same seeds, and the first thing is named that differs by more than rounding. One command "
        "alone is started twice as it is.",
        EXAMPLES,
    )
    commands = "a line for a shell; in it {out} is an empty folder"
    options.add_argument("commands", nargs="*", metavar="COMMAND", help=commands)
    options.take("--steps", "N", "steps that each takes (20)", positive, default=20)
    options.flag(
        "--resume",
        says="kill a start of the first command behind a checkpoint, go on with the second one in "
        "the same {out}, and say what was not restored",
    )
    kill = "with --resume: kill it after this step, not two steps after a torch.save"
    options.take("--kill-after", "STEP", kill, positive, Rule(needs="resume"))
    only = "look at nothing behind the first difference"
    options.flag("--only", says=only, rule=Rule(never="resume"))
    options.flag("--fail", says="end with exit code 8 if they part")
    add_shared(options)
    options.set_defaults(step=None, **{"try": False})  # of bench alone
    return options


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of steps")
    return number


def main(arguments: Sequence[str]) -> int:
    """Compare what the arguments say; returns the exit code."""
    return exit_code_of(lambda: run([*arguments]), *STOPPED, failure_of)


def run(words: Sequence[str]) -> None:
    """Raises Failure: with --fail Parted of trainings that part."""
    asked = parser().read(words)
    if asked.json:
        output.require_writable("--json", asked.json)
    where = sys.stderr if asked.json == output.STDOUT else sys.stdout
    data = dict[str, Any]()
    with prepared(asked) as (keep, commands):
        wrong = "so many commands were given"
        if asked.resume and len(asked.commands) != 2:
            needed = "one that is killed and one that goes on"
            raise ConfigError("--resume", len(asked.commands), wrong, needed, "give two")
        if len(commands) > 2:
            raise ConfigError("arguments", len(commands), wrong, "two are compared", "give two")
        set_up_copies(commands, asked.setup)
        one, other = commands * 2 if len(commands) == 1 else commands
        try:
            for said, found in answers(one, other, keep, asked):
                data = found
                print(printable(said), file=where, flush=True)
        finally:  # a look behind may fail
            if asked.json and data:
                output.write("--json", asked.json, output.as_json(data))
    if asked.fail and data["kind"] not in EQUAL:
        raise Parted("command", other.text, "it parts", str(data["kind"]), "see above")
    if asked.fail and (lost := data.get("lost")):
        wrong = "it does not restore all"
        raise Parted("command", other.text, wrong, f"not {', '.join(lost)}", "see above")


def answers(
    one: Command, other: Command, keep: Path, asked: Namespace
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each answer, as what is said now and as all data so far."""
    if asked.resume:
        data = resumed(one, other, keep, asked.steps, asked.kill_after)
    elif replace(one, name=other.name) == other:
        data = two_starts(one, keep, asked.steps, asked.only)
    else:
        yield from compared((one, other), keep, asked)
        return
    yield data["text"], data


def compared(
    commands: Sequence[Command], keep: Path, asked: Namespace
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Compare two commands, and look behind what hides the rest; yields as of `answers`."""
    parting = parted(commands, keep, asked.steps)
    data = last = answer(parting)
    data["text"] = "\n".join([data["text"], *remarks(parting.one, parting.other)])
    yield data["text"], data
    switched = dict[str, str]()
    while not asked.only:
        found = [kind for kind in (last["kind"], *last["also"]) if kind in BEHIND]
        kind = next((kind for kind in found if BEHIND[kind] not in switched.values()), None)
        loaders = parting.one.order().keys() & parting.other.order().keys()
        if kind is None or (BEHIND[kind] == ORDER and not loaders):
            break
        switched[kind], before = BEHIND[kind], PLACE(last)
        parting = parted(commands, keep, asked.steps, [*switched])
        last = answer(parting)
        if PLACE(last) == before:
            break  # it does not come from what was switched off
        data["behind"].append(last)
        said = f"{last['text'][0].lower()}{last['text'][1:]}"
        said = f"Behind that, with {' and '.join(switched.values())} in both: {said}"
        data["text"] += f"\n{said}"
        yield said, data


def parted(
    commands: Sequence[Command], keep: Path, steps: int, without: Sequence[str] = ()
) -> Divergence:
    """Where two commands part. without: kinds of differences, whose causes are switched off.

    If rounding may have grown that far, the first one is run again, to measure how far it grows.
    """
    one = record(commands[0], keep, steps, without=without)
    replay = one.order() if ORDER in map(BEHIND.get, without) else None
    other = record(commands[1], keep, steps, without=without, replay=replay)
    changes = {command.name: command.changes for command in commands}
    require_effect(changes, {of.name: of.hellos for of in (one, other)})
    parting = find(one, other)
    if not parting.nudge:
        return parting
    nudged = record(commands[0], keep, steps, without=without, nudge=parting.nudge)
    return find(one, other, grown=growth(one, nudged))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
