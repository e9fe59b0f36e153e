"""The command `ninefold bench 'COMMAND' 'COMMAND' ...`: its arguments, to an exit code."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

from ninefold.bench import output
from ninefold.bench.command import OUT, Command
from ninefold.bench.commands import prepared, set_up_copies
from ninefold.bench.measurements import Measurements, Options
from ninefold.bench.options import (
    CommandsParser,
    Rule,
    add_shared,
    duration,
    function_name,
    positive,
    share,
    where_score_is,
)
from ninefold.bench.rounds import Bench
from ninefold.bench.summary import Summary
from ninefold.bench.whole import WholeRuns
from ninefold.errors import ConfigError, Failure, resource_failure
from ninefold.exits import bug, exit_code_of, interrupted
from ninefold.streams import OutputClosed

EXAMPLES = """examples:
  ninefold bench 'python train.py' 'python train.py --amp'
  ninefold bench --each workers=0,2,4 'python train.py --workers {workers}'
  ninefold bench --revisions main HEAD --max-slowdown 3% -- python train.py
  ninefold bench --env old/.venv --env new/.venv -- python train.py
  ninefold bench --score 'val_loss: (\\S+)' --better less --margin 0.01 \\
      'python train.py' 'python train.py --smooth 0.1'
  ninefold bench --precisions fp32,bf16 --strategies none,ddp 'python train.py'
  ninefold bench --try 'python train.py'
