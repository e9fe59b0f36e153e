"""A hash of the code that a run executes, to compare runs and hosts by."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from ninefold.errors import is_users
from ninefold.places import CONF, EXTENSIONS, PACKAGE

# Packages of which every module may take part in a run; the others are found by their imports.
NAMED_IN_CONF = ("dataset", "logger", "model", "parallel", "task")
# `import ninefold.x`, and `from ninefold.x import a, b` with or without parentheses.
IMPORT = re.compile(
    r"^ *(?:from|import) +(ninefold[\w.]*)(?: +import +(\([^)]*\)|.*))?", re.MULTILINE
)


def code(targets: Iterable[str] = (), package: Path = PACKAGE, conf: Path = CONF) -> str:
    """sha256 of all code that a run executes, so that figures of two hashes are not compared.

    That is conf/, what a worker imports of ninefold, the extensions that `targets` are of, and the
    user's own modules among them.
    The report and the study's own modules are not: they change no run. A clone and an installed
    package of the same code have the same hash.
    """
    files = {f"conf/{path.relative_to(conf).as_posix()}": path for path in conf.rglob("*.yaml")}
    for module in _worker_modules(package):
        files[f"ninefold/{module.relative_to(package).as_posix()}"] = module
    for target in targets:
        files |= {f"extensions/{file.relative_to(EXTENSIONS)}": file for file in _extension(target)}
        if (path := users_module(target)) is not None:
            files[target] = path
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _worker_modules(package: Path) -> set[Path]:
    """Files of ninefold that a launcher's processes import, late imports included."""
    found: set[Path] = set()
    queue = [package / "launch" / "worker.py", package / "launch" / "elastic.py"]
    queue += [path for name in NAMED_IN_CONF for path in (package / name).glob("*.py")]
    while queue:
        path = queue.pop()
        if path in found or not path.is_file():
            continue
        found.add(path)
        queue.append(path.parent / "__init__.py")
        for name in _imported(path):
            module = package.joinpath(*name.split(".")[1:])
            queue += [module.with_suffix(".py"), module / "__init__.py"]
    return found


def _imported(path: Path) -> Iterator[str]:
    """Names that a file imports from ninefold: of modules, and of what it takes from them."""
    for module, names in IMPORT.findall(path.read_text(encoding="utf-8")):
        yield module
        yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))


def _extension(target: str) -> Iterator[Path]:
    """The files of the extension that a _target_ is of, without its tests; none for another."""
    first, _, rest = target.partition(".")
    if first == "ninefold" and (name := rest.partition(".")[0]):
        yield from (EXTENSIONS / name).glob("*.py")
        yield from (EXTENSIONS / name).glob("conf/*/*.yaml")


def users_module(target: str) -> Path | None:
    """The file of a _target_; None if ninefold or an installed package has it."""
    first, *rest = target.split(".")
    spec = None if first == "ninefold" else PathFinder.find_spec(first)
    found = [*(spec.submodule_search_locations or []), spec.origin] if spec else []
    if not found or found[0] is None:
        return None
    place = Path(found[0])
    if not is_users(str(place)):
        return None
    if place.is_file():
        return place
    for name in rest:
        if (file := place / f"{name}.py").is_file():
            return file
        if not (place / name).is_dir():
            break  # the package itself has it
        place /= name
    return file if (file := place / "__init__.py").is_file() else None
