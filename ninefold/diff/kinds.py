"""What kind of difference the first one is, and the sentence that says so."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ninefold.diff.compare import (
    EXACT,
    LIMITS,
    MOST,
    Difference,
    Divergence,
    Entry,
    Rank,
    Training,
    differences,
    is_alike,
    table,
    tables,
)
from ninefold.numbers import counted

AGREED = 1e-6  # gradients of two ranks that are averaged
ONE_FACTOR = 0.005  # that gradients may be apart from one factor for all
SMALL = 1e-3  # of the norm of all gradients: what is smaller need not follow that factor as well
NEAR = 0.02  # that a factor may be apart from a number that explains it
MORE_ZEROS = 0.05  # share of a gradient that is zero in one alone: it has underflowed
ALIKE = 0.9  # share of examples that two steps have in common if they have the same ones
SHOWN = 3  # examples
# Of gradients alone. Another backward pass is another one in step 1, too.
ALONE = ("function", "weights-of-examples")
KINK = (
    "and all outputs and the loss are equal: rounding that moves the input of a ReLU over 0 does "
    "that, and so does a backward pass that is another one from this step on"
)
PLACES = {
    "input": "the input of {}",
    "output": "the output of {}",
    "loss": "the {}",
    "scale": "the GradScaler's {}",
    "hyper": "{}",
    "state": "the optimizer's {}",
    "grad": "the gradient of {}",
    "param": "the parameter {}",
    "buffer": "the buffer {}",
}
Told = tuple[str, str]  # a kind, and the clause that says it


@dataclass(frozen=True)
class Case:
    """A difference where two trainings part.

    whole: of a resumed training that which was not interrupted.
    """

    parting: Divergence
    first: Difference
    whole: Training | None = None

    @property
    def names(self) -> tuple[str, str]:
        return self.parting.one.name, self.parting.other.name

    @property
    def ranks(self) -> tuple[list[Rank], list[Rank]]:
        number = self.parting.steps - 1
        return self.parting.one.steps[number], self.parting.other.steps[number]

    @property
    def sides(self) -> list[tuple[Training, list[Rank], Training, list[Rank]]]:
        """Each training against the other, with the ranks of this step."""
        (a, b), one, other = self.ranks, self.parting.one, self.parting.other
        return [(one, a, other, b), (other, b, one, a)]

    @property
    def holders(self) -> tuple[Training, Training]:
        """Of what one training misses: the other one, and that one."""
        one, other = self.parting.one, self.parting.other
        return (other, one) if self.first.one is None else (one, other)

    @property
    def unlike(self) -> str:
        """What differs in number, ranks or micro-batches; empty if nothing does."""
        pairs = zip(("ranks", "micro-batches"), *map(shape, self.ranks), strict=True)
        return next((f"{what} are {self.both(a, b)}" for what, a, b in pairs if a != b), "")

    def both(self, one: object, other: object) -> str:
        return f"{one} in {self.names[0]} and {other} in {self.names[1]}"

    @property
    def where(self) -> str:
        """The entry in words, with the class of its module."""
        return place(self.first) + (f" ({self.module})" if self.module else "")

    @property
    def module(self) -> str:
        """The class of the module that the entry is of."""
        return str(self.parting.one.first["modules"].get(self.first.name.partition("[")[0], ""))

    @property
    def differs(self) -> str:
        """The entry, and by how much it differs."""
        return f"{self.where} differs {self.size}"

    @property
    def size(self) -> str:
        distance = self.first.distance
        known = self.first.phase == "grad" and distance < math.inf
        return f"{size(distance)} of all gradients" if known else size(distance)


def shape(ranks: Sequence[Rank]) -> tuple[int, int]:
    """Ranks and micro-batches of a step."""
    return len(ranks), ranks[0]["micro"]


def size(distance: float) -> str:
    """A distance in words."""
    if distance == math.inf:
        return "in the number of elements"
    if distance < 1e-4:
        return f"by {distance:.0e}"
    return f"by {100 * distance:,.{0 if distance > 0.1 else 2}f} %"


def place(each: Difference) -> str:
    """An entry in words."""
    return PLACES[each.phase].format(each.name)


def explain(case: Case) -> Told:
    """The kind of the first difference, and a clause that says it."""
    return not_finite(case) or OF_PHASE[case.first.phase](case)


def not_finite(case: Case) -> Told | None:
    entries = sorted(case.first.sides, key=lambda each: each.bad)
    fewer, worse = entries[0], entries[-1]
    if fewer.bad == worse.bad:
        return None
    name = case.names[worse is case.first.other]
    numbers = f"{worse.bad:,.0f} of {worse.n:,.0f} numbers of {case.where} ({worse.dtype})"
    return "not-finite", f"{numbers} are not finite in {name}, {fewer.bad:,.0f} else"


def of_weights(case: Case) -> Told:
    """What it means that networks begin a step with other weights."""
    name, weights = case.first.name, table(case.ranks[0])
    if case.first.misses:
        has, lacks = case.holders
        for tied in (of for of in lacks.first["ties"] if name in of):
            one = f"{' and '.join(tied)} are one parameter in {lacks.name} (tied)"
            return "tied", f"{one}, and {len(tied)} parameters in {has.name}"
        return "structure", f"{case.where} is in {has.name} alone"
    if case.parting.steps > 1:
        return "step", f"{case.differs}, and nothing before: the optimizer computes something else"
    counts = [sum(phase == "param" for phase, *_ in of) for of in (case.parting.others, weights)]
    count = f"{counts[0]} of {counts[1]}, first {name}"
    if case.whole:
        return "weights", f"weights are not restored: {count}"
    why = "another seed, or none, before the network is made, or others are loaded"
    return "initial-weights", f"weights differ from the start: {count}: {why}"


def examples(rank: Rank) -> list[Any]:
    """What tells the examples of a step apart: indices, or else projections of the inputs.

    The last batches are those that were trained on: a resumed loop skips some before. Of several
    networks that with most inputs counts.
    """
    batches = [indices for _, indices in rank["data"]][-rank["micro"] :]
    if batches:
        return [hashable(index) for of in batches for index in of]
    found = defaultdict[str, list[str]](list)
    for name, projections in rank["examples"]:
        found[name] += [f"{x:.9e}" for x in projections]
    return max(found.values(), key=len, default=[])


def taken(ranks: Sequence[Rank]) -> list[Any]:
    return [each for rank in ranks for each in examples(rank)]


def common(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The share of examples that two steps have in common."""
    mine, theirs = {*one}, {*other}
    return len(mine & theirs) / max(len(mine), len(theirs), 1)


