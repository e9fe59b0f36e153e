"""Runs the command of a comparison, and resumes it: what it prints, and why it has no answer."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ninefold.api import COMMAND, OPTIONS, capsule, child
from ninefold.api.show import explained
from ninefold.errors import ConfigError, Failure, ResourceError, error_text
from ninefold.files import read_json, read_text
from ninefold.study_record import FILE as STUDY
from ninefold.study_record import StudyRecord
from ninefold.words import as_value

LOG = "output.txt"  # in the folder: what the command prints, where nobody looks at it


def run(command: Sequence[str], place: Path, show: bool) -> child.Ended:
    """Run `train` with these arguments, which write to `place`, to its end.

    Raises KeyboardInterrupt, which says how to resume.
    """
    if show:  # it takes seconds until its processes have something to say
        print(f"ninefold.compare: starting, in {place}", file=sys.stderr, flush=True)
    try:
        arguments = [*child.TRAIN, *command]
        return child.run(arguments, place / LOG, prints=show)
    except KeyboardInterrupt:
        known = "nothing is measured yet"
        if (place / STUDY).exists() and any(place.rglob("config.yaml")):  # of a run
            known = f"ninefold.Answer({str(place)!r}) has what is known, and resume() of it goes on"
        raise KeyboardInterrupt(f"nothing of it runs any more; {known}") from None


def failure(ended: child.Ended, place: Path) -> Failure:
    """Return why a command that ended so has no answer."""
    do = f"see {place / LOG}" if last_line(place / LOG) else "see what it printed"
    return without_answer(ended, place / LOG, "the comparison ended without an answer", do)


def without_answer(ended: child.Ended, log: Path, wrong: str, do: str) -> Failure:
    """Return what a command has told that failed, or else how it ended."""
    if ended.failures:
        return explained(ended.failures[0])
    if ended.code == -signal.SIGKILL:
        found = "something killed it, as the kernel does where memory is short"
        return ResourceError("ninefold", ended.code, wrong, found, "give it more memory")
    said = last_line(log) or "it told no failure"
    return Failure("ninefold", ended.code, wrong, said, do)


def resuming(folder: Path, minutes: float) -> list[str]:
    """Return the arguments that go on with the comparison in `folder` for so many minutes.

    Raises ConfigError if the folder holds none that this user began.
    """
    try:
        command = json.loads(capsule.read(str(folder / COMMAND)))
        spent = StudyRecord.of(read_json(folder / STUDY)).timing_seconds / 60
    except (OSError, ValueError) as error:
        wrong = f"no comparison of yours can be resumed there; {error_text(error)}"
        allowed = "one that ninefold.compare began is needed"
        raise ConfigError("folder", folder, wrong, allowed, "compare again") from error
    budget = "study.time_budget="
    words = [word for word in command if not word.startswith(("hydra.sweep.dir=", budget))]
    # The folder may have another name by now, as from another working directory.
    words[words.index("--config-dir") + 1] = str(folder / OPTIONS)
    return [*words, f"{budget}{spent + minutes:g}", f"study.resume={as_value(str(folder))}"]


def last_line(path: Path) -> str:
    """The last line of what a command has printed; empty if nothing is kept of it."""
    with suppress(OSError, ValueError, IndexError):
        return read_text(path).strip().splitlines()[-1]
    return ""
