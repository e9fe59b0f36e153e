"""The command `ninefold bench 'COMMAND' 'COMMAND' ...`: its arguments, to an exit code."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
import shlex
import string
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from ninefold.answer.screen import NOTES
from ninefold.bench import gate, output, score, series, summary
from ninefold.bench.contestant import Command, folder_name
from ninefold.bench.engine import Bench, Found
from ninefold.bench.guardian import guarded
from ninefold.bench.precisions import in_precisions
from ninefold.bench.revisions import Copy, check_out, cleanup_commands, planned
from ninefold.bench.strategies import in_strategies
from ninefold.bench.whole import WholeRuns
from ninefold.errors import (
    ConfigError,
    Failure,
    Slower,
    Undecided,
    one_line,
    resource_failure,
)
from ninefold.exits import bug, exit_code_of
from ninefold.parser import Parser
from ninefold.places import typed_as
from ninefold.process import scratch
from ninefold.ranks import started_by
from ninefold.types import MAX_TIME

EXAMPLES = """examples:
  ninefold bench 'python train.py' 'python train.py --amp'
  ninefold bench --each workers=0,2,4 'python train.py --workers {workers}'
  ninefold bench --revisions main HEAD --max-slowdown 3% -- python train.py
  ninefold bench --env old/.venv --env new/.venv -- python train.py
  ninefold bench --score 'val_loss: ([0-9.]+)' --better less --margin 0.01 \\
      'python train.py' 'python train.py --smooth 0.1'
  ninefold bench --precisions fp32,bf16 --strategies none,ddp 'python train.py'
  ninefold bench --try 'python train.py'