def hashable(index: Any) -> Any:
    return tuple(map(hashable, index)) if isinstance(index, list) else index


def of_input(case: Case) -> Told:
    """What inputs that differ mean."""
    for this, ranks, _, _ in reversed(case.sides):
        own = [examples(rank) for rank in ranks]
        if len(own) > 1 and all(common(own[0], each) > ALIKE for each in own[1:]):
            same = f"all {len(own)} ranks of {this.name} take the same examples"
            return "same-on-ranks", f"{same}: its sampler does not divide them"
    mine, theirs = map(taken, case.ranks)
    if len(mine) != len(theirs):
        return "batch", f"the examples of a step are {case.both(len(mine), len(theirs))}"
    if common(mine, theirs) > ALIKE:
        differ = " and ".join(states(case))
        why = f": the random state of {differ} differs" if differ else ""
        same = "the loaders take the same examples"
        return "augmentation", f"{same}, but their values differ {case.size}{why}"
    a, b = case.names
    if step := case.whole and begins(case.whole.steps, theirs):
        lost = "the position in the data was not restored"
        return "position", f"{b} goes on with the examples of {a}'s step {step}: {lost}"
    before = case.parting.steps - 1
    for this, ranks, that, others in reversed(case.sides):
        step = begins(this.steps[:before], taken(ranks))
        if step and begins(that.steps[:before], taken(others)) != step:
            again = f"{this.name} takes the examples of its step {step} again"
            why = "its order is the same in each epoch (sampler.set_epoch is not called)"
            return "epoch", f"{again}: {why}"
    lone = [[each for each in a if each not in b] for a, b in ((mine, theirs), (theirs, mine))]
    said = f"{len(lone[0])} of {counted(len(mine), 'example')} are others"
    if case.ranks[0][0]["data"]:  # else nothing but their values is known
        said += f": {case.both(*(', '.join(map(str, of[:SHOWN])) for of in lone))}"
    return "order", said


