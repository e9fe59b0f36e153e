"""Runs the commands and processes of a check, with time limits, and keeps what they print."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[2]
GRACE = 15.0  # seconds from SIGTERM to SIGKILL for a command that takes too long
KEPT = 40  # lines of a command's output in the log
PATIENCE = 5  # times the limit of a command in a dry run, on a CPU that may be busy


@dataclass(frozen=True)
class Done:
    """A command that has ended. folder: of its run, where it has one."""

    code: int
    output: str
    seconds: float
    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        """result.json of its run; empty if it wrote none."""
        return read(self.folder / "result.json")

    @property
    def error(self) -> str:
        """Its first line that says what is wrong; empty if none does."""
        return self.line("error: ")

    def line(self, words: str) -> str:
        """The first line of its output with `words` in it; empty if there is none."""
        return next((line for line in self.output.splitlines() if words in line), "")


@dataclass
class Session:
    """What the checks of a part run with.

    log: gets what is run and what it prints.
    scratch: an empty folder for runs, removed with the part.
    gpus: that there are; 0 in a dry run.
    dry: everything at tiny size on the CPU.
    until: time.monotonic() at which the command has to be over; it may be infinite.
    check: the name of the check that runs.
    """

    log: TextIO
    scratch: Path
    gpus: int
    dry: bool
    until: float
    check: str = ""
    _runs: int = field(default=0, init=False)

    @property
    def left(self) -> float:
        """Seconds until the command has to be over."""
        return self.until - time.monotonic()

    def size(self, full: Any, tiny: Any) -> Any:
        """`full`, or `tiny` in a dry run."""
        return tiny if self.dry else full

    def say(self, line: str) -> None:
        """Write a line to the log."""
        self.log.write(f"{line}\n")
        self.log.flush()

    def begin(self, check: str, line: str) -> None:
        """Write to the log that `check` begins."""
        self.check = check
        self.say(f"\n{'=' * 100}\n{line}\n{time.strftime('%Y-%m-%d %H:%M:%S')}")

    def keep(self, folder: Path) -> None:
        """Copy the files in `folder` beside the log, into a folder named after the check."""
        into = Path(self.log.name).parent / self.check
        into.mkdir(exist_ok=True)
        for file in folder.iterdir():
            if file.is_file():
                (into / file.name).write_bytes(file.read_bytes())

    def new_folder(self) -> Path:
        """The name of a folder for a run that does not exist yet."""
        self._runs += 1
        return self.scratch / f"run{self._runs}"

    def train(
        self,
        *overrides: str,
        limit: float = 90,
        path: Path | None = None,
        folder: Path | None = None,
        watch: Callable[[subprocess.Popen[str], Path], None] | None = None,
        launcher: tuple[str, ...] = (),
    ) -> Done:
        """Run `python train.py` with `overrides`, on the CPU in a dry run.

        path: of modules that it is to find. folder: of its run; None: a new one. watch: see
        `command`. launcher: what starts it, instead of python alone.
        """
        if folder is None:
            folder = self.new_folder()
            option = "sweep" if sweeps(overrides) else "run"
            overrides = (*overrides, f"hydra.{option}.dir={folder}")
        if self.dry and not any(text.startswith(("device=", "resume=")) for text in overrides):
            overrides = (*overrides, "device=cpu")
        arguments = [*launcher, str(ROOT / "train.py"), *overrides]
        return self.command(*arguments, limit=limit, path=path, folder=folder, watch=watch)

    def command(
        self,
        *arguments: str,
        limit: float,
        path: Path | None = None,
        folder: Path | None = None,
        watch: Callable[[subprocess.Popen[str], Path], None] | None = None,
    ) -> Done:
        """Run Python with `arguments` in the scratch folder.

        watch: is called with the process and `folder` while it runs.
        Raises TimeoutError after `limit` seconds, or at the end of the command's time.
        """
        folder = folder or self.scratch
        self.say(f"\n$ python {' '.join(arguments)}")
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.scratch,
            env=self.variables(path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            if watch is not None:
                watch(process, folder)
            seconds = min(limit * self.size(1, PATIENCE), self.left)
            output, _ = process.communicate(timeout=max(1.0, seconds))
        except subprocess.TimeoutExpired as late:
            self.say(ended(process))
            name = next((each for each in arguments if each.endswith(".py")), arguments[1])
            words = f"{Path(name).name} did not end within {late.timeout:.0f} s"
            raise TimeoutError(words) from late
        except BaseException:  # of a signal to this command
            ended(process)
            raise
        done = Done(process.returncode, output, time.monotonic() - began, folder)
        lines = output.splitlines()
        self.say("\n".join(lines[-KEPT:]))
        self.say(f"exit code {done.code} after {done.seconds:.1f} s")
        return done

    def call(self, name: str, *, limit: float = 120, **arguments: Any) -> dict[str, Any]:
        """Call `name`, a function of benchmarks.gpu.inside, in a new process; return its figures.

        Raises RuntimeError with the last line that the process printed if it failed.
        """
        into = self.new_folder().with_suffix(".json")
        words = json.dumps({"dry": self.dry, **arguments})
        code = ("-m", "benchmarks.gpu.inside", name, words, str(into))
        done = self.command(*code, limit=limit)
        if done.code or not into.exists():
            lines = done.output.strip().splitlines() or ["it printed nothing"]
            raise RuntimeError(f"{name} ended with {done.code}: {lines[-1]}")
        return read(into)

    def variables(self, path: Path | None = None) -> dict[str, str]:
        """The environment of a command: it finds this repository, and no GPU in a dry run."""
        paths = [str(path) if path else "", str(ROOT), os.environ.get("PYTHONPATH", "")]
        found = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
        }
        if self.dry:
            found |= {"CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "PASSIVE"}
        return found


def ended(process: subprocess.Popen[str]) -> str:
    """End a command and what it started; return its output."""
    process.terminate()
    try:
        output, _ = process.communicate(timeout=GRACE)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return output


def sweeps(overrides: tuple[str, ...]) -> bool:
    return "-m" in overrides or any(text.startswith("experiments=") for text in overrides)


def read(file: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if it is not there or no JSON."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
