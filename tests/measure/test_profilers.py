"""The profilers of docs/how-to/profile.md: they watch a run of one process as the page says."""

from __future__ import annotations

import pstats
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Shell, metrics

PAGE = (
    (ROOT / "docs" / "how-to" / "profile.md")
    .read_text()
    .partition("so any profiler can watch it:\n")[2]
    .replace("\\\n    ", "")  # a command on several lines
)
LINES = re.findall(r"^    (.+ launch.inline=true .+)$", PAGE.partition("## Debug")[0], re.M)


def words(tool: str, folder: str) -> list[str]:
    """The command of the page that `tool` begins or is in, for a short run."""
    line = next(line for line in LINES if tool in line)
    found = {"python": sys.executable, "train.py": str(ROOT / "train.py")}
    short = ["max_steps=3", "log_every=1", f"hydra.run.dir={folder}"]
    return [*(found.get(word, word) for word in shlex.split(line)), *short]


def run(shell: Shell, command: list[str]) -> None:
    process = shell.spawn(command)
    _, stderr = process.communicate(timeout=shell.seconds)
    assert process.returncode == 0, stderr


@pytest.fixture
def plain(shell: Shell) -> list[float]:
    """The losses of the run that no profiler watches."""
    command = words("py-spy", "plain")
    run(shell, command[command.index("--") + 1 :])
    return metrics(shell.folder / "plain", "loss")


def test_cprofile_and_strace_see_the_functions_and_the_files_of_a_run_that_trains_as_without_them(
    shell: Shell, plain: list[float]
) -> None:
    run(shell, words("cProfile", "profiled"))
    seen = pstats.Stats(str(shell.folder / "train.prof")).stats  # type: ignore[attr-defined]
    assert (str(ROOT / "ninefold" / "engine" / "loop.py"), "train") in {
        (path, name) for path, _, name in seen
    }
    assert metrics(shell.folder / "profiled", "loss") == plain
    if shutil.which("strace"):  # of Linux, not of Python
        run(shell, words("strace", "traced"))
        lines = (shell.folder / "reads.txt").read_text().splitlines()
        assert any(re.search(r"read\(\d+<\S*digits\S*>.* = \d+ <[\d.]+>$", line) for line in lines)
        assert metrics(shell.folder / "traced", "loss") == plain


def test_the_profilers_that_are_shown_watch_the_same_run() -> None:
    assert [Path(shlex.split(line)[0]).name for line in LINES] == ["python", "py-spy", "strace"]
    assert len({line.partition("train.py ")[2] for line in LINES}) == 1
