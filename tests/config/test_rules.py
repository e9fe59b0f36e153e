"""Checks and errors: what is wrong is found before anything starts, and told in one line."""

import math
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from ninefold.config.rules import inner_keys, problems
from ninefold.config.schema import KEYS
from ninefold.errors import ConfigError

# Of these, any text or an empty list is allowed.
ANY = (
    *("dataset.root", "dataset.cache_dir", "dataset.class_names", "dataset.mask_suffix"),
    *("dataset.train", "dataset.test", "dataset.keys", "dataset.name", "dataset.config"),
    *("dataset.revision", "dataset.image", "dataset.label", "dataset.landmarks"),
    *("ckpt", "model.output", "task.loss", "optimizer.groups", "init", "freeze"),
    *("init_without", "like", "parallel.units", "parallel.colwise"),
    "parallel.rowwise",
)
FIELDS = [field for field, key in KEYS.items() if not key.is_section and field not in ANY]


def nested(field: str, value: Any) -> dict[str, Any]:
    group, _, key = field.rpartition(".")
    return {group: {key: value}} if group else {key: value}


NEVER = [math.nan, math.inf, -math.inf, [], "no such value"]
MAYBE = (("dataset.shape", []), ("task.shape", []))  # the shape of an example that is one number
BELOW_0 = ("report.target",)  # which may be -1 too: the score of a task may be any number


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_refuses_what_cannot_be_meant(field: str) -> None:
    for value in (*NEVER, *[-1] * (field not in BELOW_0)):
        if (field, value) not in MAYBE:
            (problem,) = problems(nested(field, value), {field.partition(".")[0]})
            assert isinstance(problem, ConfigError)
            assert str(problem).startswith(f"error: {field}={value}: not allowed; ")
            assert str(problem).endswith(f"; correct {field}")


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("amp.growth_factor", 1.0, False),
        ("amp.growth_factor", 1.5, True),
        ("amp.backoff_factor", 0.0, False),
        ("amp.backoff_factor", 0.5, True),
        ("amp.backoff_factor", 1.0, False),  # torch's GradScaler insists
        ("optimizer.lr", 0, False),
        ("optimizer.weight_decay", 0, True),
        ("epochs", 0, True),
        ("batch_size", 0, False),
        ("max_steps", None, True),
        ("threads", None, False),
        ("threads", "auto", True),
        ("threads", 1025, False),
        ("checkpoint.keep", 1, False),
        ("checkpoint.keep", 2, True),
        ("ema", 1.0, False),
        ("patience", 0, False),
        ("launch.timeout", 1e300, False),
        ("study.time_budget", 1e308, False),
        ("study.turn", 1e308, False),
        ("study.turns", 100_000, True),
        ("study.turns", 100_001, False),
        ("study.rounds", 100_000, True),
        ("study.rounds", 100_001, False),
        ("dataset.root", " ", False),
        ("dataset.root", 5, False),
        ("dataset.shape", [8, 8], True),
        ("dataset.shape", [[3], []], True),
        ("dataset.shape", {"ids": [8]}, True),
        ("dataset.shape", {"ids": "8"}, False),
        ("dataset.shape", [[8], 3], False),
        ("dataset.shape", {}, False),
        ("dataset.shape", [1, 8, 0], False),
        ("dataset.mean", [math.nan], False),
        ("dataset.mean", [], False),
        ("dataset.std", [0.5, 2], True),
        ("dataset.std", [0.5, 0], False),
    ],
)
def test_the_edges_of_what_a_field_may_be(field: str, value: Any, allowed: bool) -> None:
    found = problems(nested(field, value), {field.partition(".")[0]})
    assert (found == []) is allowed


ROOT = Path(__file__).parents[2]


# All of a job


def test_all_problems_are_told_at_once() -> None:
    job = {"seed": -1, "epochs": True, "extra": 1, "amp": {"scaler": 1, "dtype": "int8"}}
    found = problems(job, {"seed", "epochs", "amp"})
    fields = {str(problem).split("=")[0].removeprefix("error: ") for problem in found}
    assert fields == {"seed", "epochs", "extra", "amp.scaler", "amp.dtype"}
    assert {problem.code for problem in found} == {2}


def test_a_group_that_is_left_out_has_no_problems() -> None:
    assert problems({"optimizer": None, "amp": {}}, {"optimizer", "amp"}) == []


def test_the_keys_of_an_option_are_those_in_its_file() -> None:
    inner = inner_keys({"amp": "fp32", "dataset": "digits"}, False)
    assert inner["amp"] == set(OmegaConf.load(ROOT / "conf" / "amp" / "fp32.yaml"))
    assert inner["dataset"] == set(OmegaConf.load(ROOT / "conf" / "dataset" / "digits.yaml"))
    assert inner["clock"] == {"warmup", "sample"}
    assert "model" not in inner


def test_what_is_required_and_not_there_is_told() -> None:
    required = ["epochs", "clock", "clock.warmup", "checkpoint.keep"]
    found = problems({"checkpoint": {}}, {"checkpoint"}, required=required)
    fields = [str(problem).split("=")[0] for problem in found]
    assert fields == ["error: epochs", "error: clock", "error: checkpoint.keep"]
