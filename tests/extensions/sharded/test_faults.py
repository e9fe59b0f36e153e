"""A sharded checkpoint survives a kill at any system call; without a safeguard that is seen."""

from collections.abc import Mapping
from typing import Any

import pytest

from ninefold.checkpoint.store import Checkpoints
from ninefold.extensions.sharded.dcp import ShardedWriter
from tests.faults.test_checkpoint_files import crashes, refusals
from tests.faults.writer import KEEP

pytestmark = pytest.mark.slow


class Together(Checkpoints):
    """Sharded checkpoints as a run of one process writes them."""

    def save(self, content: Mapping[str, Any], best: bool) -> None:
        writer = ShardedWriter(Checkpoints(self.folder, KEEP))
        writer.save(content, best)
        writer.wait()


@pytest.mark.parametrize("earlier", [(), (1, 2)], ids=len)
def test_a_writer_killed_at_any_system_call_leaves_a_run_to_go_on_with(tmp_path, earlier):
    cases, wrong = crashes(tmp_path, earlier, Together)
    assert cases > 50
    assert wrong == []


def test_a_refused_system_call_costs_a_save_and_no_checkpoint(tmp_path):
    cases, wrong = refusals(tmp_path, "ENOSPC", Together)
    assert cases > 50
    assert wrong == []
