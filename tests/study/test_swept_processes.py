"""A study of several numbers of processes: its cells, their names and their batches."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from ninefold.config.job import problems
from ninefold.errors import ConfigError
from ninefold.study.plan import Plan
from tests.study.conftest import Sweep


def planned(
    made: Sweep, parallels: Sequence[str], processes: Sequence[object], *more: str, **study: Any
) -> Plan:
    jobs = [
        [f"parallel={parallel}", f"parallel.processes={count}", *more, f"seed={seed}"]
        for seed, parallel, count in product((0, 1), parallels, processes)
    ]
    return Plan(jobs, made.compose, made.settings(**study))


def test_a_number_of_processes_is_part_of_the_name_of_a_cell(made):
    found = planned(made, ["ddp"], [1, 2, 4])
    assert [cell.name for cell in found.cells] == ["ddp x1-fp32", "ddp x2-fp32", "ddp x4-fp32"]
    jobs = [found.job(cell, 0).resolved for cell in found.cells]
    assert [job["parallel"]["processes"] for job in jobs] == [1, 2, 4]
    assert found.cells[2].keys["parallel.processes"] == "4"


def test_a_number_that_is_not_swept_is_no_part_of_it(made):
    assert [cell.name for cell in planned(made, ["ddp"], [2]).cells] == ["ddp-fp32"]
    [one, other] = planned(made, ["ddp"], [2, "auto"]).cells
    assert (one.name, other.name) == ("ddp x2-fp32", "ddp-fp32 parallel.processes=auto")


def test_a_strategy_of_one_process_has_one_cell_beside_those_that_scale(made):
    found = planned(made, ["none", "ddp"], [1, 2])
    assert [cell.name for cell in found.cells] == ["none-fp32", "ddp x1-fp32", "ddp x2-fp32"]
    with pytest.raises(ConfigError, match=r"parallel\.processes=2: none of these strategies"):
        planned(made, ["none", "dp"], [2, 4])


@pytest.mark.parametrize("count", ["007", "'2'", "x"])
def test_a_number_of_processes_that_is_none_is_left_to_the_check_of_its_key(made, count):
    found = planned(made, ["none", "ddp"], [1, count])
    for cell in found.cells[1::2]:
        (problem,) = problems(found.job(cell, 0))
        assert str(problem).startswith("error: parallel.processes=")


def test_where_scaling_is_weak_the_batch_grows_with_the_processes(made):
    found = planned(made, ["none", "ddp"], [1, 2, 4], "batch_size=32", scaling="weak")
    sizes = [found.job(cell, 0).resolved["batch_size"] for cell in found.cells]
    assert sizes == [32, 32, 64, 128]
    strong = planned(made, ["none", "ddp"], [1, 2, 4], "batch_size=32")
    assert {strong.job(cell, 0).resolved["batch_size"] for cell in strong.cells} == {32}
