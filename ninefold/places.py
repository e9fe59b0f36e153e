"""Where ninefold's own files are, how its commands are typed, and where Python finds modules."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent
# A wheel has the packages ninefold.conf and ninefold.experiments (package-dir in pyproject.toml), a
# clone has their folders beside ninefold/, installed or not. A package with neither is installed
# too, and damaged: errors.require_configuration says so.
INSTALLED = (PACKAGE / "conf").is_dir() or not (PACKAGE.parent / "evaluate.py").is_file()
ROOT = PACKAGE if INSTALLED else PACKAGE.parent
CONF, EXPERIMENTS = ROOT / "conf", ROOT / "experiments"
EXTENSIONS = PACKAGE / "extensions"  # each folder NAME in it is a package, found by being there
OPTIONS = (CONF, *sorted(EXTENSIONS.glob("*/conf")))  # the folders with files of options

TYPED = "NINEFOLD_TYPED"  # the program that was typed, one of PROGRAMS; unset: python train.py
PROGRAMS = ("ninefold", "python -m ninefold")
IN_A_CLONE = "python train.py"
PATH = "NINEFOLD_PATH"  # JSON: sys.path of the process that starts another one


def typed_with(program: str | None) -> None:
    """Note what was typed, for commands that this process and its children print.

    program: one of PROGRAMS; None: python train.py.
    """
    os.environ.pop(TYPED, None)
    if program is not None:
        os.environ[TYPED] = program


def typed_as(command: str) -> str:
    """What this user types for a command: `python train.py`, `ninefold train` and the like."""
    if (program := os.environ.get(TYPED)) in PROGRAMS:
        return f"{program} {command}"
    if INSTALLED:
        return f"ninefold {command}"
    if command in ("train", "evaluate"):
        return f"python {command}.py"
    return f"python -m ninefold{'.' if command == 'report' else ' '}{command}"


def trained_with(command: str | None) -> str:
    """What was typed for `train` in a recorded command, which may come from anybody."""
    known = (f"{program} train" for program in PROGRAMS)
    return next((typed for typed in known if f"{command} ".startswith(f"{typed} ")), IN_A_CLONE)


def see(group: str = "") -> str:
    """Where an error sends its reader: to conf/ in a clone, else to the command that prints it."""
    if INSTALLED:
        return f"see {typed_as('conf')} {group}".rstrip()
    return f"see conf/{group}/" if group else "see conf/"


def option_files(group: str = "*", option: str = "*") -> list[Path]:
    """The files conf/GROUP/OPTION.yaml, those of the extensions included, by their names."""
    found = [path for folder in OPTIONS for path in folder.glob(f"{group}/{option}.yaml")]
    return sorted(found, key=lambda path: (path.parent.name, path.stem))


def file_of(module: str) -> Path | None:
    """The file of a module or a package, which is not imported; None if it is not found."""
    first, *rest = module.split(".")
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    spec = next((found for find in finders if find and (found := find(first, None))), None)
    if spec and spec.origin and not rest:
        file = Path(spec.origin)
        return file if file.is_file() else None  # there is none in an archive
    for root in (spec.submodule_search_locations if spec else None) or []:
        for file in (Path(root, *rest).with_suffix(".py"), Path(root, *rest, "__init__.py")):
            if file.is_file():
                return file
    return None


def path_text() -> str:
    """sys.path as NINEFOLD_PATH hands it to another process."""
    return json.dumps([os.path.abspath(name) for name in sys.path if isinstance(name, str)])


def take_path() -> None:
    """Set sys.path to that of the process that started this one, from NINEFOLD_PATH.

    PYTHONPATH cannot say so: its folders come before the standard library, which a back-port in
    site-packages (typing, enum34) would then replace.
    """
    if told := json.loads(os.environ.pop(PATH, "[]")):
        sys.path[:] = [*told, *(name for name in sys.path if name and name not in told)]