def begins(steps: Sequence[Sequence[Rank]], these: Sequence[Any]) -> int | None:
    """The first step, from 1, that takes these examples."""
    same = (n for n, ranks in enumerate(steps, 1) if common(taken(ranks), these) > ALIKE)
    return next(same, None)


def states(case: Case) -> dict[str, int]:
    """The random states that differ and that somebody has drawn from, and on which rank first."""
    born, found = case.parting.one.first["born"], dict[str, int]()
    for number, (mine, theirs) in enumerate(zip(*case.ranks, strict=False)):
        for name in mine["rng"].keys() & theirs["rng"].keys():
            if mine["rng"][name] not in (theirs["rng"][name], born.get(name)):
                found.setdefault(name, number)
    return dict(sorted(found.items()))


def of_optimizer(case: Case) -> Told:
    """What its state, its options or a GradScaler that differ mean."""
    if case.first.phase == "state":
        alone = f"{case.where} is in {case.holders[0].name} alone"
        return "optimizer-state", alone if case.first.misses else case.differs
    option = "learning-rate" if case.first.name.startswith("lr") else "hyper"
    numbers = [each.total for each in case.first.sides]
    shown = ([f"{each:.{digits}g}" for each in numbers] for digits in range(4, 18))
    values = case.both(*next((texts for texts in shown if len({*texts}) > 1), numbers))
    return "scaler" if case.first.phase == "scale" else option, f"{case.where} is {values}"


def of_gradients(case: Case) -> Told:
    """What a loss or gradients that differ mean."""
    mine, theirs = ({name: of for (phase, name), of in each.items() if phase == "grad"}
                    for each in tables(*case.ranks))  # fmt: skip
    keys = [key for key in mine if key in theirs]
    a, b = case.names
    for has, lacks, name, than in ((mine, theirs, a, b), (theirs, mine, b, a)):
        if odd := [key for key in has if key not in lacks]:
            alone = f"{counted(odd, 'parameter')}, first {odd[0]}, trained in {name} alone"
            return "not-trained", f"{alone}: the optimizer of {than} does not have it"
        if lone := [key for key in keys if has[key].square and not lacks[key].square]:
            some = f"{len(lone)} of {counted(keys, 'parameter')}, first {lone[0]}"
            why = f"detached, frozen or unused in {than}"
            return "no-gradient", f"{some}, have a gradient in {name} alone: {why}"
    shares = [(theirs[key].zeros / theirs[key].n - mine[key].zeros / mine[key].n, key)
              for key in keys if mine[key].n == theirs[key].n > 0]  # fmt: skip
    more, key = max(shares, key=lambda each: abs(each[0]), default=(0.0, ""))
    if abs(more) > MORE_ZEROS and has_float16(case.ranks[more > 0]):
        zero = f"{100 * abs(more):.0f} % of the gradient of {key} are zero"
        return "underflow", f"{zero} in {b if more > 0 else a} alone (a GradScaler helps)"
    if (ratio := factor(mine, theirs)) is not None:
        return of_factor(case, ratio)
    if ratio := factor_of_loss(case):  # gradients that are clipped do not show it
        kind, said = of_factor(case, ratio)
        if kind != "factor":
            return kind, said
    if not case.unlike:
        return "function", f"{case.differs}, and all outputs before are equal"
    why = f"{case.unlike}, and a mean of means over unequal numbers of tokens does that"
    return "weights-of-examples", (
        f"all outputs are equal, but {case.differs}, and gradients by no one factor: {why}"
    )


