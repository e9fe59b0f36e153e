"""The command `python -m ninefold.report SWEEP_FOLDER`."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ninefold.errors import ConfigError, Failure
from ninefold.report import place, write


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line as the rest of the program does: in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(
            "arguments", " ".join(sys.argv[1:]), message, "one folder",
            "type python -m ninefold.report SWEEP_FOLDER",
        )  # fmt: skip


def _named(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty name is no folder")
    return Path(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write and print the report; return the exit code."""
    parser = _Parser(
        prog="python -m ninefold.report",
        description="Write report.html and what it rests on, print the answer.",
    )
    parser.add_argument("folder", type=_named, help="the folder of a sweep or a recorded sitting")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without "±" still gets its table
    try:
        folder = parser.parse_args(arguments).folder
        print(write(folder))
        print(f"report {place(folder)}")
    except Failure as failure:
        print(failure, file=sys.stderr)
        return failure.code
    except Exception as error:  # a folder from anybody; one line is what there is to say of it
        what = f"{type(error).__name__}: {error}"
        print(Failure("ninefold", "bug", what, "in a report", "please report it"), file=sys.stderr)
        return Failure.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