"""


def parser() -> Parser:
    """All options."""
    found = parser_of(
        "bench",
        "Which of these commands that train with torch takes less time per step? They alternate in "
        "short turns, unedited.",
        EXAMPLES,
    )
    add = found.add_argument
    add(
        "commands",
        nargs="*",
        metavar="COMMAND",
        help="a line for /bin/sh; in it {seed} is the number of the round, {out} an empty "
        "folder. A is the first one, B the second",
    )
    add(
        "--minutes",
        type=duration,
        metavar="N",
        help="how long it may take, starts included (2, and 4 with --try); it ends sooner once the "
        "answer is known",
    )
    add(
        "--same",
        type=share,
        metavar="SHARE",
        help="commands whose times differ by less are equally fast (2%%)",
    )
    add_shared(add)
    add(
        "--step",
        metavar="MODULE:FUNCTION",
        help="the function whose return ends a step, if that is not Optimizer.step",
    )
    add("--whole", action="store_true", help="time full runs, one after another, in place of steps")
    add(
        "--apart",
        action="store_true",
        help="start one command when the other has ended: for what "
        "fills a GPU, and for steps that wait for a clock",
    )
    add(
        "--try",
        action="store_true",
        help="try what may make one command faster: loader workers, threads, autocast to bf16, "
        "channels_last, a fused optimizer, torch.compile; and what each part of a step costs",
    )
    add(
        "--max-slowdown",
        type=share,
        metavar="SHARE",
        help="make it a gate: exit code 0 if B is "
        "slower by less than this, such as 3%%, 8 if by more, 9 if that is not decided",
    )
    add(
        "--max-memory",
        type=share,
        metavar="SHARE",
        help="a gate on the peak of memory of a process, such as 3%%, by the same exit codes",
    )
    add(
        "--score",
        type=where_score_is,
        metavar="REGEX",
        help="compare scores of full runs, with other seeds in each round: the last match in the "
        "output, {out}/FILE.json:KEY, or {out}:TAG of TensorBoard",
    )
    add("--better", choices=("less", "more"), help="which scores are better")
    add("--margin", type=positive, metavar="N", help="a gain in score of less is not worth keeping")
    add(
        "--series",
        type=output.named,
        metavar="FILE",
        help="add the judgement to those of FILE, which have one error rate together",
    )
    add("-v", "--verbose", action="store_true", help="print all rows and all notes")
    add(
        "--markdown",
        type=output.named,
        metavar="FILE",
        help="write the answer for a pull request into a regular file, or to stdout (-)",
    )
    return found


def parser_of(command: str, description: str, examples: str) -> Parser:
    """The parser of a command that starts several commands, without options."""
    return Parser(
        "see its options",
        "--help",
        prog=typed_as(command),
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_shared(add: Callable[..., object]) -> None:
    """Add the options that other commands share that start several commands."""
    one = "one for all commands, or one for each"
    add(
        "--name",
        action="append",
        default=[],
        metavar="NAME",
        help="a name for each command, in order, in the place of A, B, C",
    )
    add("--cwd", action="append", default=[], metavar="DIR", help=f"the folder to run in: {one}")
    add(
        "--env",
        action="append",
        default=[],
        metavar="VENV",
        help=f"the virtual environment to run in: {one}",
    )
    add(
        "--each",
        action="append",
        default=[],
        metavar="K=V,V",
        help="make one command for each value, in the place of {K}",
    )
    add(
        "--precisions",
        metavar="P,P",
        help="compare one script in fp32, bf16, fp16 as Lightning, Fabric, accelerate or "
        "Hugging Face's Trainer choose them by themselves; a plain loop gets autocast in bf16",
    )
    add(
        "--strategies",
        metavar="S,S",
        help="compare one script as one process (none) and by DDP on the GPUs, or in two processes "
        "on a CPU (ddp), by examples a second; with --precisions each in each",
    )
    add(
        "--revisions",
        nargs=2,
        metavar=("BASE", "HEAD"),
        help="run one command in two revisions of git; . is the working tree as it is",
    )
    add(
        "--link",
        action="append",
        default=[],
        metavar="PATH",
        help="a file or folder that git does not have, to be linked into each revision",
    )
    add("--setup", metavar="COMMAND", help="a line for /bin/sh to run in each revision first")
    add(
        "--json",
        type=output.named,
        metavar="FILE",
        help="write the answer as data into a regular file, or to stdout (-)",
    )
    add(
        "--keep",
        type=output.named,
        metavar="DIR",
        help="the folder for the output of the commands, new or empty (bench/DATE)",
    )


def share(text: str) -> float:
    """The share that `3%` or `0.03` stands for."""
    number = text.strip()
    share = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"{text} is no share below 1: 3% or 0.03 is")
    return share


def positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number above 0")
    return number


def duration(text: str) -> float:
    if (number := positive(text)) >= MAX_TIME:
        raise argparse.ArgumentTypeError(f"{text} is no time below {MAX_TIME:g}")
    return number


def where_score_is(text: str) -> re.Pattern[str] | str:
    """A pattern, or what names a score in the folder {out} of a run."""
    if text.startswith(score.OUT):
        return text
    try:
        with warnings.catch_warnings(action="ignore"):
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text[:80]} is no pattern: {error}") from None


def main(arguments: Sequence[str]) -> int:
    """Compare what the arguments say; returns the exit code."""
    stopped, left = "the comparison was stopped", "no process of the commands is left"
    return exit_code_of(lambda: run(list(arguments)), stopped, left, failure_of)


def failure_of(error: Exception) -> Failure:
    """The failure for what `run` raises: a disk that cannot be written to is no mistake of ours."""
    if not isinstance(error, OSError):
        return bug(error)
    written = "--keep, --json, --markdown and TMPDIR are written to"
    return resource_failure(error, written, "see that they can be, or name others")


def run(words: Sequence[str]) -> None:
    """Raises Failure: also of a gate that does not pass, and of a change that is not kept."""
    if "--twice" in itertools.takewhile(lambda word: word != "--", words):
        do = f"write {typed_as('diff')} 'COMMAND'"
        raise ConfigError("arguments", "--twice", "bench has it no more", "diff says where", do)
    asked = parse(words, parser())
    if sys.platform != "linux":
        raise ConfigError(
            "platform",
            sys.platform,
            "it holds commands by SIGSTOP and /proc",
            "Linux has these",
            "use it, or WSL",
        )
    if (launcher := started_by()) == "torchrun":
        wrong = "each of its processes would compare all commands"
        do = "have torchrun in the commands"
        raise ConfigError("launcher", launcher, wrong, "one process does", do)
    require_possible(asked)
    asked.minutes = asked.minutes or (4.0 if getattr(asked, "try") else 2.0)
    asked.same = 0.02 if asked.same is None else asked.same
    given = with_values(asked)
    with output.own_folder(asked.keep) as keep, guarded(scratch()) as at_end:
        made = planned(asked.revisions, keep / "revisions") if asked.revisions else []
        at_end(cleanup_commands(made))
        check_out(made, asked.link, asked.setup)
        given = of_revisions(given, made)
        if asked.strategies:
            given = in_strategies(given[0], asked.strategies.split(","))
        if asked.precisions:
            names = asked.precisions.split(",")
            given = [made for each in given for made in in_precisions(each, names)]
        commands = finished(given, asked)
        (judged if asked.score else timed)(commands, asked, keep)


TURNS, MODES = "turns", ("score", "whole", "try")
# The modes in which an option has an effect; one that is not here has it in all.
WORKS_IN = {
    **dict.fromkeys(("minutes", "same"), "turns whole try"),
    **dict.fromkeys(("name", "revisions"), "turns whole score"),
    **dict.fromkeys(("max_slowdown", "markdown"), "turns whole"),
    **dict.fromkeys(("precisions", "strategies"), "turns score"),
    **dict.fromkeys(("apart", "max_memory"), "turns"),
    **dict.fromkeys(("better", "margin", "series"), "score"),
    "step": "turns try",
}
NEEDS = {"link": "revisions", "setup": "revisions", "kill_after": "resume"}
NOT_WITH = dict.fromkeys(("precisions", "strategies"), ("name", "revisions"))


def require_possible(asked: Namespace) -> None:
    """Raise ConfigError for an option without an effect, and a file that cannot be written."""
    given = given_in(asked)
    modes = [mode for mode in MODES if mode in given]
    mode = modes[0] if modes else TURNS
    for option, works in {**WORKS_IN, **dict.fromkeys(modes[1:], "")}.items():
        if option in given and mode not in works.split():
            where = f"with --{mode}" if modes else f"without --{works}"
            raise _without_effect(option, given[option], where)
    require_effects(asked)
    files = {option: getattr(asked, option) for option in ("json", "markdown", "series")}
    files = {option: path for option, path in files.items() if path}
    places = dict[str, str]()
    for option, file in files.items():
        if other := places.get(place := os.path.abspath(file)):
            wrong = f"--{other} is it, too"
            raise ConfigError(f"--{option}", file, wrong, "two are needed", "name two")
        places[place] = option
        output.require_writable(f"--{option}", file)


def given_in(asked: Namespace) -> dict[str, Any]:
    """The options that were given, with their values."""
    return {
        name: of for name, of in vars(asked).items() if of not in (None, []) and of is not False
    }


def require_effects(asked: Namespace) -> None:
    """Raise ConfigError for an option that has no effect beside others, or without one."""
    given = given_in(asked)
    for option, needed in NEEDS.items():
        if option in given and needed not in given:
            raise _without_effect(option, given[option], f"without --{needed}")
    for option, others in NOT_WITH.items():
        for other in others:
            if option in given and other in given:
                raise _without_effect(other, given[other], f"with --{option}")


def _without_effect(option: str, value: object, where: str) -> ConfigError:
    text = ", ".join(map(str, value)) if isinstance(value, list) else value
    name = f"--{option.replace('_', '-')}"
    return ConfigError(name, text, f"it has no effect {where}", "see --help", "leave it out")


def parse(words: Sequence[str], options: Parser) -> Namespace:
    """The arguments; what follows -- is one command. Raises ConfigError."""
    end = words.index("--") if "--" in words else len(words)
    asked = options.parse_intermixed_args(words[:end])
    line = words[end + 1 :]
    if line:
        asked.commands.append(line[0] if len(line) == 1 else shlex.join(line))
    return asked


def shown(asked: Namespace) -> TextIO:
    """Where the answer is told in words: on stderr if stdout is for data."""
    return sys.stderr if output.STDOUT in (asked.json, asked.markdown) else sys.stdout


def judged(commands: Sequence[Command], asked: Namespace, keep: Path) -> None:
    """Compare scores. Raises the failure of a change that is not kept."""
    text = asked.score if isinstance(asked.score, str) else asked.score.pattern
    if asked.margin is None or asked.better is None:
        raise ConfigError(
            "--score",
            text,
            "what a gain is worth is not said",
            "--better and --margin are needed",
            "add them",
        )
    before = series.read(asked.series) if asked.series else []
    level = score.LEVEL
    if asked.series:
        level = series.level_of_next([each["verdict"] == score.KEEP for each in before])
    found = score.compare(
        commands, score.Rule(asked.score, asked.better, asked.margin, level), keep
    )
    said, more = found.judgement, list[str]()
    if asked.series:
        texts = [command.text for command in commands]
        judged = {"verdict": said.verdict, "level": level, "seeds": said.seeds, "commands": texts}
        more.append(series.add(asked.series, before, judged))
    print(found.text(None if asked.verbose else NOTES, more), file=shown(asked))
    if asked.json:
        output.write("--json", asked.json, output.as_json(found.data()))
    kind = {score.DISCARD: Slower, score.MORE: Undecided}.get(said.verdict)
    if kind is not None:
        run = f"{said.seeds} seeds were run"
        raise kind("--score", text, said.verdict, run, "see above")


def timed(commands: Sequence[Command], asked: Namespace, keep: Path) -> None:
    """Compare times, and print the summary. Raises the failure of a gate."""
    allowed = asked.max_slowdown
    gates = {"--max-slowdown": allowed, "--max-memory": asked.max_memory}
    for option in (option for option, share in gates.items() if share is not None):
        if len(commands) != 2:
            wrong = "commands were given"
            raise ConfigError(option, len(commands), wrong, "it takes two", "give these")
    found = Found(commands, asked.minutes, asked.same, asked.apart, allowed)
    if asked.whole:
        WholeRuns(found, keep).run()
    elif getattr(asked, "try"):
        from ninefold.bench.trial import ChangesTrial  # here, as nothing else needs it

        trial = ChangesTrial(commands[0], found, keep)
        trial.run()
        found.helps = trial.helps()
    else:
        Bench(found, keep).run()
    failed: Failure | None = summary.no_verdict(found)
    verdict = gate.UNDECIDED if allowed is not None else None
    if allowed is not None and not failed:
        pair = found.times().pairs[0]
        verdict = gate.verdict(pair, allowed)
        failed = gate.failure(pair, allowed, found.seconds / 60, found.what)
    if asked.max_memory is not None:
        failed = failed or gate.memory_failure(found.names, found.memory, asked.max_memory)
    failed = failed or summary.too_early(found)
    print(summary.text(found, keep, verdict, asked.verbose), file=shown(asked))
    output.write("--keep", keep / summary.DETAILS, summary.details(found, verdict))
    if asked.json:
        data = summary.data(found, failed.code if failed else 0, verdict)
        output.write("--json", asked.json, output.as_json(data))
    if asked.markdown:
        output.write("--markdown", asked.markdown, summary.markdown(found, verdict))
    if failed:
        raise failed


def with_values(asked: Namespace) -> list[Command]:
    """The commands, one for each value of --each, which names those of one command."""
    texts: list[str] = asked.commands
    if not texts:
        raise ConfigError(
            "arguments",
            "none",
            "no command was given",
            "two, or one and an option that makes more",
            "add --help",
        )
    given = [(text, "") for text in texts]
    keys = [each.partition("=")[0] for each in asked.each]
    if len({*keys}) < len(keys):
        wrong, allowed = "a name is given twice", "each name once is allowed"
        raise ConfigError("--each", ", ".join(keys), wrong, allowed, "put its values into one")
    for each in asked.each:
        key, _, values = each.partition("=")
        if not values or any(f"{{{key}}}" not in text for text in texts):
            raise ConfigError(
                "--each",
                each,
                "it changes nothing",
                f"K=V,V and {{{key}}} in the command do",
                "write both",
            )
        given = [
            (text.replace(f"{{{key}}}", value), ", ".join(filter(None, (name, f"{key}={value}"))))
            for text, name in given
            for value in values.split(",")
        ]
    if not all(text.strip() for text, _ in given):
        wrong, needed = "there is nothing in it", "a line for /bin/sh is needed"
        raise ConfigError("command", "''", wrong, needed, "write one")
    for text, name in given:
        try:
            f"{text}{name}".encode()
        except UnicodeEncodeError as error:
            wrong, do = "it is not UTF-8", "write it so, or name the file by a link"
            raise ConfigError("command", repr(text), wrong, str(error), do) from None
    for option in ("revisions", "try", "precisions", "strategies"):
        if getattr(asked, option) and len(given) != 1:
            raise ConfigError(
                f"--{option}", len(given), "so many commands were given", "it takes one", "give one"
            )
    named = len(texts) == 1
    return [Command(text, name=name if named else "", step=asked.step) for text, name in given]


def of_revisions(given: list[Command], made: Sequence[Copy]) -> list[Command]:
    """One command for each revision, in its copy, if there are revisions."""
    return [
        replace(given[0], name=copy.name, folder=copy.folder, variables=copy.variables, copy=copy)
        for copy in made
    ] or given


def finished(given: list[Command], asked: Namespace) -> list[Command]:
    """The commands with their own names, folders and environments. What is given once is for all.

    Raises ConfigError.
    """
    options = {"cwd": asked.cwd, "env": asked.env, "name": asked.name}
    if len(given) == 1:
        given = given * max(1, *map(len, options.values()))
    count = len(given)
    for option, values in options.items():
        if len(values) not in ({0, count} if option == "name" else {0, 1, count}):
            raise ConfigError(
                f"--{option}",
                ", ".join(values),
                f"{len(values)} for {count} commands",
                "one for each is allowed",
                "give these",
            )
        options[option] = values * count if len(values) == 1 else values or [None] * count
    alone = getattr(asked, "try")
    if alone and count > 1:
        option = max(options, key=lambda option: len(options[option]))
        raise _without_effect(option, options[option][1], "with --try, which takes one")
    if count < 2 and not alone:
        raise ConfigError(
            "arguments",
            given[0].text,
            "there is nothing to compare it with",
            "two or more are needed",
            "add one",
        )
    found: list[Command] = []
    for number, (command, cwd, env, name) in enumerate(zip(given, *options.values(), strict=True)):
        letter = string.ascii_uppercase[number] if number < 26 else f"C{number + 1}"
        name = one_line(name or command.name) or letter
        while folder_name(name) in {folder_name(other.name) for other in found}:
            name = f"{name} ({letter})"
        folder = command.folder / (cwd or "")
        if not folder.is_dir():
            raise ConfigError(
                "--cwd",
                folder,
                "there is no such folder",
                "one that is there is needed",
                "make it, or correct it",
            )
        folders, _, own = command.text.split()[0].rpartition("/")
        if env and folders and "python" in own:
            wrong = f"the command names its Python, {folders}/{own}"
            allowed = "python alone is that of the environment"
            raise ConfigError("--env", env, wrong, allowed, "write that")
        if (
            cwd
            and command.copy
            and not folder.resolve().is_relative_to(command.copy.root.resolve())
        ):
            wrong = "all revisions would run in it"
            allowed = "a folder of the repository is allowed"
            raise ConfigError("--cwd", cwd, wrong, allowed, "name it from the working folder")
        variables = {**command.variables, **({} if env is None else environment(env))}
        found.append(replace(command, name=name, folder=folder, variables=variables))
    return found


def environment(venv: str) -> dict[str, str]:
    """The variables of a command that runs in a virtual environment."""
    folder = Path(venv).absolute()
    python = folder / "bin" / "python"
    if not (python.is_file() and os.access(python, os.X_OK)) or os.pathsep in str(folder):
        raise ConfigError(
            "--env",
            venv,
            "it has no bin/python",
            "a virtual environment, and no :, does",
            "name one",
        )
    path = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"PATH": path, "VIRTUAL_ENV": str(folder), "PYTHONHOME": ""}
