"""Types of values: what each accepts, and the words in which it says so."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest

from ninefold.types import (
    Count,
    Device,
    DeviceList,
    GpuNumbers,
    NotNegative,
    ParameterGroups,
    Positive,
    RunFolder,
    Whole,
    accepts,
    allowed,
)

NOT_NUMBERS = (True, False, None, "1", "", [1], {"a": 1}, math.nan, math.inf, -math.inf)


WITH_NULL, WITH_AUTO = Count | None, Count | Literal["auto"]


@pytest.mark.parametrize(("kind", "least"), [(Whole, 0), (Count, 1)])
def test_a_whole_number_starts_at_its_least_and_is_nothing_else(kind: Any, least: int) -> None:
    allows = [accepts(kind, least + offset) for offset in (-1, 0, 1, 10**9)]
    assert allows == [False, True, True, True]
    assert not any(accepts(kind, value) for value in (*NOT_NUMBERS, 1.0, 1.5))
    assert allowed(kind) == f"a whole number of at least {least} is allowed"


def test_a_whole_number_may_have_an_alternative() -> None:
    assert accepts(WITH_NULL, None)
    assert accepts(WITH_AUTO, "auto")
    for kind in (WITH_NULL, WITH_AUTO):
        assert not any(accepts(kind, value) for value in (True, False, "Auto", 0, "null"))
    assert allowed(WITH_NULL) == "a whole number of at least 1 is allowed, or null"
    assert allowed(WITH_AUTO) == "a whole number of at least 1 or auto is allowed"


def test_a_number_lies_above_its_bound() -> None:
    for value, fine in ((-1, False), (0, False), (0.0, False), (5e-324, True), (1, True)):
        assert accepts(Positive, value) is fine
    assert allowed(Positive) == "a number above 0 is allowed"
    assert allowed(Positive | None) == "a number above 0 is allowed, or null"


def test_an_inclusive_bound_is_allowed_itself() -> None:
    for value, fine in ((-5e-324, False), (0, True), (0.0, True), (1.5, True)):
        assert accepts(NotNegative, value) is fine
    assert allowed(NotNegative) == "a number of at least 0 is allowed"


@pytest.mark.parametrize("value", [*NOT_NUMBERS, 10**400])
def test_a_number_is_finite_and_nothing_else(value: Any) -> None:
    assert not accepts(Positive, value)
    assert not accepts(NotNegative, value)


def test_a_choice_is_one_of_its_own_type() -> None:
    assert accepts(bool, True)
    assert accepts(bool, False)
    assert not any(accepts(bool, value) for value in (1, 0, 1.0, "true", None, []))
    name = Literal["auto", "cpu"]
    assert accepts(name, "cpu")
    assert not any(accepts(name, value) for value in ("CPU", "", None, True, ["cpu"]))
    assert allowed(bool) == "true, false are allowed"
    assert allowed(name) == "auto, cpu are allowed"
    assert allowed(Literal["auto"] | bool | None) == "auto, true, false are allowed, or null"


def test_a_type_without_bounds_or_a_sentence_says_what_it_is() -> None:
    kinds = (int, float | None, str, list[int], dict[str, int] | Literal["auto"])
    assert list(map(allowed, kinds)) == [
        "a whole number is allowed",
        "a number is allowed, or null",
        "text is allowed",
        "a list is allowed",
        "a section or auto is allowed",
    ]


def test_a_run_folder_is_one_with_a_configuration(tmp_path: Any) -> None:
    assert accepts(RunFolder, None)
    for wrong in (str(tmp_path), str(tmp_path / "missing"), "name" * 1000, "a\0b"):
        assert not accepts(RunFolder, wrong)
    (tmp_path / "config.yaml").touch()
    assert accepts(RunFolder, str(tmp_path))


@pytest.mark.parametrize(
    ("value", "fine"),
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
def test_a_parameter_group_names_the_parameters_that_it_is_of(value: Any, fine: bool) -> None:
    assert accepts(ParameterGroups, value) is fine


@pytest.mark.parametrize("value", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_a_device_is_named_as_torch_names_it(value: str) -> None:
    assert accepts(Device, value)


@pytest.mark.parametrize(
    "value", ["gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:01", "cpu:0", "cpu\n", 1, None]
)
def test_what_is_no_device_is_refused(value: Any) -> None:
    assert not accepts(Device, value)
    assert allowed(Device) == "auto, cpu, cuda or cuda:NUMBER is allowed"


@pytest.mark.parametrize(
    ("value", "fine"),
    [([0, 2], True), ([3], True), (None, True), ([], False), ([0, 0], False), ([-1], False),
     ([True], False), ("0,2", False), (2, False), (["cuda:0"], False)],
)  # fmt: skip
def test_gpus_are_a_list_of_different_numbers(value: Any, fine: bool) -> None:
    assert accepts(GpuNumbers, value) == fine


@pytest.mark.parametrize(
    ("value", "fine"),
    [([0, 2], True), (["cpu", "cuda:0"], True), (["cpu", 3], True), ("auto", True), (None, True),
     ([], False), ([0, "cuda:0"], False), (["cpu", "cpu"], False), (["gpu"], False),
     ("cpu", False), ([True], False), (["cuda"], False), ([-1], False)],
)  # fmt: skip
def test_devices_are_a_list_of_different_names_and_numbers(value: Any, fine: bool) -> None:
    assert accepts(DeviceList, value) == fine
