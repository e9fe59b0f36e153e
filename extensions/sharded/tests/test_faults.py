"""A sharded checkpoint survives a kill at any system call; without a safeguard that is seen."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from extensions.sharded.tests import made, test_fsdp
from ninefold.checkpoint.store import Checkpoints
from ninefold.engine import evaluation
from ninefold.sharded.dcp import ShardedWriter
from ninefold.sharded.fsdp import FSDP
from tests.faults.test_checkpoint_files import crashes, refusals
from tests.faults.writer import KEEP

pytestmark = pytest.mark.slow
HANGS = 5  # seconds without an answer from another process, then it is a failure here


class Together(Checkpoints):
    """Sharded checkpoints as a run of one process writes them."""

    def save(self, content: Mapping[str, Any], best: bool) -> None:
        writer = ShardedWriter(Checkpoints(self.folder, KEEP))
        writer.save(content, best)
        writer.wait()


@pytest.mark.parametrize("earlier", [(), (1, 2)], ids=len)
def test_a_writer_killed_at_any_system_call_leaves_a_run_to_go_on_with(
    tmp_path: Path, earlier: tuple[int, ...]
) -> None:
    cases, wrong = crashes(tmp_path, earlier, Together)
    assert cases > 50
    assert wrong == []


def test_a_refused_system_call_costs_a_save_and_no_checkpoint(tmp_path: Path) -> None:
    cases, wrong = refusals(tmp_path, "ENOSPC", Together)
    assert cases > 50
    assert wrong == []


def test_an_evaluation_without_forward_passes_to_fill_up_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(made, "FSDP", partial(FSDP, timeout=HANGS))
    promised = partial(
        test_fsdp.test_evaluations_of_any_size_end_and_count_each_example_once, 5, 4, tmp_path
    )
    promised()
    monkeypatch.setattr(evaluation, "most_passes", lambda *given: 0)
    with pytest.raises(AssertionError):
        promised()
    assert "all_gather" in capfd.readouterr().err  # of parameters, for which the other never comes
