"""What kind of difference the first one is, and the sentence that says so."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ninefold.diff.compare import (
    EXACT,
    UNITS,
    Difference,
    Entry,
    Found,
    of_step,
    shape,
    summed,
    table,
)
from ninefold.diff.starts import Rank, Training
from ninefold.numbers import counted

ONE_FACTOR = 0.005  # that gradients may be apart from one factor for all
SMALL = 1e-3  # of the norm of all gradients: what is smaller need not follow that factor as well
NEAR = 0.02  # that a factor may be apart from a number that explains it
MORE_ZEROS = 0.05  # share of a gradient that is zero in one alone: it has underflowed
MOST = 0.9  # share of examples that two steps have in common if they have the same ones
SHOWN = 3  # examples
# Kinds that hide what comes behind them, and what is switched off to look there.
BEHIND = {
    **dict.fromkeys(("order", "epoch", "same-on-ranks"), "order"),
    **{each: each for each in ("dropout", "batchnorm")},
}
PLACES = {
    "start": "the initial {}",
    "held": "the buffer {}",
    "input": "the input of {}",
    "between": "what functions compute for {}",
    "loss": "the {}",
    "scale": "the GradScaler's {}",
    "hyper": "{}",
    "state": "the optimizer's {}",
    "grad": "the gradient of {}",
    "param": "{} after the step",
    "buffer": "the buffer {} after the step",
}


class Said(NamedTuple):
    kind: str
    text: str


@dataclass(frozen=True)
class Case:
    """Two trainings and where they part.

    step: of both, from 1. whole: of a resumed training that which was not interrupted.
    """

    one: Training
    other: Training
    found: Found
    step: int
    first: Difference
    whole: Training | None = None

    @property
    def names(self) -> tuple[str, str]:
        return self.one.name, self.other.name

    @property
    def ranks(self) -> tuple[list[Rank], list[Rank]]:
        return self.one.steps[self.step - 1], self.other.steps[self.step - 1]

    @property
    def differ_in_number(self) -> bool:
        """Whether the ranks or micro-batches of a step differ in number."""
        a, b = self.ranks
        return shape(a) != shape(b)

    def both(self, one: object, other: object) -> str:
        return f"{one} in {self.one.name} and {other} in {self.other.name}"

    def where(self) -> str:
        """The entry in words, with the class of its module."""
        kind = self.module
        return place(self.first) + (f" ({kind})" if kind else "")

    @property
    def module(self) -> str:
        """The class of the module that the entry is of."""
        modules, name = self.one.first["modules"], self.first.name.partition("[")[0]
        return str(modules[name][0]) if name in modules else ""


def size(distance: float) -> str:
    """A distance in words."""
    if distance == math.inf:
        return "in its number of elements"
    if distance < 1e-4:
        return f"by {distance:.0e}"
    return f"by {100 * distance:,.{0 if distance > 0.1 else 2}f} %"


def number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def place(each: Difference) -> str:
    """An entry in words."""
    return PLACES.get(each.phase, "the output of {}").format(each.name)


def explain(case: Case) -> Said:
    """The kind of the first difference, and a clause that says it."""
    first, (a, b) = case.first, case.ranks
    missing = first.one is None or first.other is None
    if not missing and first.one.bad != first.other.bad:  # type: ignore[union-attr]
        return not_finite(case)
    if first.phase in ("start", "input"):
        return (of_start if first.phase == "start" else of_input)(case)
    if first.phase == "hyper":
        kind = "learning-rate" if first.name.startswith("lr") else "hyper"
        values = case.both(*(number(ranks[0]["hyper"].get(first.name)) for ranks in (a, b)))
        lost = ": the learning rate was not restored" if case.whole else ""
        return Said(kind, f"{first.name} is {values}{lost}")
    if first.phase == "scale":
        return Said("scaler", f"{place(first)} is {case.both(a[0]['scale'], b[0]['scale'])}")
    if first.phase == "state":
        alone = f"is in {case.names[first.one is None]} alone"
        said = alone if missing else f"differs {size(first.distance)}"
        return Said("optimizer-state", f"{place(first)} {said}")
    if first.phase == "param":
        differs = f"differs {size(first.distance)}: the optimizer computes something else"
        return Said("step", f"all up to the gradients is equal, and {place(first)} {differs}")
    if first.phase in ("loss", "grad"):
        return of_gradients(case)
    return of_module(case)


def not_finite(case: Case) -> Said:
    one, other = case.first.one, case.first.other
    assert one is not None
    assert other is not None
    worse = max(one, other, key=lambda each: each.bad)
    name = case.names[worse is other]
    count = f"{worse.bad:,.0f} of {worse.n:,.0f} numbers of {case.where()} ({worse.dtype})"
    return Said(
        "not-finite", f"{count} are not finite in {name}, {min(one.bad, other.bad):.0f} else"
    )


def of_start(case: Case) -> Said:
    """What it means that networks do not begin with the same weights."""
    first, names = case.first, case.names
    if first.one is None or first.other is None:
        has, lacks = (case.other, case.one) if first.one is None else (case.one, case.other)
        for tied in (of for of in lacks.first["ties"] if first.name in of):
            said = f"{' and '.join(tied)} are one parameter in {lacks.name} (tied)"
            return Said("tied", f"{said}, and {len(tied)} parameters in {has.name}")
        return Said("structure", f"the parameter {first.name} is in {has.name} alone")
    unlike = sum(each.phase == "start" for each in case.found.others)
    count = f"{unlike} of {len(case.one.first['params'])}, first {first.name}"
    if case.whole:
        return Said("weights", f"weights are not restored: {count}")
    why = "no seed is set before the network is made"
    return Said("initial-weights", f"weights differ from the start in {names[0]}: {count}: {why}")


def examples(rank: Rank) -> list[Any]:
    """What tells the examples of a step apart: indices, or else projections of the inputs.

    The last batches are those that were trained on: a resumed loop skips some before.
    """
    batches = [indices for _, indices in rank["data"]][-rank["micro"] :]
    if not batches:
        return [f"{x:.9e}" for x in inputs(rank)]
    return [each for of in batches for each in of]


def inputs(rank: Rank) -> list[float]:
    """A projection of each example that the network got; of several networks, that with most."""
    found = defaultdict[str, list[float]](list)
    for name, of in rank["examples"]:
        found[name] += of
    return max(found.values(), key=len, default=[])


def taken(ranks: Sequence[Rank]) -> list[Any]:
    return [each for rank in ranks for each in examples(rank)]


def common(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The share of examples that two steps have in common."""
    mine, theirs = {*one}, {*other}
    return len(mine & theirs) / max(len(mine), len(theirs), 1)


