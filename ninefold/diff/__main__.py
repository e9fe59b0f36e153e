"""The command `ninefold diff 'COMMAND' ['COMMAND']`: its arguments, to an exit code."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ninefold.bench import output
from ninefold.bench.__main__ import (
    add_shared,
    failure_of,
    finished,
    of_revisions,
    parse,
    parser_of,
    with_values,
)
from ninefold.bench.contestant import Command
from ninefold.bench.guardian import guarded
from ninefold.bench.precisions import in_precisions
from ninefold.bench.revisions import Copy, check_out, cleanup_commands, planned
from ninefold.bench.strategies import in_strategies
from ninefold.diff.compare import Found, disagreement, find, renamed
from ninefold.diff.kinds import BEHIND, Case, facts, of_precisions, place, sentence, size
from ninefold.diff.resume import resumed
from ninefold.diff.starts import Asked, Training, record
from ninefold.diff.twice import SOURCES, needed
from ninefold.errors import ConfigError, Parted
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
LOOKS = 3  # behind a difference, at most
SWITCHED = {
    "order": "A's order of the data in both",
    "dropout": "no dropout in both",
    "batchnorm": "running statistics of BatchNorm in both",
}


def parser() -> Parser:
    """All options."""
    found = parser_of(
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
    add_shared(add)
    return found


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of steps")
    return number


def main(arguments: Sequence[str]) -> int:
    """Compare what the arguments say; returns the exit code."""
    stopped, left = "the comparison was stopped", "no process of the commands is left"
    return exit_code_of(lambda: run([*arguments]), stopped, left, failure_of)


def run(words: Sequence[str]) -> None:
    """Raises Failure: with --fail Parted of trainings that part."""
    asked = parse(words, parser())
    if asked.json:
        output.require_writable("--json", asked.json)
    with output.own_folder(asked.keep) as keep, guarded(scratch()) as at_end:
        made = planned(asked.revisions, keep / "revisions") if asked.revisions else []
        at_end(cleanup_commands(made))
        check_out(made, asked.link, asked.setup)
        one, other = two(asked, made)
        if asked.resume:
            answer = resumed(one, other, keep, asked.steps, asked.kill_after)
        elif replace(one, name=other.name) == other:
            answer = of_two_starts(one, keep, asked)
        else:
            answer = compared((one, other), keep, asked)
    print(answer["text"], file=sys.stderr if asked.json == output.STDOUT else sys.stdout)
    if asked.json:
        output.write("--json", asked.json, output.as_json(answer))
    if asked.fail and answer["kind"] not in EQUAL:
        raise Parted("command", other.text, "it parts", str(answer["kind"]), "see above")


def two(asked: Namespace, made: Sequence[Copy]) -> list[Command]:
    """The two commands. Raises ConfigError for another number."""
    asked.step = None
    setattr(asked, "try", False)
    given = of_revisions(with_values(asked), made)
    if asked.strategies:
        given = in_strategies(given[0], asked.strategies.split(","))
    if asked.precisions:
        given = [one for each in given for one in in_precisions(each, asked.precisions.split(","))]
    if len(given) == 1 and max(len(asked.cwd), len(asked.env), len(asked.name)) < 2:
        given = given * 2
    found = finished(given, asked)
    if len(found) != 2 or (asked.resume and len(asked.commands) != 2):
        number = len(asked.commands) if asked.resume else len(found)
        raise ConfigError(
            "arguments", number, "so many commands were given", "two are compared", "give two"
        )
    return found


def compared(commands: Sequence[Command], keep: Path, asked: Namespace) -> dict[str, Any]:
    """Compare two commands, and look behind what hides the rest."""
    wanted = Asked(asked.steps)
    one, other = (record(command, keep, wanted) for command in commands)
    answer = answer_of(one, other)
    text, last, switched = [answer["text"]], answer, list[str]()
    text += [*besides(one, other, renamed(one, other))]
    while not asked.only and len(switched) < LOOKS:
        switch = BEHIND.get(last["kind"])
        if switch is None or switch in switched or (switch == "order" and not one.order()):
            break
        switched.append(switch)
        without = [each for each in switched if each != "order"]
        if switch != "order":
            one = record(commands[0], keep, replace(wanted, without=without))
        replay = one.order() if "order" in switched else None
        other = record(commands[1], keep, replace(wanted, without=without, replay=replay))
        last = answer_of(one, other)
        answer["behind"].append(last)
        text.append(f"Behind that, with {' and '.join(SWITCHED[each] for each in switched)}: "
                    f"{last['text'][0].lower()}{last['text'][1:]}")  # fmt: skip
    return {**answer, "text": "\n".join(text)}


def besides(one: Training, other: Training, names: Mapping[str, str]) -> Iterator[str]:
    """What is said whether or not they part."""
    if said := of_precisions(one, other, names):
        yield said
    for each in (one, other):
        if apart := disagreement(each):
            step, name = apart
            yield f"The ranks of {each.name} have other gradients of {name} from step {step} on."
        if lost := each.steps[-1][0]["lost"]:
            yield f"Not all could be recorded in {each.name}: {lost}."


def of_two_starts(command: Command, keep: Path, asked: Namespace) -> dict[str, Any]:
    """Compare two starts of one command as it is, and say what makes them equal."""
    found, one, other, sources = needed(
        command, keep, asked.steps, lambda said: print(said, file=sys.stderr)
    )
    answer = {**answer_of(one, other, found), "needed": sources}
    more = [*besides(one, other, found.names)]
    if found.inexact is None:
        return {**answer, "text": "\n".join([answer["text"], *more])}
    step, each = found.inexact
    said = f"Two starts differ from step {step} on, first in {place(each)}, {size(each.distance)}."
    if sources is None:
        why = "an order of additions that is not fixed" if each.distance < 1e-5 else "chance"
        said += f" They still do with all of this fixed: {', '.join(SOURCES)}. It is {why}."
    else:
        lines = [f"{said} They are equal with:", *(f"  {SOURCES[n]}" for n in sources)]
        said = "\n".join([*lines, *more])
    of_first = {"step": step, "phase": each.phase, "name": each.name, "distance": each.distance}
    kind = "not-fixed" if sources is None else answer["kind"]
    return {**answer, **of_first, "kind": kind, "text": said}


def answer_of(one: Training, other: Training, found: Found | None = None) -> dict[str, Any]:
    """What was found, as JSON has it."""
    found = found or find(one, other)
    case = Case(one, other, found, *found.first) if found.first else None
    said = sentence(case, found)
    first = found.first and found.first[1]
    inexact = found.inexact and [found.inexact[0], *found.inexact[1][:3]]
    return {
        "version": 1,
        "kind": said.kind,
        "step": found.first and found.first[0],
        "phase": first and first.phase,
        "name": first and first.name,
        "distance": first and first.distance,
        "text": said.text,
        "also": [each.kind for each in facts(case)] if case else [],
        "inexact": inexact,
        "worst": found.worst,
        "steps": found.steps,
        "behind": [],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
