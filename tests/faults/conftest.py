"""What all tests of faults use."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ninefold.main import Command
from ninefold.words import last_of_each, quoted
from tests.conftest import Shell
from tests.faults.refusals import Done


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where uninterrupted runs are kept, for all tests to compare with."""
    return tmp_path_factory.mktemp("references")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two steps, alone in its folder."""
    shell = Shell(tmp_path_factory.mktemp("trained"))
    shell.train("max_steps=2", "hydra.run.dir=older", "logger=quiet", "clock.warmup=0", code=0)
    return shell.folder / "older"


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
