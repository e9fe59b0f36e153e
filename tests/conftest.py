"""Run the project's commands in real processes and check that none is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]


@dataclass
class Shell:
    """Runs the project's commands in one folder; every process carries its tag."""

    folder: Path
    tag: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        """Start Python with the arguments `command`."""
        return self.spawn([sys.executable, *command], **options)

    def spawn(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start any program."""
        env = {**os.environ, "NINEFOLD_TEST_TAG": self.tag, **options.pop("env", {})}
        # On a busy machine, threads that spin while waiting take a core from the others.
        env["OMP_WAIT_POLICY"] = "PASSIVE"
        env.pop("HYDRA_FULL_ERROR", None)
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=env,
            text=True,
            start_new_session=True,
            **options,
        )

    def run(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        process = self.start(*command, **options)
        stdout, stderr = process.communicate(timeout=240)
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def train(self, *overrides: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.run(str(ROOT / "train.py"), *overrides, **options)

    def evaluate(self, *overrides: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(ROOT / "evaluate.py"), *overrides)

    def torchrun(self, *overrides: str) -> subprocess.CompletedProcess[str]:
        return self.run(
            *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            str(ROOT / "train.py"),
            *overrides,
        )

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Send SIGKILL to the command; every process that it started must end too."""
        process.kill()
        process.wait()
        left = self.survivors()
        assert not left, f"processes that outlived their launcher: {left}"
        process.communicate()

    def processes(self) -> list[int]:
        """The processes alive that this shell's commands started, directly or not."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                alive = "State:\tZ" not in (path.parent / "status").read_text()
                if alive and self.tag.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:  # it has ended, or belongs to another user
                continue
        return found

    def survivors(self, seconds: float = 5) -> list[int]:
        """The processes still alive after `seconds`; returns at once when none is."""
        deadline = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left


def pytest_configure(config: pytest.Config) -> None:
    """Hide the GPUs of this machine, except from the tests of `-m gpu`.

    What the others say of devices and processes holds on a CPU. CUDA looks at the variable when it
    is used for the first time, and commands inherit it.
    """
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Use one thread here: more would only compete with the commands under test."""
    torch.set_num_threads(1)
    # Some tests fork. The first backward pass of a process starts a thread for each device, and
    # then none works in forks. Fake tensors pretend that there is one, so it is before them.
    torch.ones(1, requires_grad=True).backward()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in an empty folder; the test fails if it leaves a process behind."""
    shell = Shell(tmp_path)
    yield shell
    left = shell.survivors()
    for pid in left:
        os.kill(pid, 9)
    assert not left, f"processes left behind: {left}"


def result(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "result.json").read_text())
    assert isinstance(found, dict)
    return found


def metrics(folder: Path, key: str) -> list[float]:
    """The values of `key` in metrics.jsonl, in order."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if key in line]


def only_run(folder: Path) -> Path:
    """The one run folder that a command made under outputs/runs."""
    (run,) = (folder / "outputs" / "runs").iterdir()
    return run
