"""The first entry of two trainings that differs by more than rounding explains."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ninefold.diff.starts import Rank, Training

# By place: phases of one place are in the order in which modules were called.
PLACES = {
    **dict.fromkeys(("start", "held"), 0),
    **dict.fromkeys(("input", "between", "forward", "output"), 1),
    **{name: n for n, name in enumerate(("loss", "scale", "hyper", "state", "grad"), 2)},
    **{name: n for n, name in enumerate(("param", "buffer"), 7)},
}
FIRST = ("start", "held")  # before the first step
SUMMED = {"input", "between", "forward", "output"}  # over micro-batches and ranks
DECIDING = {"start", "loss", "scale", "hyper", "grad"}  # what training follows
NEEDED = {"start", "state", "grad"}  # that one has and the other has not is a difference
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
FACTORS = {"float64": 1e4, "float32": 256.0, "float16": 12.0, "bfloat16": 8.0}
GROWTH, FADES, MOST = 30.0, 3.0, 0.05  # of rounding from step to step
EXACT = 1e-12  # sums in float64 of other numbers of threads differ by less
AGREED = 1e-6  # gradients of two ranks that are averaged
ALONE = 32.0  # a gradient that differs by so many units of all gradients is rounding alone


class Entry(NamedTuple):
    """A tensor in eight numbers, or the sum of several. dtype: None of a gradient that is None."""

    dtype: str | None
    first: int
    n: float
    bad: float
    zeros: float
    total: float
    size: float
    square: float
    folded: float
    ordered: float

    def plus(self, other: Entry) -> Entry:
        numbers = [a + b for a, b in zip(self[1:], other[1:], strict=True)]
        return Entry(self.dtype, *numbers)  # type: ignore[arg-type]


class Difference(NamedTuple):
    """Of one entry of a step: its place in the order, sizes, and both sides."""

    phase: str
    name: str
    distance: float
    one: Entry | None
    other: Entry | None


@dataclass
class Found:
    """What was found.

    first, inexact: step and difference: beyond its limit, and the first that is not equal bit for
    bit. others: what else differs in that step. worst: the largest distance that was rounding.
    harmless: the first that is beyond its limit and that training does not follow.
    steps: that both have. grown: whether rounding has grown so far that no place can be told.
    """

    first: tuple[int, Difference] | None = None
    inexact: tuple[int, Difference] | None = None
    others: Sequence[Difference] = ()
    worst: float = 0.0
    steps: int = 0
    grown: bool = False
    harmless: Difference | None = None
    names: Mapping[str, str] = field(default_factory=dict)


def entry_of(raw: Sequence[object]) -> Entry:
    _, _, dtype, first, numbers = raw
    return Entry(dtype, first, *(numbers or [0.0] * 8))  # type: ignore


def renamed(one: Training, other: Training) -> dict[str, str]:
    """The names of A for those of B: equal ones, else by order where all shapes are equal."""
    a, b = one.first, other.first
    mine = [name for name in a["params"] if name not in b["params"]]
    theirs = [name for name in b["params"] if name not in a["params"]]
    shapes = [[of["params"][n] for n in ns] for of, ns in ((a, mine), (b, theirs))]
    found = dict(zip(theirs, mine, strict=True)) if shapes[0] == shapes[1] else {}
    holders = {tuple(own): name for name, (_, own) in a["modules"].items() if own}
    for name, (_, own) in b["modules"].items():
        holder = holders.get(tuple(found.get(each, each) for each in own))
        if holder is not None and name not in a["modules"]:
            found[name] = holder
    return found


def table(
    ranks: Sequence[Rank], names: Mapping[str, str]
) -> dict[tuple[str, str], list[tuple[int, Entry]]]:
    """The entries of a step by phase and name, each with its rank, in the order of section 2."""
    found = defaultdict[tuple[str, str], list[tuple[int, Entry]]](list)
    for number, rank in enumerate(ranks):
        for raw in rank["entries"]:
            phase, name = raw[:2]
            if number == 0 or phase in SUMMED or phase == "loss":
                found[phase, translated(name, names)].append((number, entry_of(raw)))
    return dict(sorted(found.items(), key=lambda each: PLACES[each[0][0]]))


def translated(name: str, names: Mapping[str, str]) -> str:
    """A name in A's words: `exp_avg of fc.weight` by its last part, `fc[1]` by its first."""
    key, of, own = name.rpartition(" of ")
    own, bracket, place = own.partition("[")
    return f"{key}{of}{names.get(own, own)}{bracket}{place}"