def of_input(case: Case) -> Said:
    """What inputs that differ mean."""
    names, far = case.names, case.first.distance
    mine, theirs = map(taken, case.ranks)
    for ranks, name in zip(reversed(case.ranks), reversed(names), strict=True):
        own = [examples(rank) for rank in ranks]
        if len(own) > 1 and all(common(own[0], each) > MOST for each in own[1:]):
            said = f"all {len(own)} ranks of {name} take the same examples"
            return Said("same-on-ranks", f"{said}: its sampler does not divide them")
    counts = [sum(len(inputs(rank)) for rank in ranks) for ranks in case.ranks]
    if counts[0] != counts[1]:
        return Said("batch", f"the examples of a step are {case.both(*counts)}")
    if common(mine, theirs) > MOST and far == math.inf:
        return Said(
            "shape", f"{place(case.first)} has the same examples, in another shape (padding)"
        )
    if common(mine, theirs) > MOST:
        said = f"the loaders take the same examples, but their values differ {size(far)}"
        differ = " and ".join(states(case))
        return Said(
            "augmentation", said + (f": the random state of {differ} differs" * bool(differ))
        )
    if again := earlier(case):
        return again
    lone = (
        [each for each in mine if each not in theirs],
        [each for each in theirs if each not in mine],
    )
    first = [", ".join(str(each)[:8] for each in of[:SHOWN]) for of in lone]
    said = f"{len(lone[0])} of {counted(len(mine), 'example')} are others"
    return Said("order", f"{said}: {case.both(*first)}")


def earlier(case: Case) -> Said | None:
    """Whether the examples are those of an earlier step, or of a resumed training of another."""
    one, other = case.one, case.other
    if case.whole is not None:
        for number, ranks in enumerate(case.whole.steps, 1):
            if common(taken(ranks), taken(case.ranks[1])) > MOST:
                said = f"{other.name} goes on with the examples of {one.name}'s step {number}"
                return Said("position", f"{said}: the position in the data was not restored")
    for this, that in ((other, one), (one, other)):
        now, then = (taken(of.steps[case.step - 1]) for of in (this, that))
        for step in range(case.step - 1):
            new = common(taken(that.steps[step]), then) <= MOST
            if new and common(taken(this.steps[step]), now) > MOST:
                said = f"{this.name} takes the examples of its step {step + 1} again"
                why = "its order is the same in each epoch (sampler.set_epoch is not called)"
                return Said("epoch", f"{said}: {why}")
    return None


def states(case: Case) -> list[str]:
    """The random states that differ, on any rank, and that somebody has drawn from."""
    born, found = case.one.first["born"], set[str]()
    for mine, theirs in zip(*case.ranks, strict=False):
        for name in mine["rng"].keys() & theirs["rng"].keys():
            if mine["rng"][name] not in (theirs["rng"][name], born.get(name)):
                found.add(name)
    return sorted(found)


