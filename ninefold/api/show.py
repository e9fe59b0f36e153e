"""What a caller of `ninefold.compare` sees of an error: its arguments and its own line of code."""

from __future__ import annotations

import linecache
import re
import sys

from ninefold.errors import Failure

LINE = re.compile(r"(?P<file>/[^\s;,]+\.py|<ipython-input-[^>]*>):(?P<line>\d+)")
# The argument of `ninefold.compare` that gives a key; the others are given in `overrides`.
ARGUMENTS = {
    "amp.dtype": "amp",
    "dataset.test": "test",
    "dataset.train": "dataset",
    "launch.cpu_processes": "processes",
    "loader.workers": "num_workers of the DataLoader",
    "parallel.processes": "processes",
    "study.ask": "ask",
    "study.time_budget": "minutes",
    "task": "loss",
    "task.loss": "loss",
}
KEY = r"\b(?:task(?==)|[a-z_]+(?:\.[a-z_]+)+)\b"
OWN_NAME = r"\b(\w+)-[0-9a-f]{12}\b"  # of a task, with the hash at its end


def explained(failure: Failure) -> Failure:
    """Say `failure` in the words of the caller's arguments, with the line of code as a note."""
    *about, do = failure.parts
    do = do.replace("set it to ", f"set {failure.field}=")
    field, *said = map(in_arguments, (*about, do))
    told = type(failure)(ARGUMENTS.get(field, field), *said)
    if line := source_line(str(told)):
        told.add_note(line)
    return told


def in_arguments(text: str) -> str:
    """`text` of the command: its keys as the arguments that give them, `set KEY=WORD` as overrides.

    So `set optimizer.fused=false` becomes `pass overrides=['optimizer.fused=false']`.
    """
    text = re.sub(OWN_NAME, r"\1", text)
    text = re.sub(KEY, lambda found: ARGUMENTS.get(found[0], found[0]), text)
    own = rf"on_nonfinite|(?!launch\.){KEY}"  # not of a key that compare cannot be given
    return re.sub(rf"\bset ((?:{own})=\w+)", r"pass overrides=['\1']", text)


def source_line(text: str) -> str | None:
    """The line of code at the file and line that an error names; None where it is not known.

    The code of a notebook's cells is known in the process of its kernel alone.
    """
    if (found := LINE.search(text)) is None:
        return None
    source = linecache.getline(found["file"], int(found["line"])).strip()
    return f"{_place(found['file'])}, line {found['line']}: {source}" if source else None


def _place(file: str) -> str:
    """What a person calls a file: `Cell In[3]` of a notebook's."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    names = getattr(getattr(shell, "compile", None), "format_code_name", None)
    found = names(file) if names is not None else None
    return " ".join(found) if found else file
