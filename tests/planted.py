"""Plants defects in the code for GPUs, one after the other, and finds which of them the tests see.

    python -m tests.planted COMMAND [WORD ...] [--only DEFECT]

COMMAND: what runs a program as on a machine with a GPU; `env` on one that has it. The tests that
need a GPU run in a copy of the repository with each defect; benchmarks/log/gpu.md has what was
seen.
Exit code 1 if they fail without a defect.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu import gpu_tests
from tests.conftest import ROOT

BUSY = "test_a_gpu_that_is_the_limit_still_works_when_all_steps_are_queued"
LIMIT = 400  # seconds of the tests with one defect


@dataclass(frozen=True)
class Defect:
    """A mistake: `there` in `file` becomes `planted`."""

    name: str
    file: str
    there: str
    planted: str


DEFECTS = [
    Defect(
        "a step that waits for its loss", "engine/loop.py",
        "        state.losses.watch(loss)\n",
        "        state.losses.watch(loss)\n        loss.item()\n",
    ),
    Defect(
        "a checkpoint's copy that is not awaited", "checkpoint/writer.py",
        "            torch.cuda.synchronize(gpu)\n", "            pass\n",
    ),
    Defect(
        "rows that the host waits for", "dataset/preparation.py",
        "return tensor.pin_memory().to(device, non_blocking=True)", "return tensor.to(device)",
    ),
    Defect(
        "an evaluation's memory counted into the training's", "engine/training.py",
        "        finally:\n            for index in self._most:\n"
        "                torch.cuda.reset_peak_memory_stats(index)\n",
        "        finally:\n            pass\n",
    ),
    Defect(
        "a clock that does not wait for the GPU", "engine/clock.py",
        "            torch.cuda.synchronize(index)\n", "            pass\n",
    ),
    Defect(
        "a random state of the GPU that is not restored", "engine/generators.py",
        "        torch.cuda.set_rng_state(state.clone(), device)\n", "        pass\n",
    ),
    Defect(
        "a loss that is not finite and goes unnoticed", "engine/loss_tracker.py",
        "            torch._amp_foreach_non_finite_check_and_unscale_([loss], self._found_bad, "
        "self._one)\n",
        "            pass\n",
    ),
]  # fmt: skip


def failed(command: list[str], defect: Defect | None) -> list[str]:
    """The tests that fail with `defect`; the first one, as the others are not run then."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        shutil.copytree(
            ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "outputs", "__pycache__")
        )
        if defect is not None:
            file = copy / "ninefold" / defect.file
            text = file.read_text()
            assert text.count(defect.there) == 1, f"{defect.name}: its place in {file} is gone"
            file.write_text(text.replace(defect.there, defect.planted))
        files = [file for file in gpu_tests(copy) if not file.endswith("test_launches.py")]
        done = subprocess.run(
            [*command, sys.executable, "-m", "pytest", "-q", "-x", "-m", "gpu", "-W", "default",
             "-k", f"not {BUSY}", "-p", "no:cacheprovider", *files],
            cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True,
            timeout=LIMIT, check=False,
        )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert lines or done.returncode == 0, done.stdout + done.stderr
    return [line.split(" - ")[0].split("::")[-1] for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted")
    parser.add_argument("command", nargs="+")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    if red := failed(given.command, None):
        print(f"without a defect: {', '.join(red)}")
        return 1
    for defect in DEFECTS:
        if given.only in defect.name:
            began = time.monotonic()
            seen = ", ".join(failed(given.command, defect)) or "not seen"
            print(f"| {defect.name} | {seen} |", f"{time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