"""
STOPPED = "the comparison was stopped", "no process of the commands is left"


def parser() -> CommandsParser:
    """All options."""
    options = CommandsParser(
        "bench",
        "Which of these commands that train with torch takes less time per step? They alternate in "
        "short turns, unedited.",
        EXAMPLES,
        modes=("score", "whole", "try"),
    )
    options.add_argument(
        "commands",
        nargs="*",
        metavar="COMMAND",
        help="a line for a shell; in it {seed} is the number of the round, {out} an empty folder. "
        "A is the first one, B the second",
    )
    scored, steps, runs = Rule(modes="score"), Rule(modes="turns"), Rule(modes="turns whole")
    times = Rule(modes="turns whole try")
    options.take(
        "--minutes",
        "N",
        "how long it may take, starts included (2, and 4 with --try); it ends sooner once the "
        "answer is known",
        duration,
        times,
    )
    same = "commands whose times differ by less are equally fast (2%%)"
    options.take("--same", "SHARE", same, share, times)
    add_shared(options)
    step = "the function whose return ends a step, if that is not Optimizer.step"
    options.take("--step", "MODULE:FUNCTION", step, function_name, rule=Rule(modes="turns try"))
    options.flag("--whole", says="time full runs, one after another, in place of steps")
    options.flag(
        "--apart",
        says="start one command when the other has ended: for what fills a GPU, and for steps that "
        "wait for a clock",
        rule=steps,
    )
    options.flag(
        "--try",
        says="try what may make one command faster: loader workers, threads, autocast to bf16, "
        "channels_last, a fused optimizer, torch.compile; and what each part of a step costs",
    )
    options.take(
        "--max-slowdown",
        "SHARE",
        "make it a gate: exit code 0 if B is slower by less than this, such as 3%%, 8 if by more, "
        "9 if that is not decided",
        share,
        runs,
    )
    memory = "a gate on the peak of memory of a process, such as 3%%, by the same exit codes"
    options.take("--max-memory", "SHARE", memory, share, steps)
    options.take(
        "--score",
        "REGEX",
        "compare scores of full runs, with other seeds in each round: the last match in the "
        "output, {out}/FILE.json:KEY, or {out}:TAG of TensorBoard",
        where_score_is,
    )
    better = "which scores are better"
    options.take("--better", None, better, rule=scored, choices=("less", "more"))
    margin = "the least gain in score that is worth keeping; with --as-good the loss that is not"
    options.take("--margin", "N", margin, positive, scored)
    as_good = "keep B also if its score is worse by less than the margin, as what is made for "
    as_good += "speed or memory; always so with --precisions and --strategies"
    options.flag("--as-good", says=as_good, rule=scored)
    series_ = "add the judgement to those of FILE, which have one error rate together"
    options.take("--series", "FILE", series_, output.read_again, scored)
    options.flag("-v", "--verbose", says="print all rows and all notes", rule=times)
    markdown = "write the answer for a pull request into a regular file, or to stdout (-)"
    options.take("--markdown", "FILE", markdown, output.named, runs)
    return options


def main(arguments: Sequence[str]) -> int:
    """Compare what the arguments say; returns the exit code."""
    return exit_code_of(lambda: run(list(arguments)), *STOPPED, failure_of)


def failure_of(error: Exception) -> Failure:
    """The failure for what `run` raises: a disk that cannot be written to is no mistake of ours."""
    if not isinstance(error, OSError):
        return bug(error)
    written = "--keep, --json, --markdown and TMPDIR are written to"
    return resource_failure(error, written, "see that they can be, or name others")


def run(words: Sequence[str]) -> None:
    """Raises Failure: also of a gate that does not pass, and of a change that is not kept."""
    asked = parser().read(words)
    require_files(asked)
    if asked.score and (asked.margin is None or asked.better is None):
        wrong, needed = "what a gain is worth is not said", "--better and --margin are needed"
        raise ConfigError("--score", score_asked(asked), wrong, needed, "add them")
    with prepared(asked) as (keep, commands):
        require_comparable(commands, asked)
        set_up_copies(commands, asked.setup)
        (judged if asked.score else timed)(commands, asked, keep)


def require_files(asked: Namespace) -> None:
    """Raise ConfigError for a file that cannot be written, or that two options name."""
    places = dict[str, str]()
    for option in ("json", "markdown", "series"):
        if file := getattr(asked, option):
            if other := places.get(place := os.path.abspath(file)):
                wrong = f"--{other} is it, too"
                raise ConfigError(f"--{option}", file, wrong, "two are needed", "name two")
            places[place] = option
            output.require_writable(f"--{option}", file)


def require_comparable(commands: Sequence[Command], asked: Namespace) -> None:
    """Raise ConfigError unless the commands are as many, and such, as the options compare."""
    count = len(commands)
    if count < 2 and not getattr(asked, "try"):
        wrong, allowed = "there is nothing to compare it with", "two or more are needed"
        raise ConfigError("arguments", commands[0].text, wrong, allowed, "add one")
    for option in ("score", "max_slowdown", "max_memory"):
        if getattr(asked, option) is not None and count != 2:
            name = f"--{option.replace('_', '-')}"
            raise ConfigError(name, count, "commands were given", "it takes two", "give these")
    for command in commands if isinstance(asked.score, str) else ():
        if OUT not in command.text:
            raise command.failure(f"it has no {OUT}", f"the score is in {asked.score}", "write it")


def score_asked(asked: Namespace) -> str:
    text: str = asked.score if isinstance(asked.score, str) else asked.score.pattern
    return text


def judged(commands: Sequence[Command], asked: Namespace, keep: Path) -> None:
    """Compare scores. Raises the failure of a change that is not kept."""
    from ninefold.bench import score, series  # here, as nothing else needs them

    found = list[score.Judged]()
    with series.opened(asked.series) as judgements:
        level = judgements.level if judgements else score.LEVEL
        as_good = bool(asked.as_good or asked.precisions or asked.strategies)
        rule = score.Rule(asked.score, asked.better, asked.margin, as_good, level)
        stopped = failure_in(lambda: score.judge_runs(commands, rule, keep, found.append))
        failure = stopped or found[-1].failure(score_asked(asked))
        if found:
            more = list[str]()
            if judgements:  # one that was stopped has been seen, too, and has cost its share
                add = partial(judgements.add, found[-1].judgement, commands)
                unwritten = failure_in(lambda: more.append(add()))
                failure = stopped or unwritten or failure
            said = found[-1].text(more)
            data = output.as_json(found[-1].data(failure.code if failure else 0))
            tell(asked, said, {"--json": (asked.json, data)}, stopped)
    if failure:
        raise failure


def failure_in(measure: Callable[[], None]) -> Failure | None:
    """Measure; returns what has stopped that, such as a signal or a full disk."""
    try:
        measure()
    except KeyboardInterrupt as stopped:
        return interrupted(stopped, *STOPPED, "start again")
    except OSError as error:
        return failure_of(error)
    except Failure as failure:
        return failure
    return None


def tell(
    asked: Namespace,
    text: str,
    files: Mapping[str, tuple[Path | None, str]],
    stopped: Failure | None,
) -> None:
    """Write files, and print a text: last, as who reads that may have ended.

    files: by the options that name them. stopped: what has stopped the measurement: that is raised
    then, and not that a file cannot be written. Raises the first of these failures.
    """
    failed: Exception | None = None
    for option, (path, content) in files.items():
        try:
            if path is not None:
                output.write(option, path, content)
        except (ConfigError, OSError) as error:
            failed = failed or error
    where = sys.stderr if output.STDOUT in (asked.json, asked.markdown) else sys.stdout
    with suppress(OutputClosed) if stopped else nullcontext():
        print(text, file=where, flush=True)
    if failed and not stopped:
        raise failed


def timed(commands: Sequence[Command], asked: Namespace, keep: Path) -> None:
    """Compare times, and print the summary. Raises the failure of a gate."""
    tries = getattr(asked, "try")
    options = Options(
        minutes=asked.minutes or (4.0 if tries else Options.minutes),
        same=Options.same if asked.same is None else asked.same,
        apart=asked.apart,
        whole=asked.whole,
        allowed=asked.max_slowdown,
        allowed_memory=asked.max_memory,
    )
    bench: Bench | WholeRuns
    if tries:
        from ninefold.bench.trial import ChangesTrial  # here, as nothing else needs it

        bench = ChangesTrial(commands[0], options, keep)
    else:
        bench = (WholeRuns if options.whole else Bench)(Measurements(commands, options), keep)
    stopped = failure_in(bench.run)
    summary = Summary(bench.measured, stopped=stopped is not None)
    failure = stopped or summary.failure
    if bench.measured.rounds or not stopped:
        data = output.as_json(summary.data(failure.code if failure else 0))
        files = {"--keep": (keep / output.DETAILS, summary.details()), "--json": (asked.json, data)}
        if not stopped:
            files["--markdown"] = asked.markdown, summary.markdown()
        tell(asked, summary.text(keep, asked.verbose), files, stopped)
    if failure:
        raise failure
