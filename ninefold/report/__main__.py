"""The command `python -m ninefold.report FOLDER [--against OLD --fail-if-slower 3%]`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ninefold.errors import ConfigError, Failure
from ninefold.report import place, write
from ninefold.report.answer.gate import hold_against, share_of

ALLOWED = 0.03  # what is marked as slower where nothing is to fail


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line as the rest of the program does: in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(
            "arguments", " ".join(sys.argv[1:]), message, "one folder, or two to compare",
            "type python -m ninefold.report FOLDER [--against OLD --fail-if-slower 3%]",
        )  # fmt: skip


def _named(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty name is no folder")
    return Path(text)


def _share(text: str) -> float:
    try:
        return share_of(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no share: 3% or 0.03 is allowed") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Write and print the report; return the exit code."""
    parser = _Parser(
        prog="python -m ninefold.report",
        description="Write report.html and what it rests on, print the answer.",
    )
    parser.add_argument("folder", type=_named, help="the folder of a sweep or a recorded sitting")
    parser.add_argument(
        "--against", type=_named, metavar="OLD",
        help="only compare with this sitting, and write nothing",
    )  # fmt: skip
    parser.add_argument(
        "--fail-if-slower", type=_share, metavar="SHARE",
        help="exit with 8 if a cell is shown to be slower than before by more than this, as 3%%, "
        "with 2 if none can be judged",
    )  # fmt: skip
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without "±" still gets its table
    try:
        asked = parser.parse_args(arguments)
        if asked.against is None:
            if asked.fail_if_slower is not None:
                parser.error("--fail-if-slower needs --against")
            print(write(asked.folder))
            print(f"report {place(asked.folder)}")
            return 0
        allowed = ALLOWED if asked.fail_if_slower is None else asked.fail_if_slower
        text, warnings, failure = hold_against(asked.folder, asked.against, allowed)
        print(text)
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
        if failure and asked.fail_if_slower is not None:
            raise failure
    except Failure as failure:
        print(failure, file=sys.stderr)
        return failure.code
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:  # a folder from anybody; one line is what there is to say of it
        what = f"{type(error).__name__}: {error}"
        print(Failure("ninefold", "bug", what, "in a report", "please report it"), file=sys.stderr)
        return Failure.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
