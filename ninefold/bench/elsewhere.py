"""Whether a command took code from the original checkout, though it ran in a copy of a revision."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ninefold.bench.revisions import Copy
from ninefold.errors import ConfigError

_HOOK = Path(__file__).resolve().parent / "inject"  # of bench: where ninefold compares its own


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


def _installed(file: Path, original: Path) -> bool:
    """Whether a file below the original is in an environment there, such as .venv."""
    inner = [folder for folder in file.parents if original in folder.parents]
    return any(
        folder.name in ("site-packages", "dist-packages")
        or any((folder / mark).exists() for mark in ("pyvenv.cfg", "conda-meta"))
        for folder in inner
    )
