"""Derives the command that trains the recommended cell from the study's command line.

A study's command may name folders and things to call, and a report may come from anybody: such
words are repeated only by the command itself.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ninefold.config.overlay import can_be_repeated
from ninefold.config.own_keys import fits
from ninefold.places import PROGRAMS
from ninefold.report.data.cells import groups, largest_first
from ninefold.report.data.overlay import overlay_words
from ninefold.report.data.privacy import Scrubber
from ninefold.report.data.rounds import name_of
from ninefold.report.data.runs import Run
from ninefold.result import cell_name
from ninefold.study_record import StudyRecord

DEFAULT = "python train.py"
HOME = "$HOME"  # in a word: the shell puts the folder there, and no report does

Words = dict[str, list[str]]  # by the names of cells


def of_cells(runs: Sequence[Run], sweep: StudyRecord, own: bool) -> Words:
    """The words that train each cell of the largest group, if they may be repeated.

    own: whether they are this command's own, and not a folder's.
    """
    words = sweep.words or []
    if not words or not (own or _all_harmless(words)):
        return {}
    planned = {cell_name(cell): cell for cell in sweep.planned_cells}
    found = {}
    for run in [run for group in largest_first(groups(runs))[:1] for run in group.runs if run.ok]:
        name = name_of(run, sweep) or ""
        if (keys := planned.get(name)) is None:
            continue
        chosen = {} if of_ours(words, sweep) else dict(keys)
        batch = sweep.overlays.get(name, {}).get("values", {}).get("batch_size")
        if chosen and sweep.scaling == "weak" and batch is not None:
            chosen["batch_size"] = str(batch)
        kept = [
            word
            for word in words
            if _key(word) not in keys and fits(word, keys.get(_key(word).partition(".")[0]))
        ]
        found[str(run.cell)] = [*kept, *(f"{key}={value}" for key, value in chosen.items())]
    return found


def published(words: Words, scrubber: Scrubber) -> dict[str, Any]:
    """The words as environment.json holds them: without folders, but for those that need no name.

    Those are inside of the working folder, and of the user's home.
    """
    cells = {cell: [_portable(word, scrubber) for word in found] for cell, found in words.items()}
    return {"cells": cells} if cells else {}


def recorded(environment: Mapping[str, Any], cell: str, own: bool) -> list[str]:
    """The words of a cell in an environment.json, empty if there are none to be repeated."""
    found = environment.get("words")
    cells = found.get("cells") if isinstance(found, dict) else None
    words = cells.get(cell) if isinstance(cells, dict) else None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return []
    return words if own or _all_harmless(words) else []


def trained_with(command: str | None) -> str:
    """Return what was typed for `train` in a recorded command, which may come from anybody."""
    known = (f"{program} train" for program in PROGRAMS)
    return next((typed for typed in known if f"{command} ".startswith(f"{typed} ")), DEFAULT)


def of_ours(words: Sequence[str], sweep: StudyRecord) -> bool:
    """Whether a study's command named an experiment of ours, which is none of these words."""
    return sweep.study is not None and "experiments" not in map(_key, words)


def command(words: Sequence[str], overlay: Mapping[str, Any] | None, typed: str) -> str:
    """The command with these words, for a shell.

    overlay: what they do not set of it is set, too. typed: for `train`, quoted.
    """
    words, before = list(words), ""
    if words and words[0].startswith("PYTHONPATH="):
        before = f"PYTHONPATH={_quoted(words.pop(0).partition('=')[2])} "
    given = {_key(word) for word in words}
    own = [word for word in overlay_words(overlay or {}) if _key(word) not in given]
    return " ".join([f"{before}{typed}", *map(_quoted, [*own, *words])])


def has_gaps(words: Sequence[str]) -> bool:
    """Return whether folders are left out of them."""
    return any(re.search(r"\.\.\.(/|$|[^\w.])", word) for word in words)


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def _all_harmless(words: Sequence[str]) -> bool:
    return all(map(_is_harmless, words))


def _is_harmless(word: str) -> bool:
    """Whether an override chooses an option or sets a plain value: anybody may have written it."""
    key, _, value = word.lstrip("+~").partition("=")
    plain = re.fullmatch(r"[\w./-]*|\[[\w., -]*\]", value) is not None
    called = not can_be_repeated(key.replace("/", "."), value) and value != ""
    return plain and not called and re.fullmatch(r"\w[\w./]*", key) is not None


def _portable(word: str, scrubber: Scrubber) -> str:
    home = os.path.expanduser("~")
    for folder, name in ((str(Path.cwd()), ""), (home, f"{HOME}/")):
        if len(folder) > 1:
            word = re.sub(rf"(?<![\w/.-]){re.escape(folder)}/+(?=[^/])", name, word)
            word = re.sub(rf"(?<![\w/.-]){re.escape(folder)}(?![\w/.-])", name[:-1] or ".", word)
    return scrubber.text(word)


def _quoted(word: str) -> str:
    """A word for a shell, in which HOME stays what it is."""
    return f'"{HOME}"'.join(shlex.quote(part) if part else "" for part in word.split(HOME)) or "''"
