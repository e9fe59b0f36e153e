"""Finds the run folders below a sweep's folder and reads what each says of itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ninefold.result import SWEEP

LONGEST, DEEPEST = 1 << 22, 20  # bytes, and levels, of a file that is read


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return each run's result with its `folder` relative to the sweep's.

    A folder with a frozen job and no result is a run that never finished; a result that is no
    JSON object has status "unreadable".
    """
    results = []
    for path in sorted(folder.rglob("result.json")):
        if path.relative_to(folder).parts[0] == "max_batch":
            continue  # an attempt at a batch size, and no run
        results.append({**_read(path), "folder": _relative(path.parent, folder)})
    for path in sorted(folder.rglob("config.yaml")):
        run = path.parent
        finished = (run / "result.json").exists() or (run / "evaluation.json").exists()
        if (run / ".hydra").is_dir() and not finished:
            results.append({**_unfinished(run), "folder": _relative(run, folder)})
    return results


def studies_below(folder: Path) -> list[Path]:
    """Return the folders of the studies below a folder that is none itself, by name."""
    if (folder / SWEEP).exists():
        return []
    return sorted(path.parent for path in folder.rglob(SWEEP))


def read_sweep(folder: Path) -> dict[str, Any]:
    """Return sweep.json, empty where the sweep left none that can be read."""
    sweep = read_object(folder / SWEEP) or {}
    numbers = ("wall_seconds", "runs")
    return sweep if all(isinstance(sweep.get(key), int | float) for key in numbers) else {}


def read_object(path: Path) -> dict[str, Any] | None:
    """Return a file's JSON object; None for anything else: a folder may come from anybody."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and _depth_at_most(content, DEEPEST) else None


def read_text(path: Path) -> str:
    """Return a file's text, empty where it is none that is worth reading."""
    try:
        if not path.is_file() or path.stat().st_size > LONGEST:
            return ""
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _depth_at_most(tree: Any, levels: int) -> bool:
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return levels > 0 and all(_depth_at_most(item, levels - 1) for item in inner)


def _relative(run: Path, folder: Path) -> str:
    return run.relative_to(folder).as_posix()


def _read(path: Path) -> dict[str, Any]:
    result = read_object(path)
    if result is None or not isinstance(result.get("status"), str):
        return {"status": "unreadable", "error": "result.json is not a JSON object with a status"}
    return result


def _unfinished(run: Path) -> dict[str, Any]:
    choices = choices_of(run / ".hydra" / "hydra.yaml")
    return {
        "status": "unfinished",
        "error": "no result.json: killed, or still running",
        "study": choices.get("experiments"),
        **{name: choices.get(name) for name in ("parallel", "amp", "dataset", "model")},
        **{name: _number(run / "config.yaml", name) for name in ("seed", "batch_size")},
    }


# Of a run that never finished, two kinds of line are read out of the YAML that Hydra wrote: it may
# be cut short.


def choices_of(path: Path) -> dict[str, str]:
    """Return the group choices that Hydra wrote down for a run, without the null ones."""
    choices: dict[str, str] = {}
    indent = None
    for line in read_text(path).splitlines():
        depth = len(line) - len(line.lstrip())
        if line.strip() == "choices:":
            indent = depth
        elif indent is not None:
            if depth <= indent:
                break
            name, _, value = line.strip().partition(": ")
            if value and value != "null":
                choices[name] = value
    return choices


def _number(path: Path, name: str) -> int | None:
    for line in read_text(path).splitlines():
        if found := re.fullmatch(rf"{name}: (\d+)", line.rstrip()):
            return int(found[1])
    return None
