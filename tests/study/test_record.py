"""sweep.json holds what a study needs to be resumed and reported."""

from __future__ import annotations

from typing import Any

import pytest

from tests.study.conftest import Sweep


@pytest.mark.parametrize(
    ("dp", "others"), [({"devices": ["A"]}, {"devices": ["B", "B"]}), ({"threads": 2}, {})]
)
def test_a_cell_on_other_devices_or_threads_is_no_drift_of_the_machine(
    made: Sweep, dp: dict[str, Any], others: dict[str, Any]
) -> None:
    made.unlike, made.probes = {"none": others, "dp": dp, "ddp": others}, [1.0] * 6 + [2.0] * 3
    made.study(seeds=range(3), retries=0).run()
    assert made.rounds("drift", "drifted") == [(0, False), (0, False), (1, True)]
