"""Finds the run folders below a sweep's folder and reads their result.json and config.yaml.

A folder may come from anybody: what cannot be read, is too large or too deep counts as missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ninefold import study_record
from ninefold.files import read_json, read_text, require_plain_yaml, safe_loader
from ninefold.result import FILE, identity
from ninefold.study_record import StudyRecord

CONFIG = "config.yaml"  # in a run folder: the job with its options, as it trains
MAX_BYTES, MAX_DEPTH = 1 << 22, 20  # bytes, and levels, of a file that is read


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return each run's result with its `folder` relative to the sweep's.

    A run folder without a result has status "unfinished"; of a damaged one nothing else is known.
    """
    results = []
    for path in sorted(folder.rglob(FILE)):
        place = path.parent.relative_to(folder).as_posix()
        results.append({**(read_object(path) or {}), "folder": place})
    for path in sorted(folder.rglob(CONFIG)):
        run = path.parent
        finished = (run / FILE).exists() or (run / "evaluation.json").exists()
        if not finished:
            job = read_yaml(path) or {}
            if isinstance(job.get("choices"), dict):
                place = run.relative_to(folder).as_posix()
                results.append({**_unfinished(job), "folder": place})
    return results


def studies_below(folder: Path) -> list[Path]:
    """Return the folders of the studies below a folder that is not a study itself, by name."""
    if (folder / study_record.FILE).exists():
        return []
    return sorted(path.parent for path in folder.rglob(study_record.FILE))


def read_sweep(folder: Path) -> dict[str, Any]:
    """Return what sweep.json holds, empty if there is none that can be read."""
    found = read_object(folder / study_record.FILE) or {}
    try:
        StudyRecord.of(found)
    except ValueError:
        return {}
    return found


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None for anything else."""
    try:
        content = read_json(path, MAX_BYTES, MAX_DEPTH)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def read_yaml(path: Path) -> dict[str, Any] | None:
    """Return the YAML mapping in a file as plain data, None for anything else."""
    import yaml

    try:
        text = read_text(path)
        require_plain_yaml(text)
        tree = yaml.load(text, Loader=safe_loader())
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    return tree if isinstance(tree, dict) else None


def _unfinished(job: dict[str, Any]) -> dict[str, Any]:
    parallel = job.get("parallel")
    processes = parallel.get("processes") if isinstance(parallel, dict) else None
    return {
        "status": "unfinished",
        "error": "interrupted, or still running",
        **identity(job["choices"], job),
        "batch_size": job.get("batch_size"),
        "processes": processes if isinstance(processes, int) else None,
    }