def distance(one: Entry, other: Entry, ordered: bool) -> float:
    """How far two entries are apart, in parts of their size; infinite where counts differ.

    An error that all examples have in common, as that of a weight's rounding, adds up over them: so
    what is a sum over examples is held against the largest that it can be.
    """
    if (one.n, one.bad, one.dtype is None) != (other.n, other.bad, other.dtype is None):
        zero = one.size == other.size == 0  # None and all zeros are the same gradient
        return 0.0 if zero and None in (one.dtype, other.dtype) else math.inf
    size, square = max(one.size, other.size), max(one.square, other.square)
    if not square or not size:
        return 0.0
    norm, examples = math.sqrt(square), max(one.first, other.first, 1)
    return max(
        abs(one.total - other.total) / size,
        abs(one.folded - other.folded) / (norm * math.sqrt(examples)),
        abs(one.ordered - other.ordered) / norm if ordered else 0.0,
        abs(one.size - other.size) / size,
        abs(one.square - other.square) / square / 2,
    )


def summed(entries: Iterable[tuple[int, Entry]]) -> Entry:
    found = None
    for _, each in entries:
        found = each if found is None else found.plus(each)
    assert found is not None
    return found


def loss(entries: Sequence[tuple[int, Entry]], world: int) -> Entry:
    """The sum over micro-batches, and the mean over ranks."""
    all_ = summed(entries)
    total, size = all_.total / world, all_.size / world
    bad = float(all_.bad > 0)
    return Entry(all_.dtype, 1, 1.0, bad, 0.0, total, size, size**2, total, total)


def of_step(
    one: Sequence[Rank], other: Sequence[Rank], names: Mapping[str, str]
) -> Iterator[Difference]:
    """How two steps differ, entry by entry."""
    a, b = table(one, {}), table(other, names)
    inputs = [key for key in a.keys() & b.keys() if key[0] == "input"]
    alike = shape(one) == shape(other)
    calls = alike and (
        all(by_call(a[key], b[key]) <= EXACT for key in inputs)
        or any(by_sum(a[key], b[key]) > EXACT for key in inputs)
    )
    for name, unlike in exactly(one[0], other[0]):
        yield Difference(*name, math.inf if unlike else 0.0, None, None)
    for key in dict.fromkeys([*a, *b]):
        mine, theirs, phase = a.get(key), b.get(key), key[0]
        if mine is None or theirs is None:
            if phase in NEEDED and (mine or theirs):
                has = (mine or theirs or [])[0][1]
                yield Difference(*key, math.inf, has if mine else None, has if theirs else None)
        elif phase == "loss":
            both = loss(mine, len(one)), loss(theirs, len(other))
            yield Difference(*key, distance(*both, False), *both)
        else:
            sums = summed(mine), summed(theirs)
            fits = [rank for rank, _ in mine] == [rank for rank, _ in theirs]
            far = by_call(mine, theirs) if calls and fits else distance(*sums, phase not in SUMMED)
            yield Difference(*key, far, *sums)


def shape(ranks: Sequence[Rank]) -> tuple[int, int]:
    """Ranks and micro-batches of a step."""
    return len(ranks), ranks[0]["micro"]


def by_call(one: Sequence[tuple[int, Entry]], other: Sequence[tuple[int, Entry]]) -> float:
    if len(one) != len(other):
        return math.inf
    pairs = zip(one, other, strict=True)
    return max(distance(mine, theirs, True) for (_, mine), (_, theirs) in pairs)


def by_sum(one: Sequence[tuple[int, Entry]], other: Sequence[tuple[int, Entry]]) -> float:
    return distance(summed(one), summed(other), False)


def exactly(one: Rank, other: Rank) -> Iterator[tuple[tuple[str, str], bool]]:
    """What is compared exactly: the GradScaler's scale and the optimizer's options."""
    yield ("scale", "scale"), one["scale"] != other["scale"]
    for key in dict.fromkeys([*one["hyper"], *other["hyper"]]):
        a, b = one["hyper"].get(key), other["hyper"].get(key)
        yield ("hyper", key), None not in (a, b) and a != b


