"""Derives the command that trains a cell: like its study, with the words of the cell.

A report may come from anybody: only the command that made a study repeats words that call something
or name a folder, and says that it is trusted.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ninefold.answer.cell import Cell
from ninefold.answer.grouping import groups, largest_first
from ninefold.answer.runs import Run, name_of
from ninefold.config.rules import CALLED
from ninefold.places import ROOT, trained_with
from ninefold.report.data.recording import Recording
from ninefold.result import cell_name
from ninefold.study_record import StudyRecord
from ninefold.words import as_value, key_and_value


def train_command(recording: Recording, cell: Cell, typed: str | None = None) -> str | None:
    """Return the command that trains a cell like its study; of one that is not there the words.

    None where these may not be repeated. typed: for `train`, quoted; None: as of the study.
    """
    own, sweep = recording.own, recording.sweep
    if (words := words_of(recording.runs, cell, sweep, own, recording.as_typed)) is None:
        return None
    if recording.folder is None:
        return shlex.join(words)
    trust = own and sweep.trust  # then the study names what only trust=true uses
    alike = [f"like={as_value(str(recording.folder))}", *words, *["trust=true"] * trust]
    program = typed or trained_with(sweep.command)
    return f"{_path() if trust else ''}{program} {shlex.join(alike)}"


def words_of(
    runs: Sequence[Run],
    cell: Cell,
    sweep: StudyRecord,
    own: bool,
    as_typed: StudyRecord | None = None,
) -> list[str] | None:
    """Return the words that choose a cell of a study; None where they may not be repeated, or are
    not known, as those of a search.

    own: whether this command made the study. as_typed: see `Recording`.
    """
    found = largest_first(groups(runs))
    first = [run for group in found[:1] for run in group.completed(cell)]
    typed = (as_typed or sweep).planned_cells
    planned = dict(zip(map(cell_name, sweep.planned_cells), typed, strict=True))
    names = (name_of(run, sweep) or "" for run in first)
    keys = next((planned[name] for name in names if name in planned), None)
    if keys is None and len(found) > 1:
        return None
    chosen = {"parallel": cell.parallel, "amp": cell.amp} if keys is None else dict(keys)
    if sweep.scaling == "weak" and first:
        chosen["batch_size"] = str(first[0].batch_size)
    words = [f"{key}={value}" for key, value in chosen.items()]
    return words if own or all(map(_is_harmless, words)) else None


def _path() -> str:
    """PYTHONPATH with folders that hold in any other, as this user has it; empty without one."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    names = [os.path.abspath(name) for name in given if name and Path(name).absolute() != ROOT]
    return f"PYTHONPATH={shlex.quote(os.pathsep.join(names))} " if names else ""


def _is_harmless(word: str) -> bool:
    """Return whether a word, which anybody may have written, chooses an option or a plain value."""
    key, value = key_and_value(word)
    plain = re.fullmatch(r"[\w.+-]*|\[[\w., +-]*\]", value) and re.fullmatch(r"[\w.]+", key)
    return bool(plain) and not set(key.split(".")) & {*CALLED, "hydra"}
