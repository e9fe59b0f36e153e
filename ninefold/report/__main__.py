"""The command `python -m ninefold.report FOLDER`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ninefold.answer.screen import NOTES
from ninefold.exits import exit_code_of, exit_with
from ninefold.parser import Parser
from ninefold.places import typed_as
from ninefold.report import write


def _folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("a folder needs a name")
    return Path(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write and print the report; return the exit code."""
    parser = Parser(
        "one folder is allowed",
        f"type {typed_as('report')} FOLDER",
        prog=typed_as("report"),
        description="Write report.html and the files it rests on, print the answer.",
    )
    parser.add_argument("folder", type=_folder, help="the folder of a study or a recording")
    parser.add_argument("-v", "--verbose", action="store_true", help="print all notes")
    stopped = "the report was stopped"
    return exit_code_of(lambda: _reported(parser, arguments), stopped, "no run is lost")


def _reported(parser: Parser, arguments: Sequence[str] | None) -> None:
    """Carry out the command. Raises Failure."""
    given = parser.parse_args(arguments)
    print(write(given.folder, most=None if given.verbose else NOTES).text)


if __name__ == "__main__":
    exit_with(main)
