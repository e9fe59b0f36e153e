"""Whether commands compute the same: some of their weights after the first steps, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ninefold.bench.contestant import Command

ALIKE = 3.0  # a difference below so many times that of two starts of one command proves nothing
ROUNDING = 0.01  # share of what weights have changed, below which two trainings are the same one
FAR = 1e6  # the largest share that is told, also where weights are no numbers or have not moved
Weights: TypeAlias = Mapping[int, npt.NDArray[np.float64]]  # by how many steps came before


class Apart(NamedTuple):
    """How two trainings differ.

    last: the last step that both have shown. first: the first after which their weights differ;
    None: they are equal. share: how far they are apart after `last`, as a share of how far the
    first training has moved since the first step that is known.
    """

    last: int
    first: int | None
    share: float


def apart(one: Weights, other: Weights, until: float = np.inf) -> Apart | None:
    """Return how the weights of two trainings differ; None where they cannot be compared.

    until: the last step that is looked at. Steps after which neither has numbers show nothing.
    """
    both = sorted(step for step in one.keys() & other.keys() if step <= until)
    steps = [n for n in both if np.isfinite(one[n]).all() or np.isfinite(other[n]).all()]
    if len(steps) < 2 or len({of[n].shape for n in steps for of in (one, other)}) > 1:
        return None
    differ = [n for n in steps if not np.array_equal(one[n], other[n], equal_nan=True)]
    begin, last = steps[0], steps[-1]
    with np.errstate(all="ignore"):
        moved = float(np.linalg.norm(one[last] - one[begin]))
        between = float(np.linalg.norm(other[last] - one[last]))
        if not differ and moved == 0:
            return None  # nothing that is seen is trained so far
        share = between / moved if moved > 0 else FAR
        return Apart(last, differ[0] if differ else None, share if share < FAR else FAR)


class Same(NamedTuple):
    """How commands compare with the first, by name, and how two starts of the first compare."""

    others: Mapping[str, Apart]
    spread: Apart | None


def same(commands: Sequence[Command], weights: Mapping[str, Mapping[int, Weights]]) -> Same:
    """Compare all commands that leave nothing out, and train in as many processes as the first.

    More processes take another batch. weights: by name and round.
    """
    first, *others = [command for command in commands if command.twin is None]
    others = [other for other in others if other.processes == first.processes]
    own, found = weights.get(first.name, {}), dict[str, Apart]()
    again = [] if "{seed}" in first.text else [*pairwise(own[number] for number in sorted(own))]
    starts = [each for pair in again if (each := apart(*pair)) is not None]
    spread = starts[0] if starts else None
    until = np.inf if spread is None or spread.first is None else spread.last
    for name in [other.name for other in others]:
        of = weights.get(name, {})
        rounds = sorted(own.keys() & of.keys())
        known = [apart(own[number], of[number], until) for number in rounds]
        if shown := [each for each in known if each is not None]:
            found[name] = shown[0]
    return Same(found, spread)


def sentences(first: str, found: Same) -> Iterator[str]:
    """Yield what is known of each command against the first."""
    spread, said, unknown = found.spread, dict[str, list[str]](), dict[str, list[str]]()
    own = spread.share if spread is not None and spread.first is not None else 0.0
    for name, this in found.others.items():
        by = f"after {this.last} steps their weights differ by {_percent(this.share)} of what "
        by += f"{first}'s have changed"
        starts = f"those of two starts of {first} by {_percent(own) if own else 'nothing'}"
        if this.first is None:
            end = f"what {first} does in the first {this.last} steps, bit for bit"
            said.setdefault(end, []).append(name)
        elif this.share < ROUNDING:
            yield f"{name} computes what {first} does, but for rounding: {by}."
        elif spread is None:
            unknown.setdefault(f"how two starts of {first} differ was not seen", []).append(name)
        elif this.share < ALIKE * own:
            why = f"after {spread.last} steps the weights of two starts of {first} differ by "
            why += f"{_percent(own)} of what they have changed; fixed seeds would show it"
            unknown.setdefault(why, []).append(name)
        else:
            yield f"{name} does not compute what {first} does: {by}, {starts}."
    for end, names in said.items():
        yield f"{_do(names)} {end}."
    for why, names in unknown.items():
        yield f"Whether {_do(names)} what {first} does is not known: {why}."


def _do(names: Sequence[str]) -> str:
    return f"{', '.join(names)} compute{'s' * (len(names) == 1)}"


def _percent(share: float) -> str:
    if share < 1e-4:
        return "less than 0.01 %"
    return "more than 1000 %" if share > 10 else f"{100 * share:.{0 if share > 0.1 else 2}f} %"
