"""What a profile says bounds a run."""

from pathlib import Path

import pytest
import torch

from ninefold.engine.parallel import RankContext
from ninefold.measure.profiler import BLIND, Profile


@pytest.mark.parametrize(("device", "blind"), [("cuda:0", True), ("cpu", False)])
def test_a_profile_without_kernels_of_the_gpu_does_not_say_what_bounds_a_run(
    tmp_path: Path, device: str, blind: bool
) -> None:
    found = Profile(tmp_path, RankContext(0, 1, torch.device(device)))
    found.see(())
    *_, said = found.summary({})
    assert (said == BLIND) is blind
