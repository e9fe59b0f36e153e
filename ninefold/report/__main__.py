"""The command `python -m ninefold.report FOLDER [--against OLD --fail-if-slower 3%]`."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ninefold.errors import ConfigError
from ninefold.places import typed_as
from ninefold.process import exit_code_of, exit_with
from ninefold.report import compare, place, write
from ninefold.report.answer.gate import share_of

ALLOWED = 0.03  # share from which on a cell is marked as slower without --fail-if-slower


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one line, as the rest of the program does."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(
            "arguments",
            " ".join(sys.argv[1:]),
            f"{message}; one folder, or two to compare; type {typed_as('report')} FOLDER "
            "[--against OLD --fail-if-slower 3%]",
        )


def _folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("a folder needs a name")
    return Path(text)


def _share(text: str) -> float:
    try:
        return share_of(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no share: 3% or 0.03 is allowed") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Write and print the report; return the exit code."""
    parser = _Parser(
        prog=typed_as("report"),
        description="Write report.html and the files it rests on, print the answer.",
    )
    parser.add_argument("folder", type=_folder, help="the folder of a study or of a recording")
    parser.add_argument(
        "--against",
        type=_folder,
        metavar="OLD",
        help="only compare the times with those of this folder, and write nothing",
    )
    parser.add_argument(
        "--fail-if-slower",
        type=_share,
        metavar="SHARE",
        help="exit with 8 if a cell is shown to be slower than before by more than this, as 3%%, "
        "with 2 if none can be judged",
    )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for terminals without "±"
    stopped = "the report was stopped"
    return exit_code_of(lambda: _reported(parser, arguments), stopped, "no run is lost")


def _reported(parser: _Parser, arguments: Sequence[str] | None) -> None:
    """Carry out the command. Raises Failure."""
    asked = parser.parse_args(arguments)
    if asked.against is None:
        if asked.fail_if_slower is not None:
            parser.error("--fail-if-slower needs --against")
        print(write(asked.folder))
        print(f"report {place(asked.folder)}")
        return
    allowed = ALLOWED if asked.fail_if_slower is None else asked.fail_if_slower
    text, warnings, failure = compare(asked.folder, asked.against, allowed)
    print(text)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if failure and asked.fail_if_slower is not None:
        raise failure


if __name__ == "__main__":
    exit_with(main)
