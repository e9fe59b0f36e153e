"""What `ninefold diff` says of scripts with a mistake, and of scripts with none."""

import pytest

from tests.diff.plants import CONTROLS, PLANTS, Plant, one, wrong

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [*PLANTS, *CONTROLS])
def test_a_mistake_is_named_and_a_script_without_one_is_not_said_to_part(shell, name) -> None:
    plant = {**PLANTS, **CONTROLS}[name]
    assert not wrong(plant, plant.found(shell, 0))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "high"])
@pytest.mark.parametrize("network", ["dense", "convolutions", "attention", "groups"])
def test_rounding_in_a_hundred_steps_is_no_mistake(shell, network, optimizer, dtype) -> None:
    words = f"--network {network} --optimizer {optimizer} --dtype {dtype}"
    both = [one(f"rounding.py {words} --micro {micro}") for micro in (1, 4)]
    found = Plant(("--steps=100", *both), {}).found(shell, 0)
    assert found["kind"] in ("equal", "rounding"), found["text"]
