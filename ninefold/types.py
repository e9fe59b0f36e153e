"""Types of configuration values, with their bounds: what a key accepts.

A type is an annotation for msgspec, and in `Annotated` a sentence (Allowed) or a check (If).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypedDict, Union, get_args, get_origin

import msgspec
from msgspec import Meta


class Section(msgspec.Struct):
    """Keys of a configuration by name. The sentence of each for users stands below it."""


# Marks of a key, in `Annotated`; on a section they hold for all of its keys.
MAY_CHANGE = "a resumed run may have another value"
NO_EFFECT = "it cannot change a figure of the run"


@dataclass(frozen=True)
class Allowed:
    """The sentence of a type for error lines; numbers and choices need none."""

    sentence: str


@dataclass(frozen=True)
class If:
    """A check of the values that are of a type. wrong: what an error line says of the others."""

    holds: Callable[[Any], bool]
    wrong: str = "not allowed"


def accepts(kind: Any, value: Any) -> bool:
    """Whether the type `kind` allows `value`, which is of YAML."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    holds = (mark.holds(value) for mark in get_args(kind) if isinstance(mark, If))
    return is_finite(value) and all(holds)


def is_finite(value: Any) -> bool:
    """Whether no number in it is nan or infinite. Arguments of what a _target_ names may be."""
    if isinstance(value, dict):
        return "_target_" in value or all(map(is_finite, value.values()))
    if isinstance(value, list):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def wrong(kind: Any) -> str:
    """What is wrong with a value that the type `kind` does not accept."""
    marks = get_args(kind) if get_origin(kind) is Annotated else ()
    return next((mark.wrong for mark in marks if isinstance(mark, If)), If.wrong)


def allowed(kind: Any) -> str:
    """What the type `kind` allows, such as "a number above 0 is allowed, or null"."""
    kind, *marks = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    for mark in marks:
        if isinstance(mark, Allowed):
            return mark.sentence
    if kind in (int, float):
        bounds = next((mark for mark in marks if isinstance(mark, Meta)), Meta())
        return f"{_number(kind, bounds)} is allowed"
    if (plain := get_origin(kind) or kind) in PLAIN:
        return f"{PLAIN[plain]} is allowed"
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    choices = [choice for member in members for choice in _choices(member)]
    others = [each for each in members if each is not NoneType and not _choices(each)]
    if others:
        also = "".join(f" or {choice}" for choice in choices)
        sentence = re.sub(r"(?= (is|are) allowed$)", also, allowed(others[0]))
    else:
        sentence = f"{', '.join(choices)} {'are' if len(choices) > 1 else 'is'} allowed"
    return f"{sentence}, or null" if NoneType in members else sentence


def words(kind: Any) -> str:
    """What the type `kind` allows, as a phrase for a table."""
    return re.sub(r",? (is|are) allowed", "", allowed(kind))


