"""What `ninefold diff` says of scripts with a mistake, and of scripts with none, start by start."""

import pytest

from tests.conftest import Shell
from tests.diff.plants import CONTROLS, PLANTS, Plant, one, wrong

pytestmark = pytest.mark.slow
STARTS, RIGHT, CONTROL_STARTS = 10, 9, 20


@pytest.mark.parametrize("name", PLANTS)
def test_a_mistake_is_named_in_nine_of_ten_starts(shell: Shell, name: str) -> None:
    found = [wrong(PLANTS[name], PLANTS[name].found(shell, seed)) for seed in range(STARTS)]
    assert sum(not each for each in found) >= RIGHT, found


@pytest.mark.parametrize("name", CONTROLS)
def test_no_start_of_a_script_without_a_mistake_is_said_to_part(shell: Shell, name: str) -> None:
    plant = CONTROLS[name]
    found = [wrong(plant, plant.found(shell, seed)) for seed in range(CONTROL_STARTS)]
    assert not any(found), found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "high"])
@pytest.mark.parametrize("network", ["dense", "convolutions", "attention", "groups"])
def test_rounding_in_a_hundred_steps_is_no_mistake(shell, network, optimizer, dtype) -> None:
    words = f"--network {network} --optimizer {optimizer} --dtype {dtype}"
    both = [one(f"rounding.py {words} --micro {micro}") for micro in (1, 4)]
    found = Plant(("--steps=100", *both), {}).found(shell, 0)
    assert found["kind"] in ("equal", "rounding"), found["text"]
