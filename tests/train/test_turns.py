"""What a run that takes turns tells its launcher of memory."""

import pytest
import torch

from ninefold.engine.parallel import RankContext
from ninefold.train import turns

GIB = 2**30


@pytest.mark.parametrize(("exists", "left"), [(False, 10 * GIB), (True, 2 * GIB)])
def test_free_memory_is_that_of_the_host_and_of_a_gpu_which_wsl_does_not_fill(
    monkeypatch: pytest.MonkeyPatch, exists: bool, left: int
) -> None:
    """Windows swaps what exceeds a GPU, where Linux refuses it."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (10 * GIB, 40 * GIB))
    monkeypatch.setattr(turns, "available_memory", lambda: 5 * GIB)
    monkeypatch.setattr("os.path.exists", lambda path: exists)
    assert turns.free_memory(RankContext(0, 1, torch.device("cuda", 0))) == {
        "host": 5 * GIB, "gpu": left,
    }  # fmt: skip
    assert turns.free_memory(RankContext(0, 1, torch.device("cpu"))) == {"host": 5 * GIB}
