"""What all fault sets use, and their closing table: how many cases, passed, in which time.

A test is one case of the set that its file is named for (`test_c_...` is set C), unless it says
otherwise with `record_property("set", "C2")` and `record_property("cases", 3000)`.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ninefold.config.parse import last_of_each, quoted
from ninefold.main import Command
from tests.faults.refusals import Done


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where uninterrupted runs are kept, for all sets to compare with."""
    return tmp_path_factory.mktemp("references")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table, if everything was asked for."""
    if config.option.markexpr != "":
        return
    rows: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0])
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            name = set_of(report.nodeid, said := dict(report.user_properties))
            if name is None or report.when != "call":
                continue
            cases = int(said.get("cases", 1))
            rows[name][0] += cases
            rows[name][1] += cases * report.passed
            rows[name][2] += report.duration
    terminalreporter.write_sep("=", "fault sets")
    terminalreporter.write_line(f"{'set':<20} {'cases':>6} {'passed':>7} {'seconds':>8}")
    for name, (cases, passed, seconds) in sorted(rows.items()):
        terminalreporter.write_line(f"{name:<20} {cases:>6.0f} {passed:>7.0f} {seconds:>8.0f}")


def set_of(nodeid: str, said: Mapping[str, Any]) -> str | None:
    """The set that a test belongs to, or None."""
    letter = re.search(r"faults/test_([a-g])_", nodeid)
    return str(said["set"]) if "set" in said else letter and letter.group(1).upper()


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """What a command that must be refused comes to, in this process: command(folder, name, ...)."""

    def run(folder: Path, name: str, *words: str) -> Done:
        argv = last_of_each(quoted(words))
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *argv])
        given = Command(name, argv)
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as main does: Hydra then raises
        code = given.execute()
        return Done(argv, code, *capsys.readouterr())

    return run
