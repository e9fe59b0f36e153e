"""What first steps have recorded, and the first entry of two that rounding does not explain."""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ninefold.bench.messages import Hello
from ninefold.files import opener, read_bytes, write_text
from ninefold.process import scratch

ALL = ("torch", "numpy", "random", "default_rng", "hash")
VARIABLES = {
    "hash": {"PYTHONHASHSEED": "0"},
    "deterministic": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    "threads": {"OMP_NUM_THREADS": "1"},
}
RECORD = "NINEFOLD_BENCH_RECORD"  # the variable with a file: what the hook is to record
# How far rounding to a dtype may set one step apart: 256, 12 and 8 units of it.
LIMITS = {"float64": 1.5e-5, "float32": 1.5e-5, "TF32": 5.9e-3, "float16": 5.9e-3,
          "bfloat16": 3.1e-2}  # fmt: skip
GROWTH, FADES, MOST = 30.0, 3.0, 0.05  # of rounding from step to step
MOST_BYTES = 1 << 32  # of what a process records
LEAST = 1e-6  # by which sums of float32 in another order change
EXACT = 1e-12  # sums in float64 of other numbers of threads differ by less
ROUNDED = 1e-6  # an option of float32 may be from one of float64
OPTIONS = ("scale", "hyper")  # phases of what the optimizer is told
ONE_FACTOR = 0.005  # that gradients may be apart from one factor for all
SMALL = 1e-3  # of the norm of all gradients: what is smaller need not follow that factor as well
AGREED = 1e-6  # gradients of two ranks that are averaged
MORE_ZEROS = 0.05  # share of a gradient that is zero in one alone: it has underflowed
LARGE = 0.03  # of the norm of all gradients: rounding to 16 bits does not make one of so much
SIZE = 1.35  # times as large (measured: 1.16 at most)
NEAR = 0.02  # that a factor may be apart from a number that explains it
Rank = dict[str, Any]  # what one rank has recorded of a step
Steps = list[list[Rank]]  # of each the records of its ranks
Order = dict[str, list[Any]]  # indices of examples, by loader


class Phase(NamedTuple):
    """A kind of entries of a step.

    place: in the order of a step; inputs and outputs are in the order in which modules were called.
    Options come first: nothing in their step causes them, and they act from the next one on.
    words: what an entry is called, with its name for {}. restored: what a checkpoint has of it.
    summed: whether entries are added up over micro-batches and ranks; else those of rank 0 count.
    decides: whether training follows it. needed: whether an entry that only one training has is a
    difference.
    """

    place: int
    words: str
    restored: str = ""
    summed: bool = False
    decides: bool = False
    needed: bool = False


PHASES = {
    "scale": Phase(0, "the GradScaler's {}", "GradScaler", decides=True),
    "hyper": Phase(1, "{}", "learning rate", decides=True),
    "param": Phase(2, "the parameter {}", "weights", needed=True),
    "input": Phase(3, "the input of {}", summed=True),
    "output": Phase(3, "the output of {}", summed=True),
    "loss": Phase(4, "the {}", summed=True, decides=True),
    "state": Phase(5, "the optimizer's {}", "optimizer", needed=True),
    "grad": Phase(6, "the gradient of {}", decides=True, needed=True),
    "buffer": Phase(7, "the buffer {}", "buffers"),
}


@dataclass(frozen=True)
class Training:
    """The first steps of the command with this name. hellos: what its ranks say of themselves."""

    name: str
    steps: Steps
    hellos: Sequence[Hello] = ()

    @property
    def first(self) -> Rank:
        return self.steps[0][0]

    @property
    def unrecorded(self) -> str | None:
        """Why not all could be recorded."""
        found: str | None = self.steps[-1][0]["unrecorded"]
        return found

    def order(self) -> Order:
        """The indices of examples by loader, as one process would take them."""
        found = defaultdict[str, list[Any]](list)
        for ranks in self.steps:
            of_ranks = [by_name(rank["data"]) for rank in ranks]
            for name in of_ranks[0]:  # some have an evaluation that others have not
                for batches in zip(*(of.get(name, []) for of in of_ranks), strict=False):
                    found[name] += [each for of in zip(*batches, strict=False) for each in of]
        return found


