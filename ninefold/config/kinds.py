"""Types of configuration values: which values a key accepts, in words and as JSON Schema."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninefold.machine import gpu_number


@dataclass(frozen=True)
class Kind:
    """The values that a key accepts.

    allowed: a sentence for error lines, such as "a number above 0 is allowed".
    accepts: whether a resolved value is allowed.
    json: the same as JSON Schema, as far as that can express it.
    """

    allowed: str
    accepts: Callable[[Any], bool]
    json: Mapping[str, Any]

    def __call__(self, value: Any) -> str | None:
        """Return what is allowed if `value` is not."""
        return None if self.accepts(value) else self.allowed

    @property
    def words(self) -> str:
        """What is allowed, as a phrase for a table."""
        return re.sub(r",? (is|are) allowed", "", self.allowed)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole(least: int, *, most: float = math.inf, otherwise: tuple[Any, ...] = ()) -> Kind:
    """An integer from `least` to `most`, or one of the values in `otherwise`."""

    def accepts(value: Any) -> bool:
        # 1 == True in Python: `in` alone would accept booleans
        if any(value is other or value == other for other in otherwise if value is not True):
            return True
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    upper = "" if most == math.inf else f" and at most {most}"
    also = "".join(f" or {'null' if value is None else value}" for value in otherwise)
    json: dict[str, Any] = {"type": "integer", "minimum": least}
    if most != math.inf:
        json["maximum"] = most
    if otherwise:
        json = {"anyOf": [json, {"enum": list(otherwise)}]}
    return Kind(f"a whole number of at least {least}{upper}{also} is allowed", accepts, json)


def number(
    above: float, *, inclusive: bool = False, below: float = math.inf, most: float = math.inf
) -> Kind:
    """A finite number above `above`, or equal if `inclusive`, below `below`, at most `most`."""

    def accepts(value: Any) -> bool:
        low = _is_number(value) and (above < value or (inclusive and value == above))
        return low and value < below and value <= most

    upper = "" if below == math.inf else f" and below {below:g}"
    upper += "" if most == math.inf else f" and of at most {most:g}"
    json: dict[str, Any] = {"type": "number", "minimum" if inclusive else "exclusiveMinimum": above}
    if below != math.inf:
        json["exclusiveMaximum"] = below
    if most != math.inf:
        json["maximum"] = most
    lower = f"{'of at least' if inclusive else 'above'} {above:g}"
    return Kind(f"a number {lower}{upper} is allowed", accepts, json)


def optional(kind: Kind) -> Kind:
    """What `kind` accepts, or null."""
    return Kind(
        f"{kind.allowed}, or null",
        lambda value: value is None or kind.accepts(value),
        {"anyOf": [kind.json, {"type": "null"}]},
    )


def one_of(*choices: Any) -> Kind:
    """One of `choices`."""

    def accepts(value: Any) -> bool:
        return any(
            value is choice or (value == choice and type(value) is type(choice))
            for choice in choices
        )

    names = ", ".join("null" if each is None else str(each).lower() for each in choices)
    return Kind(f"{names} are allowed", accepts, {"enum": list(choices)})


def _is_target(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", value))


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) in (3, 4) and all(map(whole(1).accepts, value))


def _is_numbers(value: Any) -> bool:
    filled = isinstance(value, list) and bool(value)
    return value is None or (filled and all(_is_number(v) and abs(v) < math.inf for v in value))


def _is_groups(value: Any) -> bool:
    return value is None or (
        isinstance(value, list)
        and all(isinstance(each, Mapping) and isinstance(each.get("match"), str) for each in value)
    )


def _are_devices(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    named = [isinstance(each, str) and bool(re.fullmatch(LISTED, each)) for each in value]
    if not all(name or whole(0).accepts(each) for name, each in zip(named, value, strict=True)):
        return False
    return len(set(map(gpu_number, value))) == len(value)


def _are_modules(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    known = all(each != "" if isinstance(each, str) else whole(0).accepts(each) for each in value)
    return known and len(set(map(str, value))) == len(value)


def _is_run(value: Any) -> bool:
    return value is None or value == "auto" or (Path(str(value)) / "config.yaml").is_file()


def _is_study(value: Any) -> bool:
    return value is None or (Path(str(value)) / "sweep.json").is_file()


DEVICES = r"(auto|cpu|cuda(:(0|[1-9][0-9]{0,3}))?)"
LISTED = r"(cpu|cuda:(0|[1-9][0-9]{0,3}))"  # a device in a list, which may also be a GPU's number
TEXT_OR_NULL: Mapping[str, Any] = {"type": ["string", "null"]}
FLAG = Kind("true, false are allowed", one_of(True, False).accepts, {"type": "boolean"})
TEXT = Kind(
    "text or null is allowed",
    lambda value: value is None or (isinstance(value, str) and bool(value.strip())),
    TEXT_OR_NULL,
)
SHAPE = Kind(
    "[channels, height, width] or [channels, depth, height, width], whole numbers of at least 1, "
    "is allowed",
    _is_shape,
    {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 3, "maxItems": 4},
)
NUMBERS = Kind(
    "a list of numbers, one for each channel, or null is allowed",
    _is_numbers,
    {"anyOf": [{"type": "array", "items": {"type": "number"}, "minItems": 1}, {"type": "null"}]},
)
POSITIVE = Kind(
    "a list of numbers above 0, one for each channel, or null is allowed",
    lambda value: _is_numbers(value) and (value is None or min(value) > 0),
    {
        "anyOf": [
            {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0}, "minItems": 1},
            {"type": "null"},
        ]
    },
)
SPACING = Kind(
    "three numbers above 0, for z, y and x, are allowed",
    lambda value: (
        isinstance(value, list) and len(value) == 3 and all(map(number(0).accepts, value))
    ),
    {
        "type": "array",
        "items": {"type": "number", "exclusiveMinimum": 0},
        "minItems": 3,
        "maxItems": 3,
    },
)
WINDOW = Kind(
    "[low, high] with low below high, or null, is allowed",
    lambda value: value is None or (_is_numbers(value) and len(value) == 2 and value[0] < value[1]),
    {
        "anyOf": [
            {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
            {"type": "null"},
        ]
    },
)
NAMES = Kind(
    "a list of names, or null is allowed",
    lambda value: (
        value is None or (isinstance(value, list) and all(isinstance(each, str) for each in value))
    ),
    {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
)
UNITS = Kind(
    "auto or a list of names is allowed",
    lambda value: (
        value == "auto"
        or (isinstance(value, list) and all(isinstance(each, str) for each in value))
    ),
    {"anyOf": [{"enum": ["auto"]}, {"type": "array", "items": {"type": "string"}}]},
)
STRING = Kind("text is allowed", lambda value: isinstance(value, str), {"type": "string"})
GRAY_LEVELS = Kind(
    "a list of different whole numbers from 0 to 65535, or null is allowed",
    lambda value: (
        value is None
        or (
            isinstance(value, list)
            and bool(value)
            and all(map(whole(0, most=65535).accepts, value))
            and len(set(value)) == len(value)
        )
    ),
    {
        "anyOf": [
            {
                "type": "array",
                "items": {"type": "integer", "minimum": 0, "maximum": 65535},
                "minItems": 1,
                "uniqueItems": True,
            },
            {"type": "null"},
        ]
    },
)
PATH = Kind(
    "the path of a folder or a file is allowed",
    lambda value: not isinstance(value, list | Mapping),
    {"type": "string"},
)
TARGET = Kind(
    "the dotted name of a class or a function is allowed",
    _is_target,
    {"type": "string", "pattern": r"^\w+(\.\w+)+$"},
)
CALL = Kind(
    "a section with a _target_ in it, the dotted name of what to call, is allowed",
    lambda value: isinstance(value, Mapping) and _is_target(value.get("_target_")),
    {"type": "object", "properties": {"_target_": TARGET.json}},
)
LOSS = Kind(
    "a loss that the task knows by name, a section with a _target_ in it, or null is allowed",
    lambda value: value is None or (isinstance(value, str) and bool(value)) or CALL.accepts(value),
    {"anyOf": [{"type": ["string", "null"]}, CALL.json]},
)
SPLIT = Kind(
    "the name of a split, a section with a _target_ in it, or null is allowed",
    lambda value: value is None or (isinstance(value, str) and bool(value)) or CALL.accepts(value),
    {"anyOf": [{"type": ["string", "null"]}, CALL.json]},
)
DEVICE = Kind(
    "auto, cpu, cuda or cuda:NUMBER is allowed",
    lambda value: isinstance(value, str) and bool(re.fullmatch(DEVICES, value)),
    {"type": "string", "pattern": f"^{DEVICES}$"},
)
GPU_NUMBERS = Kind(
    "a list of different GPU numbers such as [0,2], or null is allowed",
    lambda value: (
        value is None
        or (
            isinstance(value, list)
            and bool(value)
            and all(map(whole(0).accepts, value))
            and len(set(value)) == len(value)
        )
    ),
    {
        "anyOf": [
            {
                "type": "array",
                "items": {"type": "integer", "minimum": 0},
                "minItems": 1,
                "uniqueItems": True,
            },
            {"type": "null"},
        ]
    },
)
DEVICE_LIST = Kind(
    "auto, null, or a list of different devices such as [0,2] or [cpu,cuda:0], is allowed",
    lambda value: value is None or value == "auto" or _are_devices(value),
    {
        "anyOf": [
            {
                "type": "array",
                "items": {
                    "anyOf": [
                        {"type": "integer", "minimum": 0},
                        {"type": "string", "pattern": f"^{LISTED}$"},
                    ]
                },
                "minItems": 1,
                "uniqueItems": True,
            },
            {"enum": ["auto", None]},
        ]
    },
)
CUTS = Kind(
    "a list of different names of modules such as [layer3], or auto, is allowed",
    lambda value: value == "auto" or _are_modules(value),
    {
        "anyOf": [
            {
                "type": "array",
                "items": {"type": ["string", "integer"]},
                "minItems": 1,
                "uniqueItems": True,
            },
            {"enum": ["auto"]},
        ]
    },
)
PARAMETER_GROUPS = Kind(
    "a list of {match: PATTERN, option: value}, or null is allowed",
    _is_groups,
    {
        "anyOf": [
            {"type": "array", "items": {"type": "object", "required": ["match"]}},
            {"type": "null"},
        ]
    },
)
PART = Kind(
    "a key, an index or null is allowed",
    lambda value: value is None or (isinstance(value, int | str) and not isinstance(value, bool)),
    {"type": ["string", "integer", "null"]},
)
RUN = Kind("auto, or a folder with a config.yaml in it, is allowed", _is_run, TEXT_OR_NULL)
STUDY = Kind("a folder with a sweep.json in it is allowed", _is_study, TEXT_OR_NULL)
SECTION = Kind(
    "KEY.NAME=value is allowed", lambda value: isinstance(value, Mapping), {"type": "object"}
)
QUESTIONS = Kind(
    "[time], [accuracy], [time, accuracy] or null is allowed",
    lambda value: value is None or value in (["time"], ["accuracy"], ["time", "accuracy"]),
    {"enum": [None, ["time"], ["accuracy"], ["time", "accuracy"]]},
)
