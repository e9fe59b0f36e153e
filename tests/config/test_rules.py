"""Checks and errors: what is wrong is found before anything starts, and told in one line."""

import math
from itertools import product
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ninefold.config.rules import breach, inner_keys, problems
from ninefold.config.schema import KEYS
from ninefold.errors import ConfigError

# Of these, any text or an empty list is allowed.
ANY = (
    *("dataset.root", "dataset.cache_dir", "dataset.class_names", "dataset.mask_suffix"),
    *("dataset.train", "dataset.test", "dataset.keys", "dataset.name", "dataset.config"),
    *("dataset.revision", "dataset.image", "dataset.label", "dataset.landmarks"),
    *("ckpt", "model.output", "task.loss", "optimizer.groups", "init", "freeze"),
    *("init_without", "like", "parallel.units"),
)
FIELDS = [field for field, key in KEYS.items() if not key.is_section and field not in ANY]


def nested(field: str, value: Any) -> dict[str, Any]:
    group, _, key = field.rpartition(".")
    return {group: {key: value}} if group else {key: value}


NEVER = [math.nan, math.inf, -math.inf, [], "no such value"]
MAYBE = (("dataset.shape", []), ("task.shape", []))  # the shape of an example that is one number
BELOW_0 = ("report.target",)  # which may be -1 too: the score of a task may be any number


def test_every_field_refuses_what_cannot_be_meant():
    for field, value in product(FIELDS, (*NEVER, -1)):
        if (field, value) not in MAYBE and not (value == -1 and field in BELOW_0):
            (problem,) = problems(nested(field, value), {field.partition(".")[0]})
            assert isinstance(problem, ConfigError)
            wrong = ("not allowed", "no such folder of a run", "no such folder of a study")
            assert str(problem).startswith(tuple(f"error: {field}={value}: {w}; " for w in wrong))
            assert str(problem).endswith(f"; correct {field}")


# Of each field what is allowed, and what is not.
EDGES: dict[str, tuple[list[Any], list[Any]]] = {
    "amp.growth_factor": ([1.5], [1.0]),
    "amp.backoff_factor": ([0.5], [0.0, 1.0]),  # torch's GradScaler insists
    "optimizer.lr": ([], [0]), "optimizer.weight_decay": ([0], []),
    "epochs": ([0], []), "batch_size": ([], [0]), "max_steps": ([None], []),
    "threads": (["auto"], [None, 1025]), "checkpoint.keep": ([2], [1]),
    "ema": ([], [1.0]), "patience": ([], [0]), "launch.timeout": ([], [1e300]),
    "study.time_budget": ([], [1e308]), "study.turn": ([], [1e308]),
    "study.turns": ([100_000], [1, 100_001]), "study.rounds": ([100_000], [100_001]),
    "study.ask": ([["time"]], [["speed"]]),
    "dataset.root": ([], [" ", 5]),
    "dataset.shape": (
        [[8, 8], [[3], []], {"ids": [8]}], [{"ids": "8"}, [[8], 3], {}, [1, 8, 0]]
    ),
    "dataset.mean": ([], [[math.nan], []]), "dataset.std": ([[0.5, 2]], [[0.5, 0]]),
}  # fmt: skip


def test_the_edges_of_what_a_field_may_be():
    for field, (good, bad) in EDGES.items():
        known = {field.partition(".")[0]}
        assert [value for value in good if problems(nested(field, value), known)] == [], field
        assert [value for value in bad if not problems(nested(field, value), known)] == [], field


ROOT = Path(__file__).parents[2]


# All of a job


def test_all_problems_are_told_at_once():
    job = {"seed": -1, "epochs": True, "extra": 1, "amp": {"scaler": 1, "dtype": "int8"}}
    found = problems(job, {"seed", "epochs", "amp"})
    fields = {str(problem).split("=")[0].removeprefix("error: ") for problem in found}
    assert fields == {"seed", "epochs", "extra", "amp.scaler", "amp.dtype"}
    assert {problem.code for problem in found} == {2}


def test_a_group_that_is_left_out_has_no_problems():
    assert problems({"optimizer": None, "amp": {}}, {"optimizer", "amp"}) == []


def test_the_keys_of_an_option_are_those_in_its_file_and_in_those_that_it_extends():
    inner = inner_keys({"amp": "fp32", "dataset": "digits"}, False)
    assert inner["amp"] == set(OmegaConf.load(ROOT / "conf" / "amp" / "autocast.yaml"))
    assert inner["dataset"] == set(OmegaConf.load(ROOT / "conf" / "dataset" / "digits.yaml"))
    assert inner["clock"] == {"warmup", "sample"}
    assert "model" not in inner


def test_what_is_required_and_not_there_is_told():
    required = ["epochs", "clock", "clock.warmup", "checkpoint.keep"]
    found = problems({"checkpoint": {}}, {"checkpoint"}, required=required)
    fields = [str(problem).split("=")[0] for problem in found]
    assert fields == ["error: epochs", "error: clock", "error: checkpoint.keep"]


def test_a_folder_to_resume_that_is_not_there_is_said_to_be_missing():
    for field, what in (("resume", "run"), ("study.resume", "study")):
        (failure,) = breach(field, "outputs/nowhere")
        said = f"{field}=outputs/nowhere: no such folder of a {what}; "
        assert str(failure).removeprefix("error: ").startswith(said)
