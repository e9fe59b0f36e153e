"""Find out on a GPU what a CPU cannot tell: eight parts of ten minutes or less on one H200.

    python -m benchmarks.gpu [PART[/CHECK] ...] [--output FOLDER] [--again] [--dry] [--table]
    python -m benchmarks.gpu --pack FOLDER
    python -m benchmarks.gpu --unpack FOUND.tgz ... [--output FOLDER]

Each part keeps log.txt and figures.json in FOLDER/PART. Checks that are done are not repeated when
the command is given again, unless --again says so. Nothing is installed and no network is used but
by --pack, which makes what travels to a machine without a network, see sitting.sh.
The exit code is 0 if every check is done and all is as expected, else 1.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu import beside, doubts, pack, published, rest, several, smoke, steps, study
from benchmarks.gpu.check import NEEDS, NO_BOUND, Check, needed
from benchmarks.gpu.record import LOG, NOT_DONE, Record, table
from benchmarks.gpu.session import Session
from ninefold.errors import ConfigError, Failure
from ninefold.files import write_durably

PARTS = {
    module.__name__.rpartition(".")[2]: module.CHECKS
    for module in (smoke, doubts, beside, published, steps, study, rest, several)
}
TABLE = "table.md"
NEEDED = ("torch", "torchvision", "hydra", "omegaconf", "msgspec", "sklearn", "matplotlib")
END = 10.0  # seconds of --minutes that are kept for the end

Chosen = dict[str, list[Check]]


def main() -> int:
    began = time.monotonic()
    arguments = parse()
    arguments.until = began + 60 * arguments.minutes - END
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends what runs
    try:
        if arguments.pack is not None:
            pack.pack(arguments.pack)
            print(f"on the machine with the GPU: bash {arguments.pack.name}/{pack.SCRIPT} first")
            return 0
        if arguments.unpack:
            print("\n".join(pack.unpack(arguments.unpack, arguments.output)))
            arguments.output, arguments.table = arguments.output / pack.FOUND, True
        require_packages()
        chosen = selected(arguments.names)
        if arguments.list:
            for part, checks in chosen.items():
                print("\n".join(f"{part}/{check.name}: {check.asks}" for check in checks))
            return 0
        left = [] if arguments.table else run(chosen, arguments, machine(arguments.dry))
        text, unexpected = tabled(arguments.output, left)
    except Failure as failure:
        print(failure, file=sys.stderr)
        return failure.code
    print(f"\n{text}")
    return 1 if left or unexpected else 0


def tabled(folder: Path, left: Sequence[str]) -> tuple[str, int]:
    """The table of what is recorded in `folder` and what is `left`; how much is not as expected."""
    text, unexpected = table(folder, PARTS)
    if left:
        text += "\n\nNot done:\n\n" + "\n".join(f"- {line}" for line in left)
    return text, unexpected


def parse() -> argparse.Namespace:
    description, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=description)
    parser.add_argument("names", nargs="*", metavar="PART[/CHECK]", help="all if none is named")
    parser.add_argument("--output", type=Path, default=Path("outputs", "gpu"), metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=math.inf, help="that the command has")
    parser.add_argument("--again", action="store_true", help="repeat checks that are done")
    parser.add_argument("--dry", action="store_true", help="on the CPU at tiny size")
    parser.add_argument("--table", action="store_true", help="print what is recorded, run nothing")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="make what travels")
    parser.add_argument(
        "--unpack", type=Path, nargs="+", default=(), metavar="FILE", help="read what came back"
    )
    parser.add_argument("--list", action="store_true", help="list the checks, and end")
    return parser.parse_args()


def require_packages() -> None:
    """Raise ConfigError if a package is missing that the checks need."""
    for name in NEEDED:
        if find_spec(name) is None:
            raise ConfigError(
                "package",
                name,
                "it cannot be imported; the checks install nothing; unpack its wheel with pip "
                "install --target FOLDER, and put FOLDER on PYTHONPATH",
            )


def selected(names: Sequence[str]) -> Chosen:
    """The checks that `names` name, by part; all without names. Raises ConfigError."""
    if not names:
        return PARTS
    chosen: Chosen = {}
    for name in names:
        part, _, wanted = name.partition("/")
        found = [check for check in PARTS.get(part, ()) if wanted in ("", check.name)]
        if not found:
            known = [check.name for check in PARTS.get(part, ())] or list(PARTS)
            raise ConfigError(
                "check",
                name,
                f"there is no such check; there are {', '.join(known)}; see python -m "
                "benchmarks.gpu --list",
            )
        chosen.setdefault(part, []).extend(found)
    return chosen


def machine(dry: bool) -> dict[str, Any]:
    """What is known of this machine, from a process of its own: CUDA starts in none of ours.

    Raises ConfigError if it has no GPU and this is no dry run.
    """
    with tempfile.TemporaryDirectory() as folder, Path(folder, LOG).open("w") as log:
        session = Session(log, Path(folder), 0, dry, time.monotonic() + 300)
        found: dict[str, Any] = session.call("machine")
    if not found["gpus"] and not dry:
        raise ConfigError(
            "device",
            "cuda",
            "there is no GPU; the checks need one; with --dry all of it runs on the CPU, at tiny "
            "size",
        )
    return found


def run(chosen: Chosen, arguments: argparse.Namespace, machine: dict[str, Any]) -> list[str]:
    """Run the checks; returns a line for each that is not done. Raises ConfigError."""
    left = []
    for part, checks in chosen.items():
        record = Record.resumed(arguments.output, part, machine, arguments.dry)
        record.folder.mkdir(parents=True, exist_ok=True)
        with (
            (record.folder / LOG).open("a") as log,
            tempfile.TemporaryDirectory(prefix="gpu-checks-") as scratch,
        ):
            session = Session(log, Path(scratch), machine["gpus"], arguments.dry, arguments.until)
            for check in checks:
                if why := result(check, session, record, arguments.again):
                    left.append(f"{part}/{check.name}: {why}")
        text, _ = tabled(arguments.output, left)  # the command may be ended in the next part
        write_durably(arguments.output / TABLE, f"{text}\n".encode())
    return left


def result(check: Check, session: Session, record: Record, again: bool) -> str | None:
    """Run a check and record what it finds; returns why it is not done, if it should be."""
    name = f"{record.part}/{check.name}"
    if record.done(check) and not again:
        print(f"{name}: done before", flush=True)
        return None
    if session.gpus < check.gpus:
        record.leave_out(check, needed(check.gpus))
        print(f"{name}: {needed(check.gpus)}", flush=True)
        return None
    if session.left < session.size(check.seconds, 0):
        print(f"{name}: no time left", flush=True)
        return "the command had no time left; given again, it goes on with it"
    print(f"{name}: {check.asks}", flush=True)
    session.begin(check.name, f"{name}: {check.asks}")
    began = time.monotonic()
    try:
        figures = check.find(session)
    except Exception as error:
        session.say(traceback.format_exc())
        why = f"{type(error).__name__}: {error}"
        record.leave_out(check, f"{NOT_DONE}: {why}")
        print(f"  {NOT_DONE}: {why}", flush=True)
        return why
    record.add(check, figures, time.monotonic() - began)
    for row in record.checks[check.name]["rows"]:
        if row["verdict"] != NO_BOUND and not row["verdict"].startswith(NEEDS):
            print(f"  {row['what']}: {row['verdict']}", flush=True)
    return None
