"""What a change does to a command without an edit, and what the first step shows of it.

The changes themselves stand in `precisions`, `strategies` and `changes`; what the hook does for one
stands under its name in inject/ninefold_bench_changes.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ninefold.bench.messages import Hello, Script
from ninefold.errors import ConfigError


class Axis(NamedTuple):
    """What commands are compared in by an option.

    option: that names the changes. choice: of a script that makes it itself. does: what commands do
    in a value of it.
    """

    option: str
    choice: str
    does: str


class Seen(NamedTuple):
    """What the first step shows of a change.

    took: whether it took effect, as far as that is known. value: what the command does it in; None:
    not known. told: the same for a sentence; ending: of that sentence. allowed, do: of the error if
    it took no effect; wrong: of that error, where it is not the script that chooses.
    """

    took: bool
    value: str | None
    told: str
    allowed: str
    do: str
    wrong: str | None = None
    ending: str = ""


@dataclass(frozen=True)
class Change:
    """A change of how a command trains, made from outside.

    name: by which the hook knows what it has to do in the command. axis: of the option that
    compares several such; None: none does. launch: returns the line that starts it, from the
    command's own. variables: of its environment. processes: that train then; None: as many as
    without it. leaves_out: whether a part of a step is left out, so that other weights come of it.
    unavailable: returns why a script cannot use it, None if it can. took_effect: returns what the
    first step shows of it, by what each rank has said; None where nothing does, as of what the hook
    does all by itself.

    For --try. does: the beginning of a sentence on it. line: the code to write, in_framework: the
    code for users of a framework, by its module. where: the key of Script that has the line to
    change. alters: whether it changes the results of rounding.
    """

    name: str
    axis: Axis | None = None
    launch: Callable[[str], str] = str
    variables: Mapping[str, str] = field(default_factory=dict)
    processes: int | None = None
    leaves_out: bool = False
    unavailable: Callable[[Script], str | None] = lambda script: None
    took_effect: Callable[[Sequence[Hello]], Seen | None] = lambda ranks: None
    does: str = ""
    line: str = ""
    in_framework: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    alters: bool = False

    @property
    def kind(self) -> str:
        """What it changes; its name says to what."""
        return self.name.partition("=")[0]


Changes = Mapping[str, Sequence[Change]]  # by the name of the command
Hellos = Mapping[str, Sequence[Hello]]  # the same: what each rank has said after its first step


def seen(changes: Changes, hellos: Hellos) -> Mapping[Axis, list[tuple[str, Seen]]]:
    """What the first step shows of changes, with their names, by axis."""
    by_axis = defaultdict[Axis, list[tuple[str, Seen]]](list)
    for command, made in changes.items():
        for change in made:
            effect = change.took_effect(hellos[command]) if command in hellos else None
            if change.axis is not None and effect is not None:
                by_axis[change.axis].append((change.name, effect))
    return by_axis


def require_effect(changes: Changes, hellos: Hellos) -> None:
    """Raise ConfigError unless each change took effect, as far as that is known.

    Whether a script chooses for itself is asked once all commands have said what they do.
    """
    all_said = changes.keys() <= hellos.keys()
    for axis, effects in seen(changes, hellos).items():
        compared = [each for of in changes.values() for each in of if each.axis == axis]
        names = dict.fromkeys(each.name for each in compared)
        values = {each.value for _, each in effects} - {None}
        for name, each in effects:
            if each.took or not (all_said or each.wrong):
                continue
            wrong, allowed = each.wrong, each.allowed
            if wrong is None and len(values) == 1 and len(names) > 1:
                wrong = f"the script sets its {axis.choice} itself: the commands do not differ"
                allowed = f"all {axis.does} in {each.value}"
            wrong = wrong or f"{name} {axis.does}s in {each.value}"
            raise ConfigError(axis.option, ",".join(names), wrong, allowed, each.do)


def sentences(changes: Changes, hellos: Hellos) -> Iterator[str]:
    """What the first step showed of the changes, in a line for each axis."""
    for effects in seen(changes, hellos).values():
        parts = dict.fromkeys(f"{name} in {each.told}" for name, each in effects)
        yield f"Seen in the first step: {', '.join(parts)}{effects[0][1].ending}."