def has_float16(ranks: Sequence[Rank]) -> bool:
    """Whether a step computes anything in float16, in which small gradients are zero."""
    return any(entry.dtype == "float16" for entry in table(ranks).values())


def factor_of_loss(case: Case) -> float | None:
    """How many times as large the loss of B is as that of A; None if that is 1 or not known."""
    one, other = (table(ranks).get(("loss", "loss")) for ranks in case.ranks)
    ratio = other.total / one.total if one and other and one.total else 1.0
    return None if ratio <= 0 or is_near(ratio, 1.0) else ratio


def factor(mine: Mapping[str, Entry], theirs: Mapping[str, Entry]) -> float | None:
    """The one number by which all gradients of B are those of A; None without, or if it is 1."""
    mine = {key: entry for key, entry in mine.items() if key in theirs}
    squares = [sum(of[key].square for key in mine) for of in (mine, theirs)]
    if not all(squares) or not all(map(math.isfinite, squares)):
        return None
    ratio, least = math.sqrt(squares[1] / squares[0]), SMALL * math.sqrt(squares[0])
    for key, one in mine.items():
        norm, other = max(math.sqrt(one.square), least), theirs[key]
        sums = (one.total, other.total), (one.folded, other.folded)
        if any(abs(b - ratio * a) > ONE_FACTOR * ratio * norm for a, b in sums):
            return None
    return None if is_near(ratio, 1.0) else ratio


def of_factor(case: Case, ratio: float) -> Told:
    """What one factor for all gradients means."""
    of_a, of_b = case.sides  # each begins with its own training
    that, small, this, big = of_a if ratio > 1 else of_b
    times = max(ratio, 1 / ratio)
    losses = [each.total for of in (small, big) if (each := table(of).get(("loss", "loss")))]
    by_loss = len(losses) == 2 and losses[0] != 0 and is_near(losses[1] / losses[0], times)
    what = f"in {this.name} {'the loss is' if by_loss else 'gradients are'} {times:.3g} times as"
    what += f" large as in {that.name}"
    (ranks, micro), of_small = shape(big), shape(small)
    once, scale = "does not divide by their number", table(big).get(("scale", "scale"))
    left = "that is its GradScaler's scale, so they are not unscaled"
    for kind, n, why in (
        ("accumulation", micro * by_loss, f"{this.name} adds up {micro} micro-batches and {once}"),
        ("sum-over-ranks", ranks, f"{this.name} adds up over {ranks} ranks and {once}"),
        ("not-unscaled", scale.total if scale else 0, left),
        *(("divided-twice", n, f"{that.name} divides by {n} once too often") for n in of_small),
    ):
        if is_near(n, times):
            return kind, f"{what}: {why}"
    return "factor", f"{what}, by one factor for all gradients"


def is_near(number: float, times: float) -> bool:
    return number > 0 and abs(math.log(number / times)) < NEAR


def of_module(case: Case) -> Told:
    """What an output that differs first means."""
    if "Dropout" in case.module:
        mask = f"{case.where} has another mask"
        if case.unlike:
            return "dropout", f"{mask}, as is expected: {case.unlike}"
        if (rank := states(case).get("torch")) is None:
            return "dropout", mask
        mask += ": the random state of torch differs"
        several = f" on rank {rank}, so ranks are seeded otherwise"
        return "dropout", mask + (several if len(case.ranks[0]) > 1 else "")
    if "BatchNorm" in case.module and case.unlike:
        why = "and it takes mean and variance over each, as is expected"
        return "batchnorm", f"{case.differs}: {case.unlike}, {why}"
    dtypes = [entry.dtype for entry in case.first.sides if entry.dtype in LIMITS]
    if len({*dtypes}) > 1:
        return "precision", f"{case.where} is computed in {case.both(*dtypes)}"
    return "module", f"{case.differs}, and all outputs before are equal"


