"""The command `ninefold diff 'COMMAND' ['COMMAND']`: its arguments, to an exit code."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ninefold.bench import __main__ as bench
from ninefold.bench import output
from ninefold.bench.contestant import Command
from ninefold.bench.guardian import guarded
from ninefold.bench.precisions import in_precisions
from ninefold.bench.revisions import Copy, check_out, cleanup_commands, planned
from ninefold.bench.strategies import in_strategies
from ninefold.diff.compare import find, recording
from ninefold.diff.kinds import answer, besides
from ninefold.diff.resume import resumed
from ninefold.diff.starts import record
from ninefold.diff.twice import two_starts
from ninefold.errors import ConfigError, Parted, printable
from ninefold.exits import exit_code_of
from ninefold.parser import Parser
from ninefold.process import scratch

EXAMPLES = """examples:
  ninefold diff 'python train.py' 'torchrun --nproc-per-node 2 train.py'
  ninefold diff 'python train.py'
  ninefold diff --resume 'python train.py --out {out}' \\
      'python train.py --out {out} --resume {out}/last.pt'
  ninefold diff --revisions main HEAD -- python train.py
"""
EQUAL = ("equal", "rounding")
ORDER = "A's order of the data in both"
# Kinds that hide what comes behind them, and what is switched off to look there.
BEHIND = {
    **dict.fromkeys(("order", "epoch", "same-on-ranks"), ORDER),
    "dropout": "no dropout in both",
    "batchnorm": "running statistics of BatchNorm in both",
}


def parser() -> Parser:
    """All options."""
    found = bench.parser_of(
        "diff",
        "Where do two trainings part? Both commands run for a few steps, unedited and with the "
        "same seeds, and the first thing is named that differs by more than rounding. One command "
        "alone is started twice as it is.",
        EXAMPLES,
    )
    add = found.add_argument
    add(
        "commands",
        nargs="*",
        metavar="COMMAND",
        help="a line for /bin/sh; in it {out} is an empty folder",
    )
    add("--steps", type=positive, default=20, metavar="N", help="steps that each takes (20)")
    add(
        "--resume",
        action="store_true",
        help="kill a start of the first command behind a checkpoint, go on with the second one in "
        "the same {out}, and say what was not restored",
    )
    add(
        "--kill-after",
        type=positive,
        metavar="STEP",
        help="with --resume: kill it after this step, not two steps after a torch.save",
    )
    add("--only", action="store_true", help="look at nothing behind the first difference")
    add("--fail", action="store_true", help="end with exit code 8 if they part")
    bench.add_shared(add)
    return found


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of steps")
    return number


def main(arguments: Sequence[str]) -> int:
    """Compare what the arguments say; returns the exit code."""
    stopped, left = "the comparison was stopped", "no process of the commands is left"
    return exit_code_of(lambda: run([*arguments]), stopped, left, bench.failure_of)


def run(words: Sequence[str]) -> None:
    """Raises Failure: with --fail Parted of trainings that part."""
    asked = bench.parse(words, parser())
    bench.require_effects(asked)
    if asked.json:
        output.require_writable("--json", asked.json)
    with output.own_folder(asked.keep) as keep, guarded(scratch()) as at_end:
        made = planned(asked.revisions, keep / "revisions") if asked.revisions else []
        at_end(cleanup_commands(made))
        check_out(made, asked.link, asked.setup)
        one, other = two(asked, made)
        if asked.resume:
            found = resumed(one, other, keep, asked.steps, asked.kill_after)
        elif replace(one, name=other.name) == other:
            found = two_starts(one, keep, asked.steps)
        else:
            found = compared((one, other), keep, asked)
    print(printable(found["text"]), file=sys.stderr if asked.json == output.STDOUT else sys.stdout)
    if asked.json:
        output.write("--json", asked.json, output.as_json(found))
    if asked.fail and found["kind"] not in EQUAL:
        raise Parted("command", other.text, "it parts", str(found["kind"]), "see above")


def two(asked: Namespace, made: Sequence[Copy]) -> list[Command]:
    """The two commands. Raises ConfigError for another number."""
    asked.step = None
    setattr(asked, "try", False)
    given = bench.of_revisions(bench.with_values(asked), made)
    if asked.strategies:
        given = in_strategies(given[0], asked.strategies.split(","))
    if asked.precisions:
        given = [one for each in given for one in in_precisions(each, asked.precisions.split(","))]
    if len(given) == 1 and max(len(asked.cwd), len(asked.env), len(asked.name)) < 2:
        given = given * 2
    found = bench.finished(given, asked)
    number = len(asked.commands) if asked.resume else len(found)
    if number != 2:
        wrong = "so many commands were given"
        raise ConfigError("arguments", number, wrong, "two are compared", "give two")
    return found


def compared(commands: Sequence[Command], keep: Path, asked: Namespace) -> dict[str, Any]:
    """Compare two commands, and look behind what hides the rest."""
    one, other = (record(command, keep, asked.steps) for command in commands)
    data = last = answer(one, other, find(one, other))
    text, switched = [data["text"], *besides(one), *besides(other)], dict[str, str]()
    while not asked.only and (switch := BEHIND.get(last["kind"])):
        if switch in switched.values() or (switch == ORDER and not one.order()):
            break
        switched[last["kind"]] = switch
        without = [each for each in switched if BEHIND[each] != ORDER]
        one = record(commands[0], keep, asked.steps, recording(asked.steps, without=without))
        replay = one.order() if ORDER in switched.values() else None
        variables = recording(asked.steps, without=without, replay=replay)
        other = record(commands[1], keep, asked.steps, variables)
        last = answer(one, other, find(one, other))
        data["behind"].append(last)
        text.append(f"Behind that, with {' and '.join(switched.values())}: "
                    f"{last['text'][0].lower()}{last['text'][1:]}")  # fmt: skip
    return {**data, "text": "\n".join(text)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
