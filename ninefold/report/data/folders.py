"""Finds the run folders below a sweep's folder and reads their result.json and config.yaml.

A folder may come from anybody: what cannot be read, is too large or too deep counts as missing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ninefold.files import require_plain_yaml, safe_loader
from ninefold.result import FILE, SWEEP

CONFIG = "config.yaml"  # in a run folder: the job with its options, written before it starts
ATTEMPTS = "max_batch"  # in a study's folder: runs that only try a batch size
LONGEST, DEEPEST = 1 << 22, 20  # bytes, and levels, of a file that is read


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return each run's result with its `folder` relative to the sweep's.

    A run folder without a result has status "unfinished"; one whose result is no JSON object with
    a status has status "unreadable".
    """
    results = []
    for path in sorted(folder.rglob(FILE)):
        if path.relative_to(folder).parts[0] != ATTEMPTS:
            results.append({**_result(path), "folder": _relative(path.parent, folder)})
    for path in sorted(folder.rglob(CONFIG)):
        run = path.parent
        finished = (run / FILE).exists() or (run / "evaluation.json").exists()
        if not finished and path.relative_to(folder).parts[0] != ATTEMPTS:
            job = read_yaml(path) or {}
            if isinstance(job.get("choices"), dict):
                results.append({**_unfinished(job), "folder": _relative(run, folder)})
    return results


def studies_below(folder: Path) -> list[Path]:
    """Return the folders of the studies below a folder that is not a study itself, by name."""
    if (folder / SWEEP).exists():
        return []
    return sorted(path.parent for path in folder.rglob(SWEEP))


def read_sweep(folder: Path) -> dict[str, Any]:
    """Return sweep.json, empty if there is none that can be read."""
    sweep = read_object(folder / SWEEP) or {}
    numbers = ("wall_seconds", "runs")
    return sweep if all(isinstance(sweep.get(key), int | float) for key in numbers) else {}


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None for anything else."""
    try:
        content = json.loads(_read_text(path))
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and _depth_at_most(content, DEEPEST) else None


def read_yaml(path: Path) -> dict[str, Any] | None:
    """Return the YAML mapping in a file as plain data, None for anything else."""
    import yaml

    try:
        text = _read_text(path)
        require_plain_yaml(text, safe_loader())
        tree = yaml.load(text, Loader=safe_loader())
    except (ValueError, RecursionError, yaml.YAMLError):
        return None
    return tree if isinstance(tree, dict) else None


def _read_text(path: Path) -> str:
    """Return the text of a file, empty if it is missing, too large or not UTF-8."""
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


def _result(path: Path) -> dict[str, Any]:
    result = read_object(path)
    if result is None or not isinstance(result.get("status"), str):
        return {"status": "unreadable", "error": "result.json is not a JSON object with a status"}
    return result


def _processes(job: dict[str, Any]) -> int | None:
    parallel = job.get("parallel")
    found = parallel.get("processes") if isinstance(parallel, dict) else None
    return found if isinstance(found, int) else None


def _unfinished(job: dict[str, Any]) -> dict[str, Any]:
    choices = job["choices"]
    return {
        "status": "unfinished",
        "error": "no result.json: killed, or still running",
        "study": choices.get("experiments"),
        **{name: choices.get(name) for name in ("parallel", "amp", "dataset", "model")},
        **{name: job.get(name) for name in ("seed", "batch_size")},
        "processes": _processes(job),
    }
