"""The parts of the noise of timing runs are told from each other."""

from __future__ import annotations

import numpy as np
import pytest

from ninefold.report.stats.components import Components, components


def test_the_parts_of_the_noise_are_found() -> None:
    rng, cells = np.random.default_rng(0), {}
    common = 0.03 * rng.standard_normal(12)
    for number, cell in enumerate("abcdefghi"):
        own = common + 0.012 * rng.standard_normal(12) + 0.1 * number
        turns = own[:, None] + 0.015 * rng.standard_normal((12, 15))
        cells[cell] = dict(enumerate(np.exp(turns).tolist()))
    found = components(cells)
    assert found.turn == pytest.approx(0.015, rel=0.15)
    assert found.process == pytest.approx(0.012, rel=0.2)
    assert found.turns == 15


def test_without_rounds_in_common_the_noise_between_processes_is_not_known() -> None:
    found = components({"a": {0: [1.0, 1.01, 1.02]}, "b": {1: [1.0, 1.01, 1.02]}})
    assert found.process is None
    assert found.turn == pytest.approx(0.01, rel=0.02)
    assert components({}) == Components(None, None, 0)
