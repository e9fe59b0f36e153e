"""What a caller of `ninefold.compare` sees while it runs, and of an error: its own line of code."""

from __future__ import annotations

import linecache
import re
import sys
from html import escape
from typing import Any

from ninefold.api.child import Event
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


class Notebook:
    """One output of a cell, which is replaced as the study goes on."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html = HTML
        self._what, self._note = "starting", ""
        self._shown = display(self._picture(), display_id=True)

    def hear(self, event: Event) -> None:
        """Show an event that the command tells."""
        if event["event"] == "running":
            self._what = event["text"]
        elif event["event"] == "note":
            self._note = event["text"]
        self._shown.update(self._picture())

    def close(self) -> None:
        """The answer comes instead."""
        self._shown.update(self._html(""))

    def _picture(self) -> Any:
        said = "<br>".join(escape(text) for text in (self._what, self._note) if text)
        return self._html(f"<p>ninefold.compare: {said}</p>")


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None) is not None


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
