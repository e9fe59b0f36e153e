"""What several tests of bench use."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from ninefold.bench import commands
from ninefold.bench.__main__ import main
from ninefold.bench.command import INJECT


@pytest.fixture(autouse=True)
def own_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a bench in this process: its guardian removes it, and with that of the tests
    multiprocessing's would go."""
    monkeypatch.setattr(commands, "scratch", lambda: Path(tempfile.mkdtemp()))


@pytest.fixture
def refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """The one line of a bench that must be refused, in this process and the shell's folder."""

    def run(*words: str, code: int = 2) -> str:
        monkeypatch.chdir(tmp_path)
        assert main(words) == code
        out, err = capsys.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        assert line.startswith("error: ")
        return str(line)

    return run


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What sees the calls of networks of a command, in this process."""
    monkeypatch.syspath_prepend(INJECT)
    made = import_module("ninefold_bench_calls").Calls(nn.Module)
    yield made
    made.end()
    for name in [name for name in sys.modules if name.startswith("ninefold_bench_")]:
        del sys.modules[name]


@pytest.fixture
def watching(calls: Any) -> Callable[[str], Any]:
    """Makes what has the networks of a command compute in a precision, in this process."""
    return lambda wanted: import_module("ninefold_bench_precision").Watch(wanted == "bf16", calls)
