"""clock.link in real runs: the link and the steps without communication are timed, and undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Shell, metrics, result

SMALL = ("threads=1", "dataset.limit=256", "max_steps=8", "log_every=1", "checkpoint.every=null")


def ran(shell: Shell, name: str, *overrides: str) -> tuple[dict[str, Any], list[float]]:
    folder: Path = shell.folder / name
    done = shell.train(f"hydra.run.dir={folder}", *SMALL, *overrides)
    assert done.returncode == 0, done.stderr
    return result(folder), metrics(folder, "loss")


@pytest.mark.slow
def test_timing_the_link_of_two_processes_changes_no_loss(shell: Shell) -> None:
    two = ("parallel=ddp", "parallel.processes=2")
    plain, losses = ran(shell, "plain", *two)
    timed, same = ran(shell, "timed", *two, "clock.link=0.2")
    assert losses == same
    assert (plain["link"], plain["compute_seconds"]) == ({}, None)
    assert 0 <= timed["link"]["alpha_seconds"] < 1
    assert 1e3 < timed["link"]["bytes_per_second"] < 1e13
    assert 0 < timed["compute_seconds"] < 5
    assert timed["messages"] >= 1


@pytest.mark.slow
def test_one_process_has_no_link_and_times_its_steps(shell: Shell) -> None:
    alone, _ = ran(shell, "alone", "clock.link=0.2")
    assert alone["link"] == {}
    assert alone["compute_seconds"] > 0