def recording(
    steps: int,
    fixed: Sequence[str] = ALL,
    without: Sequence[str] = (),
    replay: Order | None = None,
    nudge: float = 0.0,
) -> dict[str, str]:
    """The variables that have a command's first steps recorded.

    fixed: sources of chance. without: "dropout", "batchnorm". replay: another training's order.
    nudge: by about which part of it each weight is changed at the start.
    """
    file = Path(tempfile.mkdtemp(dir=scratch()), "wanted")
    wanted = {"steps": steps, "fixed": [*fixed], "without": [*without], "replay": replay or {},
              "nudge": nudge}  # fmt: skip
    write_text(file, json.dumps(wanted))
    found = {RECORD: str(file)}
    for each in fixed:
        found |= VARIABLES.get(each, {})
    return found


def recorded(folder: Path) -> Steps:
    """The steps that processes have written, with all ranks in order.

    One that a process was killed in is left out.
    """
    found = Steps()
    for file in folder.glob("*.steps"):
        with open(file, encoding="utf-8", opener=opener) as content:
            found.append([json.loads(line) for line in content if line.endswith("\n")])
    by_rank = sorted(filter(None, found), key=lambda steps: int(steps[0]["rank"]))
    return [[*ranks] for ranks in zip(*by_rank, strict=False)]


def is_recorded(folder: Path, steps: int) -> bool:
    """Whether each process that has taken a step has written so many."""
    files = [*folder.glob("*.steps")]
    return bool(files) and all(read_bytes(file, MOST_BYTES).count(b"\n") >= steps for file in files)


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


Key = tuple[str, str]  # phase and name
Table = dict[Key, Entry]
SCALE = ("scale", "scale")  # the key of a GradScaler's
Pair = tuple[Entry | None, Entry | None]


