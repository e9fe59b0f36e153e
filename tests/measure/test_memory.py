"""The peak memory of a run is that of its training."""

from __future__ import annotations

import pytest
import torch

from ninefold.engine.training import PeakMemory

MIB = 2**20


@pytest.mark.gpu
def test_what_an_evaluation_allocates_is_no_peak_of_the_training() -> None:
    memory = PeakMemory([0])
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    memory.start()
    (before,) = memory.bytes()
    torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    with memory.paused():
        torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    assert memory.bytes() == [before + 8 * MIB]
