"""Types of values: what each accepts, and the words in which it says so."""

import math
from typing import Any, Literal

import pytest

from ninefold.types import (
    Call,
    Count,
    Device,
    GpuNumbers,
    NotNegative,
    ParameterGroups,
    Positive,
    RunFolder,
    Whole,
    accepts,
    allowed,
)

NO_NUMBERS = (True, False, None, "1", "", [1], {"a": 1}, math.nan, math.inf, -math.inf)
WHOLE = "a whole number of at least"
# Of each type what it accepts, what it refuses, and the beginning of what it says.
TYPES: list[tuple[Any, tuple[Any, ...], tuple[Any, ...], str]] = [
    (Whole, (0, 1, 10**9), (-1, 1.0, 1.5, *NO_NUMBERS), f"{WHOLE} 0 is allowed"),
    (Count, (1, 2, 10**9), (0, 1.0, 1.5, *NO_NUMBERS), f"{WHOLE} 1 is allowed"),
    (Count | None, (None, 1), (True, "Auto", 0, "null"), f"{WHOLE} 1 is allowed, or null"),
    (Count | Literal["auto"], ("auto", 1), (True, None, 0), f"{WHOLE} 1 or auto is allowed"),
    (Positive, (5e-324, 1), (-1, 0, 0.0, 10**400, *NO_NUMBERS), "a number above 0 is allowed"),
    (NotNegative, (0, 0.0, 1.5), (-5e-324, 10**400, *NO_NUMBERS), "a number of at least 0 is"),
    (bool, (True, False), (1, 0, 1.0, "true", None, []), "true, false are allowed"),
    (Literal["auto", "cpu"], ("cpu",), ("CPU", "", None, True, ["cpu"]), "auto, cpu are allowed"),
    (Literal["auto"] | bool | None, (None, "auto"), (1,), "auto, true, false are allowed, or null"),
    (int, (1,), (1.5,), "a whole number is allowed"),
    (float | None, (1.5, None), ("1",), "a number is allowed, or null"),
    (str, ("x",), (1,), "text is allowed"),
    (list[int], ([1],), (["x"],), "a list is allowed"),
    (dict[str, float], ({"a": 1},), ({"a": math.nan}, {"a": -math.inf}), "a section is allowed"),
    (list[list[float]], ([[1.5]],), ([[1.5, math.inf]],), "a list is allowed"),
    (Call, ({"_target_": "a.b", "fill": math.nan},), ({"fill": 1},), "a section with a _target_"),
    (dict[str, int] | Literal["auto"], ({"a": 1},), ("x",), "a section or auto is allowed"),
    (ParameterGroups, (None, [], [{"match": "*.bias", "weight_decay": 0}]),
     ([{"weight_decay": 0}], [{"match": 5}], ["*.bias"], {"match": "*.bias"}, "*.bias"),
     "a list of {match: PATTERN, option: value}"),
    (Device, ("auto", "cpu", "cuda", "cuda:0", "cuda:12"),
     ("gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:01", "cpu:0", "cpu\n", 1, None),
     "auto, cpu, cuda or cuda:NUMBER is allowed"),
    (GpuNumbers, ([0, 2], [3], None), ([], [0, 0], [-1], [True], "0,2", 2, ["cuda:0"]),
     "a list of different GPU numbers"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "good", "bad", "said"), TYPES, ids=[f"{n} {row[3]}" for n, row in enumerate(TYPES)]
)
def test_a_type_accepts_what_it_says_and_nothing_else(kind, good, bad, said):
    assert [value for value in good if not accepts(kind, value)] == []
    assert [value for value in bad if accepts(kind, value)] == []
    assert allowed(kind).startswith(said)


def test_a_run_folder_is_one_with_a_configuration(tmp_path):
    assert accepts(RunFolder, None)
    for wrong in (str(tmp_path), str(tmp_path / "missing"), "name" * 1000, "a\0b"):
        assert not accepts(RunFolder, wrong)
    (tmp_path / "config.yaml").touch()
    assert accepts(RunFolder, str(tmp_path))