def spelled(value: Any) -> Any:
    """`value` as spelled in YAML and on the command line, for error lines."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(str(spelled(each)) for each in value)}]"
    return value


PLAIN = {str: "text", list: "a list", dict: "a section"}


def _choices(kind: Any) -> list[str]:
    if kind is bool:
        return ["true", "false"]
    return list(get_args(kind)) if get_origin(kind) is Literal else []


def _number(kind: type, bounds: Meta) -> str:
    low = "" if bounds.ge is None else f" of at least {bounds.ge:g}"
    low = low if bounds.gt is None else f" above {bounds.gt:g}"
    if kind is int:
        return f"a whole number{low}" + ("" if bounds.le is None else f" and at most {bounds.le}")
    high = "" if bounds.lt is None else f" and below {bounds.lt:g}"
    high = high if bounds.le is None else f" and of at most {bounds.le:g}"
    return f"a number{low}{high}"


def is_shape(value: Any) -> bool:
    """Whether `value` is the shape of an array, or a list or a dict of shapes."""
    if isinstance(value, dict):
        return bool(value) and all(map(is_shape, value.values()))
    if not isinstance(value, list):
        return False
    if value and not any(isinstance(each, int) for each in value):
        return all(map(is_shape, value))
    return all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in value)


def different(values: Any) -> bool:
    """Whether no value occurs twice, if it is a list."""
    return not isinstance(values, list) or len(set(map(str, values))) == len(values)


def _holds(folder: Any, file: str) -> bool:
    """Whether a folder, if one is given, has this file."""
    return folder is None or os.path.isfile(f"{folder}/{file}")


# Numbers
Whole = Annotated[int, Meta(ge=0)]
Workers = Annotated[int, Meta(ge=0, le=128)]
Count = Annotated[int, Meta(ge=1)]
# Each process is handed three descriptors for each of them at most, and four others, and Linux
# passes on 253 at a time (SCM_MAX_FD).
MAX_PROCESSES = (253 - 4) // 3
Processes = Annotated[int, Meta(ge=1, le=MAX_PROCESSES)]
AtLeast2 = Annotated[int, Meta(ge=2)]
Seed = Annotated[int, Meta(ge=0, le=2**32 - 1)]
NotNegative = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
AboveOne = Annotated[float, Meta(gt=1)]
Fraction = Annotated[float, Meta(gt=0, lt=1)]
FractionOrZero = Annotated[float, Meta(ge=0, lt=1)]
MAX_TIME = 10**8  # seconds, or minutes: a timedelta and a timer take no more
Duration = Annotated[float, Meta(gt=0, lt=MAX_TIME)]
LEAST_ROUNDS = 3  # that a pair of times has in common before anything is told of it
SEEDS = (3, 5, 8, 12, 20)  # after which `bench --score` sees whether scores are decided
# Of a sweep, and of a configuration in a round: listing more fills the memory.
MAX_RUNS = MAX_TURNS = 100_000
Rounds = Annotated[int, Meta(ge=1, le=MAX_RUNS)]
Turns = Annotated[int, Meta(ge=2, le=MAX_TURNS)]
ClassNumber = Annotated[int, Meta(ge=0, le=32767)]  # what a mask can hold, or none

# Text
Filled = Annotated[str, Meta(min_length=1)]
Text = Annotated[Annotated[str, Meta(pattern=r"\S")] | None, Allowed("text or null is allowed")]
String = Annotated[str, Allowed("text is allowed")]
Folder = Annotated[Filled, Allowed("a folder is allowed")]
Names = Annotated[list[str] | None, Allowed("a list of names, or null is allowed")]
Key = str | int
ItemKeys = Annotated[
    Annotated[list[Key | list[Key]], Meta(min_length=1, max_length=2)] | None,
    Allowed(
        "the keys of input and target, such as [image,label] or [[ids,mask],label], their places "
        "in a tuple, such as [[0,1],2], those of an input alone, or null is allowed"
    ),
    If(lambda value: value is None or not any(part in ("", []) for part in value)),
]
Units = Annotated[Literal["auto"] | list[str], Allowed("auto or a list of names is allowed")]
FloatDtype = Literal["float32", "bfloat16", "float16"]
AnyPath = Annotated[  # whatever YAML makes of its name
    str | float | bool | None, Allowed("the path of a folder or a file is allowed")
]
RunFolder = Annotated[
    str | float | None,
    Allowed("auto, or an existing folder with a config.yaml in it, is allowed"),
    If(lambda value: value == "auto" or _holds(value, "config.yaml"), "no such folder of a run"),
]
StudyFolder = Annotated[
    str | float | None,
    Allowed("an existing folder with a sweep.json in it is allowed"),
    If(lambda value: _holds(value, "sweep.json"), "no such folder of a study"),
]

# Lists
Shape = Annotated[
    list[Any] | dict[str, Any] | None,
    Allowed(
        "[channels, height, width], [length] or any other shape of whole numbers of at least 1, a "
        "list or a dict of shapes for several inputs, or null, is allowed"
    ),
    If(lambda value: value is None or is_shape(value)),
]
Numbers = Annotated[
    Annotated[list[float], Meta(min_length=1)] | None,
    Allowed("a list of numbers, one for each channel, or null is allowed"),
]
Positives = Annotated[
    Annotated[list[Positive], Meta(min_length=1)] | None,
    Allowed("a list of numbers above 0, one for each channel, or null is allowed"),
]
GrayLevels = Annotated[
    Annotated[list[Annotated[int, Meta(ge=0, le=65535)]], Meta(min_length=1)] | None,
    Allowed("a list of different whole numbers from 0 to 65535, or null is allowed"),
    If(different),
]
Questions = Annotated[
    list[Literal["time", "score"]] | None,
    Allowed("[time], [score], [time, score] or null is allowed"),
    If(lambda value: value in (None, ["time"], ["score"], ["time", "score"])),
]

# Devices
DEVICES = r"^(auto|cpu|cuda(:(0|[1-9][0-9]{0,3}))?)(?!\n)$"
Device = Annotated[str, Meta(pattern=DEVICES), Allowed("auto, cpu, cuda or cuda:NUMBER is allowed")]
GpuNumbers = Annotated[
    Annotated[list[Whole], Meta(min_length=1)] | None,
    Allowed("a list of different GPU numbers such as [0,2], or null is allowed"),
    If(different),
]
Part = Annotated[str | int | None, Allowed("a key, an index or null is allowed")]

# What is called
Target = Annotated[
    str,
    Meta(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)+(?!\n)$"),
    Allowed("the dotted name of a class or a function is allowed"),
]


class OptionKeys(Section, kw_only=True):
    """What an object is built from."""

    _target_: Target
    """Dotted name of the class or function to call."""


class Called(TypedDict):
    _target_: Target


Call = Annotated[
    Called,
    Allowed("a section with a _target_ in it, the dotted name of what to call, is allowed"),
]
Loss = Annotated[
    Filled | Called | None,
    Allowed(
        "a loss that the task knows by name, a section with a _target_ in it, or null is allowed"
    ),
]
SplitName = Annotated[
    Filled | Called | None,
    Allowed("the name of a split, a section with a _target_ in it, or null is allowed"),
]


class ParameterGroup(TypedDict):
    match: str


ParameterGroups = Annotated[
    list[ParameterGroup] | None,
    Allowed("a list of {match: PATTERN, option: value}, or null is allowed"),
]
