"""Runs that take turns: processes that do not get as far as their first turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninefold.config.spec import RunSpec
from ninefold.errors import PeerError
from ninefold.launch import turns


@pytest.mark.slow
def test_a_process_that_is_not_ready_in_time_is_given_up_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TO_START", 0.0)
    folder = tmp_path / "ddp-fp32"
    folder.mkdir()
    with turns.Turns() as alive:
        run = alive.begin(RunSpec("time", "threads: 1", folder, started=0.0), 1)
        with pytest.raises(PeerError, match="ddp-fp32 did not answer in 0 s"):
            alive.wait(run)