def limits(differences: Sequence[Difference], before: float) -> list[float]:
    """How far each may differ by rounding. before: the largest distance in the last step."""
    found, coarsest = [], 0.0
    for each in differences:
        dtypes = {entry.dtype for entry in (each.one, each.other) if entry is not None}
        if each.phase not in FIRST:
            units = [FACTORS[name] * UNITS[name] for name in dtypes if name in UNITS]
            coarsest = max([coarsest, *units])
        floats = not dtypes or not dtypes.isdisjoint({*UNITS, None})
        own = max(
            coarsest, FACTORS["float32"] * UNITS["float32"] * (each.phase in ("start", "held"))
        )
        allowed = max(own, min(GROWTH * before, MOST)) if each.phase != "input" else own
        found.append(allowed if floats else EXACT)
    return found


def is_rounding_alone(each: Difference, norm: float, unit: float) -> bool:
    if each.phase != "grad" or each.one is None or each.other is None:
        return False
    far = each.distance * math.sqrt(max(each.one.square, each.other.square))
    return far < ALONE * unit * norm


def find(one: Training, other: Training) -> Found:
    """Compare step by step until the trainings part."""
    names = renamed(one, other)
    found, before = Found(names=names), 0.0
    harmless, waiting = set[tuple[str, str]](), list[Difference]()
    for mine, theirs in zip(one.steps, other.steps, strict=False):
        found.steps += 1
        all_ = [*sorted(of_step(mine, theirs, names), key=lambda each: PLACES[each.phase])]
        finite = [each for each in all_ if each.distance < math.inf]
        inexact = [each for each in all_ if each.distance > EXACT]
        found.inexact = found.inexact or (inexact and (found.steps, inexact[0])) or None
        gradients = [each.one.square for each in all_ if each.phase == "grad" and each.one]
        norm, unit = math.sqrt(sum(gradients)), coarsest_unit(all_)
        allowed = limits(all_, before)
        beyond = [
            each
            for each, limit in zip(all_, allowed, strict=True)
            if each.distance > limit
            and (each.phase, each.name) not in harmless
            and not is_rounding_alone(each, norm, unit)
        ]
        if any(is_deciding(each) for each in beyond):
            step = found.steps - bool(waiting)
            first = waiting[0] if waiting else beyond[0]
            found.first, found.others = (step, first), beyond
            found.grown = is_grown(first, before)
            return found
        harmless |= {(each.phase, each.name) for each in waiting}
        harmless |= {(d.phase, d.name) for d in beyond if d.phase not in ("param", "state")}
        waiting = [each for each in beyond if each.phase in ("param", "state")]
        silent = [each for each in beyond if each.phase not in ("buffer", "held")]
        found.harmless = found.harmless or next(iter(silent), None)
        many = [each for each in waiting if is_most(each.phase, waiting, all_)]
        if many:
            found.first, found.others = (found.steps, many[0]), beyond
            found.grown = is_grown(many[0], before)
            return found
        small = [
            each.distance
            for each, limit in zip(finite, limits(finite, before), strict=True)
            if each.distance <= limit and each.phase != "buffer"
        ]
        before = max([*small, before / FADES])
        found.worst = max(found.worst, *small, 0.0)
    return found


def disagreement(training: Training) -> tuple[int, str] | None:
    """The first step, and a parameter, in which ranks have other gradients than the first one."""
    for step, ranks in enumerate(training.steps, 1):
        first, *others = ({raw[1]: entry_of(raw) for raw in rank["entries"] if raw[0] == "grad"}
                          for rank in ranks)  # fmt: skip
        for name, entry in first.items():
            if any(distance(entry, of[name], True) > AGREED for of in others if name in of):
                return step, name
    return None


def is_grown(first: Difference, before: float) -> bool:
    """Whether a difference may be rounding that has grown over the steps."""
    return GROWTH * before > MOST and first.distance < 1 and first.phase != "input"


def is_deciding(each: Difference) -> bool:
    return each.phase in DECIDING or (each.phase == "state" and None in (each.one, each.other))


def is_most(phase: str, beyond: Sequence[Difference], all_: Sequence[Difference]) -> bool:
    """Whether more than half of a phase is beyond its limit."""
    counts = [sum(each.phase == phase for each in of) for of in (beyond, all_)]
    return 2 * counts[0] > counts[1]


def coarsest_unit(differences: Sequence[Difference]) -> float:
    entries = [entry for each in differences for entry in (each.one, each.other)]
    return max((UNITS.get(str(entry.dtype), 0.0) for entry in entries if entry), default=0.0)
