"""Negative controls of several processes: without a safeguard, the test that promises it fails."""

from __future__ import annotations

import pytest

import ninefold.engine.parallel
from tests.train import test_kernels

pytestmark = pytest.mark.slow


def test_a_state_of_an_optimizer_that_keeps_the_strides_it_was_saved_with_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ninefold.engine.parallel, "lay_out_as_parameters", lambda optimizer: None)
    with pytest.raises(AssertionError, match="not close"):
        test_kernels.test_a_run_that_goes_on_in_another_layout_goes_on_alike(fused=True)
