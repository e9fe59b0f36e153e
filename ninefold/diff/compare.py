"""What first steps have recorded, and the first entry of two that rounding does not explain."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ninefold.files import opener, write_text
from ninefold.process import scratch

ALL = ("torch", "numpy", "random", "default_rng", "hash")
VARIABLES = {
    "hash": {"PYTHONHASHSEED": "0"},
    "deterministic": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    "threads": {"OMP_NUM_THREADS": "1"},
}
RECORD = "NINEFOLD_BENCH_RECORD"  # the variable that asks the hook to record
# In the order of a step; inputs and outputs are in the order in which modules were called.
PHASES = ("param", "input output", "loss", "scale", "hyper", "state", "grad", "buffer")
PLACES = {phase: place for place, of in enumerate(PHASES) for phase in of.split()}
SUMMED = {"input", "output", "loss"}  # over micro-batches and ranks; of the rest rank 0 counts
DECIDING = {"loss", "scale", "hyper", "grad"}  # what training follows
NEEDED = {"param", "state", "grad"}  # that one has and the other has not is a difference
# How far rounding to a dtype may set one step apart: 256, 12 and 8 units of it.
LIMITS = {"float64": 1.5e-5, "float32": 1.5e-5, "float16": 5.9e-3, "bfloat16": 3.1e-2}
GROWTH, FADES, MOST = 30.0, 3.0, 0.05  # of rounding from step to step
EXACT = 1e-12  # sums in float64 of other numbers of threads differ by less
Rank = dict[str, Any]  # what one rank has recorded of a step
Order = dict[str, list[Any]]  # indices of examples, by loader


@dataclass(frozen=True)
class Training:
    """The first steps of a command, of each the records of its ranks.

    name: of the command. began: steps that were left out before.
    """

    name: str
    steps: list[list[Rank]]
    began: int = 0

    @property
    def first(self) -> Rank:
        return self.steps[0][0]

    @property
    def lost(self) -> str | None:
        """Why not all could be recorded."""
        found: str | None = self.steps[-1][0]["lost"]
        return found

    def order(self) -> Order:
        """The indices of examples by loader, as one process would take them."""
        found = defaultdict[str, list[Any]](list)
        for ranks in self.steps:
            for batches in zip(*(rank["data"] for rank in ranks), strict=False):
                for indices in zip(*(indices for _, indices in batches), strict=False):
                    found[batches[0][0]] += indices
        return found


def recording(
    steps: int,
    fixed: Sequence[str] = ALL,
    without: Sequence[str] = (),
    replay: Order | None = None,
) -> dict[str, str]:
    """The variables that have a command's first steps recorded.

    fixed: sources of chance. without: "dropout", "batchnorm". replay: another training's order.
    """
    file = None
    if replay is not None:
        file = str(Path(tempfile.mkdtemp(dir=scratch()), "order"))
        write_text(Path(file), json.dumps(replay))
    wanted = {"steps": steps, "fixed": [*fixed], "without": [*without], "replay": file}
    found = {RECORD: json.dumps(wanted)}
    for each in fixed:
        found |= VARIABLES.get(each, {})
    return found


def recorded(folder: Path) -> list[list[Rank]]:
    """The steps that processes have written, with all ranks in order.

    One that a process was killed in is left out.
    """
    found = list[list[Rank]]()
    for file in folder.glob("*.steps"):
        with open(file, encoding="utf-8", opener=opener) as content:
            found.append([json.loads(line) for line in content if line.endswith("\n")])
    by_rank = sorted(filter(None, found), key=lambda steps: int(steps[0]["rank"]))
    return [[*ranks] for ranks in zip(*by_rank, strict=False)]


class Entry(NamedTuple):
    """A tensor in numbers, or the sum of several. dtype: None of a gradient that is None."""

    dtype: str | None
    rows: int
    n: float
    bad: float
    zeros: float
    total: float
    square: float
    folded: float

    def plus(self, other: Entry) -> Entry:
        numbers = [a + b for a, b in zip(self[1:], other[1:], strict=True)]
        return Entry(self.dtype, *numbers)  # type: ignore[arg-type]

    def divided(self, by: float) -> Entry:
        """Of a loss, which is a number."""
        value, bad = self.total / by, min(self.bad, 1.0)
        return Entry(self.dtype, 1, 1.0, bad, 0.0, value, value**2, value)


class Difference(NamedTuple):
    """How far an entry of a step is apart, and both sides; None: one has it not."""

    phase: str
    name: str
    distance: float
    one: Entry | None
    other: Entry | None

    @property
    def sides(self) -> list[Entry]:
        return [each for each in (self.one, self.other) if each is not None]

    @property
    def misses(self) -> bool:
        """Whether one has it not."""
        return len(self.sides) < 2


@dataclass
class Divergence:
    """Two trainings, and where they part.

    other: with the names of `one`. first, inexact: step and difference: beyond its limit, and the
    first that is not equal bit for bit. others: what else differs in that step. worst: the largest
    distance that was rounding. harmless: the first beyond its limit that training does not follow,
    a buffer if there is no other.
    steps: that were compared. grown: whether rounding has grown so far that no place can be told.
    """

    one: Training
    other: Training
    first: tuple[int, Difference] | None = None
    inexact: tuple[int, Difference] | None = None
    others: Sequence[Difference] = ()
    worst: float = 0.0
    steps: int = 0
    grown: bool = False
    harmless: Difference | None = None


def renamed(other: Training, one: Training) -> Training:
    """`other` with the names of `one`: equal ones, else by order where all sizes are equal."""
    a, b = ({name: entry.n for ranks in each.steps for (phase, name), entry in table(ranks).items()
             if phase == "param"} for each in (one, other))  # fmt: skip
    mine, theirs = [name for name in a if name not in b], [name for name in b if name not in a]
    if not mine or [a[name] for name in mine] != [b[name] for name in theirs]:
        return other
    known = dict(zip(theirs, mine, strict=True))
    known |= {b.rpartition(".")[0]: a.rpartition(".")[0] for b, a in known.items()} | known

    def translated(name: str) -> str:
        """`exp_avg of fc.weight` by its last part, `fc[1]` by its first."""
        return re.sub(r"^(.* of |)([^\[]*)", lambda of: of[1] + known.get(of[2], of[2]), name)

    steps = [
        [
            {**rank, "entries": [[p, translated(name), *of] for p, name, *of in rank["entries"]]}
            for rank in ranks
        ]
        for ranks in other.steps
    ]
    return replace(other, steps=steps)


def table(ranks: Sequence[Rank]) -> dict[tuple[str, str], Entry]:
    """The entries of a step by phase and name, added up over calls and ranks.

    Of the loss that is the mean over ranks, divided by its GradScaler's scale.
    """
    found = dict[tuple[str, str], Entry]()
    for number, rank in enumerate(ranks):
        for phase, name, dtype, rows, numbers in rank["entries"]:
            if number == 0 or phase in SUMMED:
                key, entry = (phase, name), Entry(dtype, rows, *numbers)
                found[key] = found[key].plus(entry) if key in found else entry
    loss, scale = found.get(("loss", "loss")), found.get(("scale", "scale"))
    if loss is not None:
        by = len(ranks) * (scale.total if scale else 1.0)
        found["loss", "loss"] = loss.divided(by)
    return found


def distance(one: Entry | None, other: Entry | None, least: float = 0.0) -> float:
    """How far two entries are apart, in parts of their size; infinite where counts differ.

    An error that all examples have in common, as that of a weight's rounding, adds up over them: so
    what is a sum over examples is held against the largest that it can be.

    least: the size that a smaller one is held against.
    """
    if one is None or other is None:
        return math.inf
    if (one.n, one.bad, one.dtype is None) != (other.n, other.bad, other.dtype is None):
        zero = one.square == other.square == 0  # None and all zeros are the same gradient
        return 0.0 if zero and None in (one.dtype, other.dtype) else math.inf
    square = max(one.square, other.square, least**2)
    if not square:
        return 0.0
    norm = math.sqrt(square)
    return max(
        abs(one.total - other.total) / (norm * math.sqrt(max(one.n, 1))),
        abs(one.folded - other.folded) / (norm * math.sqrt(max(one.rows, other.rows, 1))),
        abs(one.square - other.square) / square / 2,
    )


def tables(
    one: Sequence[Rank], other: Sequence[Rank]
) -> tuple[dict[tuple[str, str], Entry], dict[tuple[str, str], Entry]]:
    """The entries of two steps: of weights that are in other parts none of what they have."""
    left_out = () if is_alike(one, other) else NEEDED
    a, b = ({key: of for key, of in table(ranks).items() if key[0] not in left_out}
            for ranks in (one, other))  # fmt: skip
    return a, b


def is_alike(one: Sequence[Rank], other: Sequence[Rank]) -> bool:
    """Whether both have weights whole, or in as many parts (FullyShardedDataParallel)."""
    a, b = (len(ranks) if ranks[0].get("parts") else 0 for ranks in (one, other))
    return a == b


def differences(one: Sequence[Rank], other: Sequence[Rank]) -> list[Difference]:
    """How two steps differ, entry by entry, in the order of a step.

    A gradient is a part of that of all parameters, and is held against that: of a convolution's
    bias before BatchNorm it is 0, and what is computed is rounding alone.
    """
    (a, b), found = tables(one, other), list[Difference]()
    all_ = math.sqrt(sum(of.square for (phase, _), of in a.items() if phase == "grad"))
    for key in {**a, **b}:
        mine, theirs = a.get(key), b.get(key)
        if key[0] in NEEDED or (mine and theirs):
            far = distance(mine, theirs, all_ if key[0] == "grad" else 0.0)
            found.append(Difference(*key, far, mine, theirs))
    return sorted(found, key=lambda each: PLACES[each.phase])


def limits(differences: Sequence[Difference], before: float) -> Iterator[float]:
    """How far each may differ by rounding, to the coarsest dtype of the step.

    before: the largest distance in the last step, from which rounding may have grown.
    """
    own = [max(LIMITS.get(str(of.dtype), 0.0) for of in each.sides) for each in differences]
    grown = max([*own, LIMITS["float32"], min(GROWTH * before, MOST)])
    for each, limit in zip(differences, own, strict=True):
        exact = each.phase in ("hyper", "scale") or not limit
        yield EXACT if exact else limit if each.phase == "input" else grown


def find(one: Training, other: Training) -> Divergence:
    """Compare step by step until the trainings part.

    They part where a step has a difference that training follows. One that it does not follow is
    harmless from then on.
    """
    parting, before = Divergence(one, renamed(other, one)), 0.0
    harmless = set[tuple[str, str]]()
    for mine, theirs in zip(one.steps, parting.other.steps, strict=False):
        parting.steps += 1
        all_ = differences(mine, theirs)
        unequal = [each for each in all_ if each.distance > EXACT]
        if unequal and parting.inexact is None:
            parting.inexact = parting.steps, unequal[0]
        limited = [*zip(all_, limits(all_, before), strict=True)]
        beyond = [each for each, limit in limited if each.distance > limit]
        beyond = [each for each in beyond if each[:2] not in harmless]
        if parts(beyond, all_):
            first, parting.others = beyond[0], beyond
            rounds = first.phase not in ("input", "hyper", "scale")  # no step before reaches these
            grown = GROWTH * before > MOST and rounds
            parting.first, parting.grown = (parting.steps, first), grown and first.distance < 1
            return parting
        told = [each for each in (parting.harmless, *beyond) if each]
        parting.harmless = min(told, key=lambda each: each.phase == "buffer", default=None)
        harmless |= {each[:2] for each in beyond}
        rounding = [each.distance for each, limit in limited
                    if each.distance <= limit and each.phase != "buffer"]  # fmt: skip
        before = max([*rounding, before / FADES])
        parting.worst = max([*rounding, parting.worst])
    return parting


def parts(beyond: Sequence[Difference], all_: Sequence[Difference]) -> bool:
    """Whether training follows what is beyond its limit in a step, or most weights are."""
    weights, of_all = (sum(each.phase == "param" for each in of) for of in (beyond, all_))
    missing = any(each.phase == "state" and each.misses for each in beyond)
    return missing or 2 * weights > of_all or any(each.phase in DECIDING for each in beyond)
