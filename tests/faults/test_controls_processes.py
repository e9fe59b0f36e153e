"""Negative controls of several processes: without a safeguard, the test that promises it fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import ninefold.engine.parallel
from ninefold.engine import evaluation
from ninefold.engine.parallel import Place
from ninefold.engine.parallel.fsdp import FSDP
from ninefold.train import build
from ninefold.train.optimizer import parameter_groups
from tests.parallel import test_fsdp
from tests.promises import test_sharded
from tests.train import test_kernels

pytestmark = pytest.mark.slow
HANGS = 5  # seconds without an answer from another process, then it is a failure here


@pytest.fixture(autouse=True)
def in_the_table(record_property: Callable[[str, object], None]) -> None:
    record_property("set", "negative controls")


def test_an_optimizer_that_is_made_before_the_parameters_are_spread_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has parameters that the model has no more, and trains nothing."""
    wrap, before = FSDP.wrap, []

    def wrap_too_late(self: FSDP, model: nn.Module, place: Place) -> nn.Module:
        before[:] = [parameter_groups(model.get_submodule("network"), None)]
        return wrap(self, model, place)

    def groups(model: nn.Module, named: Any) -> Any:
        return before[0] if before else parameter_groups(model, named)

    few = {name: test_sharded.STRATEGIES[name] for name in ("none", "fsdp2")}
    monkeypatch.setattr(test_sharded, "STRATEGIES", few)
    monkeypatch.setattr(build, "parameter_groups", groups)
    promised = partial(
        test_sharded.test_the_first_50_losses_are_those_without_it,
        *(tmp_path, "convnet", "adamw", "fp32", []),
    )
    promised()
    monkeypatch.setattr(FSDP, "wrap", wrap_too_late)
    with pytest.raises(AssertionError, match="fsdp2"):
        promised()


def test_a_state_of_an_optimizer_that_keeps_the_strides_it_was_saved_with_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ninefold.engine.parallel, "lay_out_as_parameters", lambda optimizer: None)
    with pytest.raises(AssertionError, match="not close"):
        test_kernels.test_a_run_that_goes_on_in_another_layout_goes_on_alike(fused=True)


def test_an_evaluation_without_forward_passes_to_fill_up_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(test_fsdp, "FSDP", partial(FSDP, timeout=HANGS))
    promised = partial(
        test_fsdp.test_evaluations_of_any_size_end_and_count_each_example_once, 5, 4, tmp_path
    )
    promised()
    monkeypatch.setattr(evaluation, "most_passes", lambda *given: 0)
    with pytest.raises(AssertionError):
        promised()
    assert "all_gather" in capfd.readouterr().err  # of parameters, for which the other never comes
