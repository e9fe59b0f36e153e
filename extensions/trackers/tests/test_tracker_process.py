"""A tracker's process: how it is started, what ends it, and where its database is."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from extensions.trackers.tests.test_trackers import a_run, of_wandb
from ninefold.result import Result
from ninefold.trackers import mlflow, wandb
from ninefold.trackers.tracking import Tracked


def offline(folder: Path) -> Tracked:
    return wandb.logger(a_run(folder), "p", None, None, "offline", 2)


def test_a_signal_to_all_processes_of_a_service_is_for_the_run_and_not_its_tracker(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logger = offline(tmp_path)
    while not list(tmp_path.rglob("run-*.wandb")):  # by a process that the client has started
        logger._listen(0.1)
        assert logger._process is not None
    os.killpg(logger._process.pid, signal.SIGTERM)
    logger.log(1, {"loss": 0.5})
    logger.close(Result("ok"))
    assert capfd.readouterr().err == ""
    assert [values for _, values in of_wandb(tmp_path)] == [{("loss", 1): 0.5}]


@pytest.mark.parametrize("what", ["os.pipe", "subprocess.Popen"])
def test_a_tracker_that_cannot_be_started_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(what, full)
    logger = offline(tmp_path)
    logger.log(1, {"loss": 0.5})
    logger.close(Result("ok"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "warning: logger=wandb: its process cannot be started: [Errno 24] Too many open files; "
        "the run goes on without it"
    )
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("wait", "regular", "seconds"), [(2, True, 2), (90, True, 90), (90, False, 10)]
)
def test_a_run_waits_for_a_server_as_long_as_it_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wait: float,
    regular: bool,
    seconds: float,
) -> None:
    monkeypatch.setattr("subprocess.Popen", Stuck)
    passed = itertools.count(0, 0.5)
    monkeypatch.setattr("time.monotonic", lambda: next(passed))
    logger = wandb.logger(a_run(tmp_path), "p", None, None, "online", wait)
    logger._ready = True
    logger._listen = lambda seconds=0: None  # type: ignore[method-assign]
    logger.close(Result("ok") if regular else None)
    err = capsys.readouterr().err
    assert f"it was not done {seconds} s after the run; " in err
    assert Stuck.waited == [1]


class Stuck:
    """A process that does nothing, and hangs in the kernel when it is killed."""

    waited: ClassVar[list[float | None]] = []
    pid = 2**22 + 1  # there is no such process

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.stdin = Path(os.devnull).open("wb")  # noqa: SIM115
        self.waited.clear()

    def wait(self, timeout: float | None = None) -> None:
        self.waited.append(timeout)
        if timeout is not None:
            raise subprocess.TimeoutExpired("client", timeout)


def test_a_run_that_is_resumed_elsewhere_goes_on_in_the_database_of_its_first_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    monkeypatch.setattr(mlflow, "Tracked", lambda *given, uri, **others: found.append(uri))
    new = a_run(tmp_path / "run")
    new.folder.mkdir()
    (tmp_path / "outputs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    database = tmp_path / "outputs" / "mlflow.db"
    monkeypatch.chdir(tmp_path)
    mlflow.logger(new, None, "ninefold", 2)
    database.touch()
    monkeypatch.chdir("elsewhere")
    resumed = replace(new, first_step=4)
    for uri in (None, "sqlite:///outputs/mlflow.db", "sqlite:///mine.db"):
        mlflow.logger(resumed, uri, "ninefold", 2)
    here = f"sqlite:///{tmp_path / 'elsewhere' / 'mine.db'}"
    assert found == [f"sqlite:///{database}"] * 3 + [here]
