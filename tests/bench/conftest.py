"""What several tests of bench use."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ninefold.bench.__main__ import main


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
        return str(line)

    return run