def of_gradients(case: Case) -> Said:
    """What a loss or gradients that differ mean."""
    first, names = case.first, case.names
    mine, theirs = gradients(case.ranks[0], {}), gradients(case.ranks[1], case.found.names)
    keys = [key for key in mine if key in theirs]
    for number, (has, lacks) in enumerate(((mine, theirs), (theirs, mine))):
        name, than = names[number], names[1 - number]
        if odd := [key for key in has if key not in lacks]:
            said = f"{counted(len(odd), 'parameter')}, first {odd[0]}"
            why = f"the optimizer of {than} does not have it"
            return Said("not-trained", f"{said}, trained in {name} alone: {why}")
        if lone := [key for key in keys if has[key].size and not lacks[key].size]:
            said = f"{len(lone)} of {counted(len(keys), 'parameter')}, first {lone[0]}"
            why = f"detached, frozen or unused in {than}"
            return Said("no-gradient", f"{said}, have a gradient in {name} alone: {why}")
    shares = [(theirs[k].zeros / theirs[k].n - mine[k].zeros / mine[k].n, k)
              for k in keys if mine[k].n == theirs[k].n > 0]  # fmt: skip
    more, key = max(shares, key=lambda each: abs(each[0]), default=(0.0, ""))
    if abs(more) > MORE_ZEROS:
        said = (
            f"{100 * abs(more):.0f} % of the gradient of {key} are zero in {names[more > 0]} alone"
        )
        return Said("underflow", f"{said} (a GradScaler helps)")
    if (ratio := factor(mine, theirs)) is not None:
        return of_factor(case, ratio)
    differs = f"{place(first)} differs {size(first.distance)}"
    if not case.differ_in_number:
        return Said("function", f"{differs}, and all outputs before are equal")
    said = f"all outputs are equal, but {differs}, and gradients by no one factor: {unlike(case)}"
    why = "a mean of means over unequal numbers of tokens does that"
    return Said("weights-of-examples", f"{said}, and {why}")


def gradients(ranks: Sequence[Rank], names: Mapping[str, str]) -> dict[str, Entry]:
    return {key[1]: summed(of) for key, of in table(ranks, names).items() if key[0] == "grad"}


def factor(mine: Mapping[str, Entry], theirs: Mapping[str, Entry]) -> float | None:
    """The one number by which all gradients of B are those of A; None without, or if it is 1."""
    squares = [sum(of[key].square for key in mine) for of in (mine, theirs)]
    if not all(squares) or not all(map(math.isfinite, squares)):
        return None
    ratio, least = math.sqrt(squares[1] / squares[0]), SMALL * math.sqrt(squares[0])
    for key, one in mine.items():
        norm, other = max(math.sqrt(one.square), least), theirs[key]
        sums = (one.total, other.total), (one.folded, other.folded), (one.ordered, other.ordered)
        if any(abs(b - ratio * a) > ONE_FACTOR * ratio * norm for a, b in sums):
            return None
    return None if is_near(ratio, 1.0) else ratio


def of_factor(case: Case, ratio: float) -> Said:
    """What one factor for all gradients means."""
    times, large = max(ratio, 1 / ratio), int(ratio > 1)
    big, small = case.ranks[large], case.ranks[1 - large]
    name, than = case.names[large], case.names[1 - large]
    losses = [summed(table(r, {})["loss", "loss"]).total / len(r) for r in (small, big)]
    by_loss = losses[0] != 0 and is_near(losses[1] / losses[0], times)
    (ranks, micro), (ranks_of_small, micro_of_small) = shape(big), shape(small)
    what = f"in {name} {'the loss is' if by_loss else 'gradients are'} {times:.3g} times as large"
    what = f"{what} as in {than}"
    if by_loss and is_near(micro, times):
        why = f"{name} adds up {micro} micro-batches and does not divide by their number"
        return Said("accumulation", f"{what}: {why}")
    if is_near(ranks, times):
        why = f"{name} adds up over {ranks} ranks and does not divide by their number"
        return Said("sum-over-ranks", f"{what}: {why}")
    if is_near(big[0]["scale"] or 0.0, times):
        return Said("not-unscaled", f"{what}, by its GradScaler's scale: they are not unscaled")
    if is_near(micro_of_small, times) or is_near(ranks_of_small, times):
        return Said("divided-twice", f"{what}: {than} divides by {times:.3g} once too often")
    return Said("factor", f"{what}, by one factor for all gradients")


def is_near(number: float, times: float) -> bool:
    return number > 0 and abs(math.log(number / times)) < NEAR


