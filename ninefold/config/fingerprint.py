"""A hash of the code that a run executes, to compare runs and hosts by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from ninefold.errors import is_users
from ninefold.places import CONF, EXTENSIONS, PACKAGE, file_of

# What changes no run: no process of a run imports it (MAY_IMPORT in tests/test_structure.py).
NOT_OF_A_RUN = (
    *("answer", "bench", "diff", "report", "stats", "study"),
    *("__main__.py", "main.py", "plugins.py", "sweeps.py"),
)


def code(targets: Iterable[str] = (), package: Path = PACKAGE, conf: Path = CONF) -> str:
    """sha256 of all code that a run executes, so that figures of two hashes are not compared.

    That is conf/, ninefold but for NOT_OF_A_RUN, the extensions that `targets` are of, and the
    user's own modules among them. A clone and an installed package of the same code have the same
    hash.
    """
    files = {f"conf/{path.relative_to(conf).as_posix()}": path for path in conf.rglob("*.yaml")}
    for file in package.rglob("*.py"):
        part = file.relative_to(package)
        if part.parts[0] not in (*NOT_OF_A_RUN, EXTENSIONS.name):
            files[f"ninefold/{part.as_posix()}"] = file
    for target in targets:
        for file in _extension(target):
            files[f"ninefold/extensions/{file.relative_to(EXTENSIONS)}"] = file
        if (path := users_module(target)) is not None:
            files[target] = path
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _extension(target: str) -> Iterator[Path]:
    """The files of the extension that a _target_ is of; none for another."""
    *place, name = target.split(".")[:3]
    if place == ["ninefold", "extensions"]:
        yield from (EXTENSIONS / name).glob("*.py")
        yield from (EXTENSIONS / name).glob("conf/*/*.yaml")


def users_module(target: str) -> Path | None:
    """The file of a _target_; None if ninefold or an installed package has it."""
    module, file = target, None
    while file is None and (module := module.rpartition(".")[0]):
        file = file_of(module)
    ours = target.partition(".")[0] == "ninefold"
    return file if file is not None and not ours and is_users(str(file)) else None
