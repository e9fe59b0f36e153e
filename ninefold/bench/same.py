"""Whether commands compute the same: what their first steps recorded, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ninefold.bench.contestant import Command
from ninefold.diff.compare import Training, find
from ninefold.diff.kinds import sentence


class Same(NamedTuple):
    """How a command compares with the first. kind, step: of `ninefold diff`; steps: that both have.

    text: where they part, or how far apart they are.
    """

    kind: str
    step: int | None
    steps: int
    text: str


def same(commands: Sequence[Command], recorded: Mapping[str, Training]) -> dict[str, Same]:
    """Compare all commands that leave nothing out, and train in as many processes as the first.

    More processes take another batch. recorded: the first steps, by name.
    """
    first, *others = [command for command in commands if not command.leaves_out]
    names = [other.name for other in others if other.processes == first.processes]
    if first.name not in recorded:
        return {}
    one = recorded[first.name]
    return {name: compared(one, recorded[name]) for name in names if name in recorded}


def compared(one: Training, other: Training) -> Same:
    found = find(one, other)
    said = sentence(one, other, found)
    return Same(said.kind, found.first and found.first[0], found.steps, said.text)


def sentences(first: str, found: Mapping[str, Same]) -> Iterator[str]:
    """Yield what is known of each command against the first."""
    equal = dict[int, list[str]]()
    for name, this in found.items():
        if this.kind == "equal":
            equal.setdefault(this.steps, []).append(name)
        elif this.kind == "rounding":
            yield f"{name} computes what {first} does, but for rounding. {this.text}"
        else:
            yield f"{name} does not compute what {first} does. {this.text}"
    for steps, names in equal.items():
        does = f"compute{'s' * (len(names) == 1)} what {first} does"
        yield f"{', '.join(names)} {does} in the first {steps} steps, bit for bit."
