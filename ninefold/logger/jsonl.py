"""metrics.jsonl: a line for each log point and each evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ninefold.files import finite, lines, opener, write_durably
from ninefold.logger import Run
from ninefold.result import Result

MAX_BYTES = 1 << 30  # bytes of the file: ten million lines


class JSONLines:
    """Appends to metrics.jsonl; a resumed run first drops the lines after its checkpoint."""

    def __init__(self, run: Run) -> None:
        path = run.folder / "metrics.jsonl"
        if path.exists():
            kept = [line.strip() + b"\n" for line in lines(path, MAX_BYTES) if _is_kept(line, run)]
            write_durably(path, b"".join(kept))
        self._file = open(path, "a", opener=opener)  # noqa: SIM115

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._file.write(json.dumps(finite({"step": step, **values})) + "\n")
        self._file.flush()

    def close(self, result: Result | None) -> None:
        self._file.close()


def _is_kept(line: bytes, run: Run) -> bool:
    """Whether a line is of a step up to the checkpoint that the run resumes from."""
    try:
        values = json.loads(line)
        last = run.measured if "test_loss" in values else run.first_step
        return bool(values["step"] <= last)
    except (ValueError, TypeError, KeyError, RecursionError):  # truncated by a crash, or not ours
        return False