def unlike(case: Case) -> str:
    """What differs in number: ranks or micro-batches."""
    a, b = map(shape, case.ranks)
    what, n = ("ranks", 0) if a[0] != b[0] else ("micro-batches", 1)
    return f"{what} are {case.both(a[n], b[n])}"


def of_module(case: Case) -> Said:
    """What a module's output, or the work of functions, that differs first means."""
    first, where = case.first, case.where()
    if "Dropout" in case.module:
        if case.differ_in_number:
            return Said("dropout", f"{where} has another mask, as is expected: {unlike(case)}")
        differ = [n for n, (a, b) in enumerate(zip(*case.ranks, strict=False))
                  if a["rng"] != b["rng"]]  # fmt: skip
        on = f" on rank {differ[0]}, so ranks are seeded otherwise" if case.one.world > 1 else ""
        return Said("dropout", f"{where} has another mask: the random state of torch differs{on}"
                    if differ else f"{where} has another mask")  # fmt: skip
    if "BatchNorm" in case.module and case.differ_in_number:
        said = f"{where} differs {size(first.distance)}: {unlike(case)}"
        return Said(
            "batchnorm", f"{said}, and it takes mean and variance over each, as is expected"
        )
    dtypes = [entry.dtype for entry in (first.one, first.other) if entry is not None]
    if len({*dtypes}) > 1 and {*dtypes} <= {*UNITS}:
        return Said("precision", f"{where} is computed in {case.both(*dtypes)}")
    from_ = " from equal inputs" if first.phase == "forward" else ""
    kind = "function" if first.phase == "between" else "module"
    return Said(kind, f"{where} differs {size(first.distance)}{from_}")


def of_precisions(one: Training, other: Training, names: Mapping[str, str]) -> str | None:
    """What the coarser of two dtypes costs in the first step, where weights and inputs are equal.

    A layer loses what its output is apart beyond what came before it, at least an eighth of a unit.
    """
    all_ = [*of_step(one.steps[0], other.steps[0], names)]
    outputs = [
        each for each in all_ if each.phase in ("forward", "output") and each.one and each.other
    ]
    dtypes = {
        of.dtype for each in outputs for of in (each.one, each.other) if of and of.dtype in UNITS
    }
    if not any(each.one.dtype != each.other.dtype for each in outputs if each.one and each.other):
        return None
    coarsest = max(dtypes, key=lambda name: UNITS[str(name)])
    unit, worst, before, most = UNITS[str(coarsest)], 0.0, 0.0, (0.0, "")
    for each in outputs:
        if each.distance == math.inf:
            break
        worst = max(worst, each.distance)
        most = max(most, (each.distance / max(before, unit / 8), place(each)))
        before = each.distance
    said = f"In step 1 outputs are apart by {worst / unit:.1f} units of {coarsest} at most"
    return f"{said}; most is lost in {most[1]}, {most[0]:.2g} times what came before."


def facts(case: Case) -> Iterator[Said]:
    """What else differs in the same step and does not follow from the first difference."""
    for each in case.found.others:
        missing = each.phase == "state" and None in (each.one, each.other)
        if each != case.first and (each.phase in ("hyper", "scale") or missing):
            yield explain(Case(case.one, case.other, case.found, case.step, each, case.whole))


def until(found: Found, step: int) -> str:
    """How far apart the trainings were before a step."""
    if step == 1:
        return "At step 1: "
    if found.inexact is None or found.inexact[0] >= step:
        return f"Equal bit for bit up to step {step - 1}. At step {step}: "
    most = f"{found.worst:.0e} at most"
    return f"Equal but for rounding ({most}) up to step {step - 1}. At step {step}: "


def sentence(case: Case | None, found: Found) -> Said:
    """The answer."""
    if case is not None and found.grown:
        why = f"{place(case.first)} differs {size(case.first.distance)}"
        why = f"{why}: rounding has grown, and no place can be told"
        return Said("rounding", f"{until(found, case.step)}{why}.")
    if case is not None:
        said = explain(case)
        also = "; ".join(dict.fromkeys(each.text for each in facts(case)))
        more = f" In the same step, {also}." if also else ""
        return Said(said.kind, f"{until(found, case.step)}{said.text}.{more}")
    text, harmless = f"Nothing differs up to step {found.steps}", ""
    if found.harmless:
        harmless = f", but for {place(found.harmless)}, which training does not follow"
    if found.worst <= EXACT:
        return Said("rounding" if found.inexact else "equal", f"{text}: bit for bit{harmless}.")
    step, each = found.inexact or (1, found.harmless)
    since = (
        "" if each is None or each == found.harmless else f"; from step {step}, {place(each)} on"
    )
    return Said("rounding", f"{text} but by rounding ({found.worst:.0e} at most{since}){harmless}.")
