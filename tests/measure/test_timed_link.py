"""clock.link in real runs: the link and the steps without communication are timed, and undone."""

from __future__ import annotations

import itertools
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from benchmarks import ours
from ninefold.train.warmup import alone, first_batches
from tests.conftest import Shell, metrics, result
from tests.parallel.ranks import on_ranks

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


def test_a_step_without_communication_ends_when_the_slowest_process_has_ended_it(
    tmp_path: Path,
) -> None:
    """Here the two take turns in being the slow one."""
    two = ("parallel=ddp", "parallel.processes=2", "device=cpu", "clock.link=0.4", *SMALL)
    ours.job(*two)  # what it imports is imported once

    def run() -> float:
        with ours.training(*two) as run, closing(first_batches(run.batches)) as batches:
            turns = itertools.count(run.context.rank)

            def step(inputs: Tensor, targets: Tensor) -> None:
                time.sleep(0.02 * (next(turns) % 2))

            return alone(run, run.warmup.link_seconds, step, batches)

    for seconds in on_ranks(2, run, tmp_path):
        assert seconds > 0.018  # each of them sleeps for half as long in the mean
