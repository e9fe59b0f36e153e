"""What runs of a study must have in common to be compared: code, machine and launcher."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ninefold.config.job import ROOT
from ninefold.config.rules import spelled
from ninefold.machine import cores, cpu

# Packages of which every module may take part in a run; the others are found by their imports.
NAMED_IN_CONF = ("dataset", "logger", "model", "parallel", "task")
# `import ninefold.x`, and `from ninefold.x import a, b` with or without parentheses.
IMPORT = re.compile(
    r"^ *(?:from|import) +(ninefold[\w.]*)(?: +import +(\([^)]*\)|.*))?", re.MULTILINE
)
NVIDIA = Path("/proc/driver/nvidia/gpus")


def of(targets: Iterable[str], launcher: str) -> dict[str, Any]:
    """The entry in sweep.json. The launcher counts, as concurrent runs take longer."""
    return {"code": code(targets), "machine": machine(), "launcher": launcher}


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Changes of code, launcher and machine."""
    found = ["code"] if before["code"] != now["code"] else []
    if (was := before.get("launcher", "basic")) != now["launcher"]:
        found.append(f"hydra/launcher={now['launcher']} (was {was})")
    return found + [
        f"{key}={spelled(value)} (was {spelled(before['machine'].get(key))})"
        for key, value in now["machine"].items()
        if value != before["machine"].get(key)
    ]


def code(targets: Iterable[str] = (), root: Path = ROOT) -> str:
    """sha256 of all code that a run executes, so that figures of two hashes are not compared.

    That is train.py, conf/, what a worker imports of ninefold, and the user's own modules among
    `targets`. The report and the study's own modules are not: they change no run.
    """
    files = {path.relative_to(root).as_posix(): path for path in root.glob("conf/**/*.yaml")}
    files["train.py"] = root / "train.py"
    files |= {path.relative_to(root).as_posix(): path for path in _worker_modules(root)}
    for target in targets:
        for path in _user_modules(target, root):
            files.setdefault(target, path)
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _worker_modules(root: Path) -> set[Path]:
    """Files of ninefold that a launcher's processes import, late imports included."""
    package = root / "ninefold"
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
            module = root.joinpath(*name.split("."))
            queue += [module.with_suffix(".py"), module / "__init__.py"]
    return found


def _imported(path: Path) -> Iterator[str]:
    """Names that a file imports from ninefold: of modules, and of what it takes from them."""
    for module, names in IMPORT.findall(path.read_text(encoding="utf-8")):
        yield module
        yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))


def _user_modules(target: str, root: Path) -> list[Path]:
    """The file of a _target_ that neither ninefold nor an installed package has; else none."""
    first, *rest = target.split(".")
    spec = None if first == "ninefold" else PathFinder.find_spec(first)
    found = [*(spec.submodule_search_locations or []), spec.origin] if spec else []
    if not found or found[0] is None:
        return []
    place = Path(found[0])
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    if any(place.is_relative_to(folder) for folder in installed):
        return []
    if place.is_file():
        return [place]
    for name in rest:
        place /= name
        if (file := place.with_suffix(".py")).is_file():
            return [file]
    return []


def machine() -> dict[str, Any]:
    """Versions, CPU and GPUs, as far as they are known without importing torch."""
    return {
        "python": platform.python_version(),
        "torch": _version("torch"),
        "torchvision": _version("torchvision"),
        "cpu": cpu(),
        "cores": cores(),
        "gpus": _gpus(),
        "visible": _visible_gpus(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _visible_gpus() -> int | None:
    """How many GPUs a run may use; None: all. Which of them, a scheduler chooses each time."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    return sum(each.strip() not in ("", "-1") for each in visible.split(","))


def _gpus() -> list[str]:
    """The names that the driver gives for its GPUs."""
    return [
        line.partition(":")[2].strip()
        for path in sorted(NVIDIA.glob("*/information"))
        for line in path.read_text().splitlines()
        if line.startswith("Model:")
    ]
