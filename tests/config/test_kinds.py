"""Types of values: what each accepts, and the words in which it says so."""

from __future__ import annotations

import math
from typing import Any

import pytest
from jsonschema import Draft7Validator

from ninefold.config.kinds import (
    CALL,
    FLAG,
    NUMBERS,
    PARAMETER_GROUPS,
    RUN,
    SHAPE,
    TEXT,
    Kind,
    number,
    one_of,
    optional,
    whole,
)

NOT_NUMBERS = (True, False, None, "1", "", [1], {"a": 1}, math.nan, math.inf, -math.inf)


def allows(kind: Kind, value: Any) -> bool:
    return kind(value) is None


@pytest.mark.parametrize("least", [0, 1])
def test_a_whole_number_starts_at_its_least(least: int) -> None:
    kind = whole(least)
    assert [allows(kind, least + offset) for offset in (-1, 0, 1, 10**9)] == [
        False,
        True,
        True,
        True,
    ]
    assert kind(least - 1) == f"a whole number of at least {least} is allowed"


@pytest.mark.parametrize("value", [*NOT_NUMBERS, 1.0, 1.5])
def test_a_whole_number_is_nothing_else(value: Any) -> None:
    assert not allows(whole(0), value)
    assert not allows(whole(1), value)


def test_a_whole_number_may_have_an_alternative() -> None:
    assert allows(whole(1, otherwise=(None,)), None)
    assert allows(whole(1, otherwise=("auto",)), "auto")
    for value in (True, False, "Auto", 0, "null"):
        assert not allows(whole(1, otherwise=(None,)), value)
        assert not allows(whole(1, otherwise=("auto",)), value)
    assert whole(1, otherwise=(None,))(0) == "a whole number of at least 1 or null is allowed"
    assert whole(1, otherwise=("auto",))(0) == "a whole number of at least 1 or auto is allowed"


def test_true_is_not_an_alternative_that_equals_one() -> None:
    assert not allows(whole(5, otherwise=(1,)), True)
    assert allows(whole(5, otherwise=(1,)), 1)


def test_a_number_lies_above_its_bound() -> None:
    for value, fine in ((-1, False), (0, False), (0.0, False), (5e-324, True), (1, True)):
        assert allows(number(0), value) is fine
    assert number(0)(0) == "a number above 0 is allowed"


def test_an_inclusive_bound_is_allowed_itself() -> None:
    for value, fine in ((-5e-324, False), (0, True), (0.0, True), (1.5, True)):
        assert allows(number(0, inclusive=True), value) is fine
    assert number(0, inclusive=True)(-1) == "a number of at least 0 is allowed"


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_a_number_is_finite_and_nothing_else(value: Any) -> None:
    assert not allows(number(0), value)
    assert not allows(number(0, inclusive=True), value)


def test_a_number_may_be_too_large_for_a_float_without_breaking_the_check() -> None:
    assert number(0)(10**400) is None or "is allowed" in str(number(0)(10**400))


def test_a_choice_is_one_of_its_own_type() -> None:
    flag = one_of(True, False)
    assert allows(flag, True)
    assert allows(flag, False)
    assert not any(allows(flag, value) for value in (1, 0, 1.0, "true", None, []))
    name = one_of("auto", "cpu")
    assert allows(name, "cpu")
    assert not any(allows(name, value) for value in ("CPU", "", None, True, ["cpu"]))
    assert flag(1) == "true, false are allowed"
    assert name(None) == "auto, cpu are allowed"


def test_a_run_folder_is_one_with_a_configuration(tmp_path: Any) -> None:
    assert allows(RUN, None)
    assert not allows(RUN, str(tmp_path))
    assert not allows(RUN, str(tmp_path / "missing"))
    (tmp_path / "config.yaml").touch()
    assert allows(RUN, str(tmp_path))


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        (None, True),
        ([], True),
        ([{"match": "*.bias", "weight_decay": 0}], True),
        ([{"weight_decay": 0}], False),
        ([{"match": 5}], False),
        (["*.bias"], False),
        ({"match": "*.bias"}, False),
        ("*.bias", False),
    ],
    ids=str,
)
def test_a_parameter_group_names_the_parameters_that_it_is_of(value: Any, allowed: bool) -> None:
    assert allows(PARAMETER_GROUPS, value) is allowed


VALUES = (*NOT_NUMBERS, 0, 1, 2, 0.5, 7, -1, "auto", "a.b", [1, 2, 3], {"_target_": "a.b"})
EACH = [
    whole(1, most=5),
    whole(0, otherwise=(None, "auto")),
    number(0, below=1),
    number(0, inclusive=True),
    optional(number(0)),
    one_of("auto", "cpu"),
    FLAG,
    TEXT,
    SHAPE,
    NUMBERS,
    CALL,
    PARAMETER_GROUPS,
]


@pytest.mark.parametrize("kind", EACH, ids=lambda kind: kind.words)
def test_the_json_schema_of_a_type_refuses_nothing_that_the_type_accepts(kind: Kind) -> None:
    """An editor may accept more than a command, such as 2.0 for 2."""
    schema = Draft7Validator(kind.json)
    accepted = [value for value in VALUES if allows(kind, value)]
    assert accepted
    assert [value for value in accepted if not schema.is_valid(value)] == []
    refused = [value for value in VALUES if not schema.is_valid(value)]
    assert len(refused) > len(VALUES) / 3
