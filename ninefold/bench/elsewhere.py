"""What a command took from the original checkout, though it ran in a copy of a revision."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ninefold.bench.git import git
from ninefold.bench.revisions import Copy
from ninefold.errors import ConfigError

_HOOK = Path(__file__).resolve().parent / "inject"  # of bench: where ninefold compares its own
_QUOTED_OR_PATH = re.compile(r"""['"]([^'"\n]+)['"]|([^\s'",:;()\[\]]+/[^\s'",:;()\[\]]+)""")


def foreign_code(copy: Copy, files: Sequence[str]) -> ConfigError | None:
    """The failure of a command that has loaded the original's code. files: of its modules.

    An editable installation names the original, whichever copy the command runs in. Packages in an
    environment that is below the original are not its code.
    """
    for file in files:
        path = Path(os.path.normpath(copy.folder / file))
        real = path.resolve()
        theirs = real.is_relative_to(copy.original) and not real.is_relative_to(_HOOK)
        own = any(each.is_relative_to(copy.root) for each in (path, real))  # path: if by --link
        if theirs and not own and not _installed(real, copy.original):
            parts = real.relative_to(copy.original).parts
            package = Path(parts[parts.index("src") + 1 if "src" in parts else 0]).stem
            return ConfigError(
                "revisions",
                copy.name,
                f"{package} was imported from the checkout, not from the revision's copy",
                "both sides would run the same code",
                "--env with an installation of each",
            )
    return None


def missing_data(copy: Copy, output: str) -> ConfigError | None:
    """The failure of a command whose last output names a file that the original has, not git."""
    for quoted, path in reversed(_QUOTED_OR_PATH.findall(output)):
        named = Path(os.path.normpath(copy.folder / (quoted or path)))
        if not named.is_relative_to(copy.root) or os.path.lexists(named):
            continue
        below = named.relative_to(copy.root)
        there = os.path.exists(copy.original / below)
        if there and not git(copy.original, "ls-files", f":(literal){below}"):
            lacking = [at for at in (below, *below.parents) if not (copy.root / at).exists()]
            link = os.path.relpath(copy.root / lacking[-1], copy.folder)
            return ConfigError(
                "revisions",
                copy.name,
                f"{below} is not in git and the command looks for it",
                "a revision's copy has what git has",
                f"--link {link}, or an absolute path",
            )
    return None


def _installed(file: Path, original: Path) -> bool:
    """Whether a file below the original is in an environment there, such as .venv."""
    inner = [folder for folder in file.parents if original in folder.parents]
    return any(
        folder.name in ("site-packages", "dist-packages")
        or any((folder / mark).exists() for mark in ("pyvenv.cfg", "conda-meta"))
        for folder in inner
    )
