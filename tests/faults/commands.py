"""Several of the project's commands, one after another in one process: each start costs seconds.

Reads a JSON list of [script, argument, ...] from a file, and writes to another, for each, its exit
code and output. What is told launch.inline=true runs inside this process, worker and
all, so that what it calls is called here; other workers share a forkserver. Its own stdout and
stderr must be files: what workers write to them is told from what was written before by its place.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]


def leave(code: int, patience: float = 0) -> NoReturn:
    """What `process.exit_process` does to the command, but not to this process."""
    sys.exit(code)


def run(command: list[str]) -> dict[str, Any]:
    os.environ.pop("HYDRA_FULL_ERROR", None)
    sys.argv = [str(ROOT / command[0]), *command[1:]]
    out, err = io.StringIO(), io.StringIO()
    before = [os.fstat(descriptor).st_size for descriptor in (1, 2)]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            code: Any = None
        except SystemExit as leaving:
            code = leaving.code
        except BaseException:
            traceback.print_exc()
            code = "traceback"
    workers = [
        os.pread(descriptor, os.fstat(descriptor).st_size - size, size).decode()
        for descriptor, size in zip((1, 2), before, strict=True)
    ]
    return {
        "code": code,
        "stdout": out.getvalue() + workers[0],
        "stderr": err.getvalue() + workers[1],
    }


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from ninefold import main, process

    process.exit_process, main.open_streams = (
        leave,
        lambda: None,
    )  # they are for a process of its own
    asked, target, *harms = sys.argv[1:]
    for harm in harms:  # what a negative control does to the code first
        exec(harm)
    outcomes = []
    for command in json.loads(Path(asked).read_text()):
        outcomes.append(run(command))
        Path(target).write_text(json.dumps(outcomes))