class Difference(NamedTuple):
    """How far an entry of a step is apart, and may be, and both sides; None: one has it not."""

    phase: str
    name: str
    distance: float
    limit: float
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

    other: with the names of `one`. after: steps of `one` that are left out before. steps: that were
    compared. rounded: how far outputs are apart in the first step that is not equal bit for bit.
    last: how far all of the last one is apart. beyond: what of it differs by more than rounding, if
    they part. inexact: the first step and difference that are not equal bit for bit. harmless: the
    first beyond its limit that training does not follow, a buffer if there is no other. worst: the
    largest distance that was rounding. kinks: that of gradients which were let go. grown: whether
    rounding has grown so far that no place can be told.
    """

    one: Training
    other: Training
    after: int = 0
    steps: int = 0
    rounded: float = LEAST
    last: Sequence[Difference] = ()
    beyond: Sequence[Difference] = ()
    inexact: tuple[int, Difference] | None = None
    harmless: Difference | None = None
    worst: float = 0.0
    kinks: float = 0.0
    grown: bool = False

    @property
    def nudge(self) -> float:
        """By how much weights are to be changed to see how far that grows; 0 if nothing grows."""
        fine = all(unit((each.one, each.other)) <= LIMITS["float32"] for each in self.last)
        return self.rounded * (self.grown or (fine and self.worst > LIMITS["float32"]))

    @property
    def step(self) -> int:
        """The last step that was compared, as `one` counts them."""
        return self.after + self.steps

    @property
    def names(self) -> tuple[str, str]:
        return self.one.name, self.other.name

    @property
    def until(self) -> tuple[Steps, Steps]:
        """The steps of both up to the last one that was compared."""
        return self.one.steps[: self.step], self.other.steps[: self.steps]

    @property
    def ranks(self) -> tuple[list[Rank], list[Rank]]:
        """The last step that was compared, of both."""
        one, other = self.until
        return one[-1], other[-1]

    def entries(self, phase: str) -> tuple[dict[str, Entry], dict[str, Entry]]:
        """The entries of that step by name, of both."""
        own = [each for each in self.last if each.phase == phase]
        one = {each.name: each.one for each in own if each.one}
        return one, {each.name: each.other for each in own if each.other}

    def both(self, one: object, other: object) -> str:
        return f"{one} in {self.one.name} and {other} in {self.other.name}"


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

    def of(rank: Rank) -> Rank:
        named = [[phase, translated(name), *of] for phase, name, *of in rank["entries"]]
        return {**rank, "entries": named, "drew": [*map(translated, rank["drew"])]}

    return replace(other, steps=[[*map(of, ranks)] for ranks in other.steps])


def table(ranks: Sequence[Rank], by_call: bool = True) -> Table:
    """The entries of a step, added up over micro-batches and ranks.

    Of the loss that is the mean over ranks, divided by its GradScaler's scale.

    by_call: whether calls of a module in one forward pass are apart.
    """
    found = Table()
    for number, rank in enumerate(ranks):
        for phase, name, dtype, rows, numbers in rank["entries"]:
            key = phase, name if by_call else without_call(name)
            entry, summed = Entry(dtype, rows, *numbers), PHASES[phase].summed
            if key not in found and (number == 0 or summed):
                found[key] = entry
            elif summed:  # its place is that of its last call, which comes after what it is fed
                found[key] = found.pop(key).plus(entry)
    if loss := found.get(("loss", "loss")):
        scale = found.get(SCALE)
        found["loss", "loss"] = loss.divided(len(ranks) * (scale.total if scale else 1.0))
    return found


def without_call(name: str) -> str:
    """`relu` of `relu[call 2]`."""
    return re.sub(r"\[call \d+\]", "", name)


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
    norm, same_rows = math.sqrt(square), one.rows == other.rows  # else rows are no examples
    return max(
        abs(one.total - other.total) / (norm * math.sqrt(max(one.n, 1))),
        abs(one.square - other.square) / square / 2,
        abs(one.folded - other.folded) / (norm * math.sqrt(max(one.rows, 1))) * same_rows,
    )


def paired(one: Sequence[Rank], other: Sequence[Rank]) -> Iterator[tuple[Key, Pair]]:
    """The entries of two steps that can be compared.

    What one alone has counts if it is of weights that are trained, and all could be recorded of
    both. What has another size in unlike numbers of calls has no examples that add up (positions,
    masks, padding), but for the input of a network that takes more examples. Gradients do not count
    in a step that both GradScalers skip.
    """
    a, b = table(one), table(other)
    whole = not any(rank["lacks"] for rank in (*one, *other))
    if again := any("[call " in name for _, name in {*a} ^ {*b}):  # a network, more often
        a, b = table(one, by_call=False), table(other, by_call=False)
    more, unlike = len(taken(one)) != len(taken(other)), again or shape(one) != shape(other)
    skipped = all(SCALE in of and any(each.bad for each in gradients(of)) for of in (a, b))
    for key in {**a, **b}:
        mine, theirs, phase = a.get(key), b.get(key), PHASES[key[0]]
        takes_more = more and key[0] == "input" and "[" not in key[1]
        adds_up = takes_more or not (unlike and phase.summed)
        if mine and theirs:
            if (mine.n == theirs.n or adds_up) and not (skipped and key[0] == "grad"):
                yield key, (mine, theirs)
        elif phase.needed and whole and (mine or theirs).dtype:  # type: ignore[union-attr]
            yield key, (mine, theirs)


def gradients(of: Table) -> list[Entry]:
    return [each for (phase, _), each in of.items() if phase == "grad"]


def differences(
    one: Sequence[Rank],
    other: Sequence[Rank],
    before: float = 0.0,
    alone: Mapping[str, float] | None = None,
) -> list[Difference]:
    """How two steps differ, entry by entry, in the order of a step.

    A gradient is a part of that of all parameters, and is held against that: of a convolution's
    bias before BatchNorm it is 0, and what is computed is rounding alone.

    before: the largest distance in the last step, from which rounding may have grown. alone: to
    what it grows in each phase by itself, where that is known.
    """
    pairs, found = dict(paired(one, other)), list[Difference]()
    squares = [pair[0].square for key, pair in pairs.items() if key[0] == "grad" and pair[0]]
    all_ = math.sqrt(sum(squares))
    usual = max([LIMITS["float32"], *map(unit, pairs.values())])
    for (phase, name), pair in pairs.items():
        own = unit(pair)
        grown = min(GROWTH * min(before, (alone or {}).get(phase, before)), MOST)
        limit = own if phase == "input" or not own else max(usual, grown)
        if phase in OPTIONS:  # which one may have as a tensor
            limit = ROUNDED if any(of.dtype == "float32" for of in pair if of) else 0.0
        far = distance(*pair, all_ if phase == "grad" else 0.0)
        found.append(Difference(phase, name, far, max(limit, EXACT), *pair))
    return sorted(found, key=lambda each: PHASES[each.phase].place)


def unit(pair: Pair) -> float:
    """How far rounding to the coarser dtype of two entries may set them apart; 0 of integers."""
    return max(LIMITS.get(str(of.dtype), 0.0) for of in pair if of)


def shape(ranks: Sequence[Rank]) -> tuple[int, int]:
    """Ranks and micro-batches of a step."""
    return len(ranks), ranks[0]["micro"]


def by_name(found: Iterable[tuple[str, list[Any]]]) -> dict[str, list[list[Any]]]:
    """The batches of each loader, or of each network."""
    batches = defaultdict[str, list[list[Any]]](list)
    for name, each in found:
        batches[name].append(each)
    return batches


def trained_on(rank: Rank) -> Order:
    """The indices of a step by loader: of its last batches, as a resumed loop skips some before."""
    of_loaders = by_name(rank["data"]).items()
    return {name: [each for batch in of[-rank["micro"] :] for each in batch]
            for name, of in of_loaders}  # fmt: skip


def examples(rank: Rank, by_index: bool = True) -> list[str]:
    """What tells the examples of a step apart: indices, or else projections of the inputs.

    Of several networks that with most inputs counts.
    """
    indices = [str(each) for of in trained_on(rank).values() for each in of if by_index]
    of_networks = by_name(rank["examples"]).values()
    inputs = ([f"{x:.9e}" for batch in of for x in batch] for of in of_networks)
    return indices or max(inputs, key=len, default=[])


def taken(ranks: Sequence[Rank], by_index: bool = True) -> list[str]:
    return [each for rank in ranks for each in examples(rank, by_index)]


def growth(one: Training, nudged: Training) -> Iterator[dict[str, float]]:
    """How far rounding alone has set a training apart from itself until each step, by phase.

    nudged: the same, with weights that were changed by rounding at the start.
    """
    far = dict.fromkeys(PHASES, 0.0)
    for mine, theirs in zip(one.steps, nudged.steps, strict=False):
        for each in differences(mine, theirs):
            far[each.phase] = max(far[each.phase], each.distance)
        yield {**far}


def find(
    one: Training, other: Training, after: int = 0, grown: Iterable[Mapping[str, float]] = ()
) -> Divergence:
    """Compare step by step until the trainings part. after: steps of `one` that are left out.

    grown: how far rounding alone sets `one` apart until each step, where that is known.

    They part where a step has a difference that training follows. One that it does not follow is
    harmless from then on. Rounding that moves the input of a ReLU over 0 shows in gradients alone.
    Where outputs are apart by rounding to 16 bits, gradients are in any direction: those of
    ResNet-50 in bfloat16 have a cosine of 0.15 with those in float32 at the start.
    """
    parting, before = Divergence(one, renamed(other, one), after), 0.0
    harmless, alone = set[Key](), iter(grown)
    for mine, theirs in zip(one.steps[after:], parting.other.steps, strict=False):
        parting.steps += 1
        far = next(alone, {})
        parting.last = all_ = differences(mine, theirs, before, far)
        unequal = [each for each in all_ if each.distance > EXACT]
        if unequal and parting.inexact is None:
            parting.inexact = parting.step, unequal[0]
            outputs = [each.distance for each in all_
                       if each.phase == "output" and each.distance <= each.limit]  # fmt: skip
            parting.rounded = max([LEAST, *outputs])
        beyond = [each for each in all_
                  if each.distance > each.limit and each[:2] not in harmless]  # fmt: skip
        coarse = any(each.phase == "output" and each.distance > LIMITS["float32"] for each in all_
                     if unit((each.one, each.other)) > LIMITS["float32"])  # fmt: skip
        bends = beyond and (parting.steps > 1 or coarse) and may_be_kinks(parting, beyond)
        most = sys.float_info.max if coarse else MOST
        let_go = [each for each in beyond
                  if bends and each.phase == "grad" and each.distance <= most]  # fmt: skip
        beyond = [each for each in beyond if each not in let_go]
        if parts(beyond, all_):
            first = beyond[0]  # rounding grows from step to step, but not in inputs and options
            farthest = 1.0 if parting.kinks <= MOST else math.inf  # weights of turned gradients
            grows = first.phase not in ("input", *OPTIONS) and first.distance < farthest
            usual = max(unit((each.one, each.other)) for each in all_)
            explains = first.distance <= GROWTH * far.get(first.phase, before)
            explains |= before > usual and not far
            parting.beyond = beyond
            parting.grown = grows and explains and GROWTH * before > MOST
            return parting
        told = [each for each in (parting.harmless, *beyond) if each]
        parting.harmless = min(told, key=lambda each: each.phase == "buffer", default=None)
        harmless |= {each[:2] for each in beyond}
        rounding = [each.distance for each in all_
                    if each.distance <= each.limit and each.phase != "buffer"]  # fmt: skip
        kinks = [each.distance for each in let_go]
        before = max([*rounding, *(min(each, MOST) for each in kinks if coarse), before / FADES])
        parting.kinks = max([parting.kinks, *kinks])
        parting.worst = max([parting.worst, parting.kinks, *rounding])
    return parting


def may_be_kinks(parting: Divergence, beyond: Sequence[Difference]) -> bool:
    """Whether gradients are apart, and nothing tells of a mistake: not the loss, ranks that have
    others in one training alone, zeros, a large one of another size, or one factor.
    """
    zero = any(not of.square for each in beyond if each.phase == "grad" for of in each.sides)
    lossy = any(each.phase == "loss" for each in beyond)
    alone = len({disagreement(ranks) is None for ranks in parting.ranks}) > 1
    one, other = parting.entries("grad")
    all_ = sum(of.square for of in one.values())
    sizes = ((one[key].square, other[key].square) for key in one if key in other)
    sized = any(a > LARGE**2 * all_ and (b > a * SIZE**2 or a > b * SIZE**2) for a, b in sizes)
    return not (lossy or alone or zero or sized or underflow(parting) or factor(one, other))


def disagreement(ranks: Sequence[Rank]) -> Difference | None:
    """The first gradient that a rank has otherwise than the first one."""
    found = (each for rank in ranks[1:] for each in differences(ranks[:1], [rank]))
    return next((each for each in found if each.phase == "grad" and each.distance > AGREED), None)


def underflow(parting: Divergence) -> tuple[float, str] | None:
    """How much more of which gradient is zero in B; None without float16, or with a GradScaler.

    Below 0 it is in A.
    """
    mine, theirs = parting.entries("grad")
    both = ((key, mine[key], theirs[key]) for key in mine if key in theirs)
    shares = [(b.zeros / b.n - a.zeros / a.n, key) for key, a, b in both if a.n == b.n > 0]
    more, key = max(shares, key=lambda share: abs(share[0]), default=(0.0, ""))
    dtypes = {of.dtype for other in parting.last if (of := other.other if more > 0 else other.one)}
    scaled = SCALE in table(parting.ranks[more > 0])
    return (more, key) if abs(more) > MORE_ZEROS and "float16" in dtypes and not scaled else None


def factor(mine: Mapping[str, Entry], theirs: Mapping[str, Entry]) -> float | None:
    """The one number by which all gradients of B are those of A; None without, or if it is 1."""
    mine = {key: entry for key, entry in mine.items() if key in theirs}
    squares = [sum(of[key].square for key in mine) for of in (mine, theirs)]
    if not all(0 < each < math.inf for each in squares):
        return None
    ratio, least = math.sqrt(squares[1] / squares[0]), SMALL * math.sqrt(squares[0])
    for key, one in mine.items():
        norm, other = max(math.sqrt(one.square), least), theirs[key]
        sums = (one.total, other.total), (one.folded, other.folded)
        if any(abs(b - ratio * a) > ONE_FACTOR * ratio * norm for a, b in sums):
            return None
    return None if is_near(ratio, 1.0) else ratio


def is_near(number: float, times: float) -> bool:
    return number > 0 and abs(math.log(number / times)) < NEAR


def parts(beyond: Sequence[Difference], all_: Sequence[Difference]) -> bool:
    """Whether training follows what is beyond its limit in a step, or most trained weights are."""
    grads = [each for each in all_ if each.phase == "grad"]
    trained = {each.name for each in grads if any(of.square for of in each.sides)}
    weights, of_all = (
        sum(each.phase == "param" and (each.name in trained or not trained) for each in of)
        for of in (beyond, all_)
    )
    missing = any(each.phase == "state" and each.misses for each in beyond)
    decides = any(PHASES[each.phase].decides for each in beyond)
    return missing or 2 * weights > of_all or decides