OF_PHASE = {
    "param": of_weights,
    "input": of_input,
    "output": of_module,
    **dict.fromkeys(("loss", "grad"), of_gradients),
    **dict.fromkeys(("scale", "hyper", "state"), of_optimizer),
}


def beside(case: Case) -> Iterator[Told]:
    """What else differs in the same step and does not follow from the first difference."""
    for each in case.parting.others:
        lone = each.phase in ("hyper", "scale") or (each.phase == "state" and each.misses)
        if lone and each != case.first:
            yield explain(replace(case, first=each))


def sentence(case: Case, also: Sequence[str]) -> Told:
    """The kind and the answer where trainings part. also: clauses on what else differs."""
    parting, first, step = case.parting, case.first, case.parting.steps
    kind, said = explain(case)
    if parting.grown:
        kind, said = "rounding", f"{case.differs}: rounding has grown, and no place can be told"
    elif kind in ALONE and first.phase == "grad" and step > 1 and first.distance < MOST:
        kind, said = "rounding", f"{case.differs}, {KINK}"
    last, until = parting.one.began + step - 1, ""
    if step > 1:
        exactly = parting.inexact is None or parting.inexact[0] >= step
        how = "bit for bit" if exactly else f"but for rounding ({parting.worst:.0e} at most)"
        until = f"Equal {how} up to step {last}. "
    more = f" In the same step, {'; '.join(also)}." if also else ""
    return kind, f"{until}At step {last + 1}: {said}.{more}"


def nothing(parting: Divergence) -> Told:
    """The kind and the answer where trainings do not part."""
    began, harmless = parting.one.began, ""
    text = f"Nothing differs up to step {began + parting.steps}"
    if parting.harmless:
        harmless = f", but for {place(parting.harmless)}, which training does not follow"
    if parting.inexact is None or parting.worst <= EXACT:
        return "rounding" if parting.inexact else "equal", f"{text}: bit for bit{harmless}."
    step, each = parting.inexact
    since = f"{parting.worst:.0e} at most; from step {began + step}, {Case(parting, each).where} on"
    return "rounding", f"{text} but by rounding ({since}){harmless}."


def besides(one: Training, other: Training) -> Iterator[str]:
    """What is said of two trainings whether or not they part."""
    if not is_alike(one.steps[0], other.steps[0]):
        why = "one has them whole, or in other parts (FullyShardedDataParallel)"
        yield f"Weights and gradients are not compared: {why}."
    for training in (one, other):
        yield from _of_ranks(training)
        if training.lost:
            yield f"Not all could be recorded in {training.name}: {training.lost}."


def _of_ranks(training: Training) -> Iterator[str]:
    """Where the ranks of a training part, which have all gradients."""
    for step, ranks in enumerate([] if training.first.get("parts") else training.steps, 1):
        found = [each for rank in ranks[1:] for each in differences(ranks[:1], [rank])]
        if odd := [each for each in found if each.phase == "grad" and each.distance > AGREED]:
            of = f"gradients of {odd[0].name} from step {step} on"
            yield f"The ranks of {training.name} have other {of}."
            return


def answer(
    parting: Divergence, whole: Training | None = None, exact: bool = False
) -> dict[str, Any]:
    """What was found, as JSON has it.

    whole: of a resumed training that which was not interrupted. exact: whether it is about all that
    is not equal.
    """
    also, began = dict[str, str](), parting.one.began
    if parting.first is None:
        kind, text = nothing(parting)
    else:
        case = Case(parting, parting.first[1], whole)
        also = dict(beside(case))
        kind, text = sentence(case, [*also.values()])
    step, each = (parting.inexact if exact else parting.first) or (None, None)
    return {
        "version": 1,
        "kind": kind,
        "step": step and step + began,
        "phase": each and each.phase,
        "name": each and each.name,
        "distance": each and each.distance,
        "text": text,
        "also": [*also],
        "inexact": parting.inexact and [parting.inexact[0] + began, *parting.inexact[1][:3]],
        "worst": parting.worst,
        "steps": parting.steps,
        "behind": [],
    }
