"""What kind of difference the first one is, and the sentence that says so."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

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
    table,
)
from ninefold.numbers import counted

AGREED = 1e-6  # gradients of two ranks that are averaged
ONE_FACTOR = 0.005  # that gradients may be apart from one factor for all
SMALL = 1e-3  # of the norm of all gradients: what is smaller need not follow that factor as well
NEAR = 0.02  # that a factor may be apart from a number that explains it
MORE_ZEROS = 0.05  # share of a gradient that is zero in one alone: it has underflowed
ALIKE = 0.9  # share of examples that two steps have in common if they have the same ones
SHOWN = 3  # examples
# Another backward pass is another one in step 1, too.
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
VALUES = "{case.where} is {case.first.one.total:.4g} in {A} and {case.first.other.total:.4g} in {B}"
# By kind; the function that tells a kind has what is in braces besides the case and its names.
SENTENCES = {
    "not-finite": "{bad:,.0f} of {n:,.0f} numbers of {case.where} ({dtype}) are not finite in "
    "{name}, {fewer:,.0f} else",
    "tied": "{tied} are one parameter in {lacks} (tied), and {count} parameters in {has}",
    "structure": "{case.where} is in {has} alone",
    "weights": "weights are not restored: {count}, first {case.first.name}",
    "initial-weights": "weights differ from the start: {count}, first {case.first.name}: no seed "
    "is set before the network is made",
    "same-on-ranks": "all {ranks} ranks of {name} take the same examples: its sampler does not "
    "divide them",
    "batch": "the examples of a step are {counts}",
    "augmentation": "the loaders take the same examples, but their values differ {case.size}{why}",
    "position": "{B} goes on with the examples of {A}'s step {step}: the position in the data was "
    "not restored",
    "epoch": "{name} takes the examples of its step {step} again: its order is the same in each "
    "epoch (sampler.set_epoch is not called)",
    "order": "{lone} of {examples} are others: {first}",
    "dropout": "{case.where} has another mask{why}",
    "batchnorm": "{case.where} differs {case.size}: {case.unlike}, and it takes mean and variance "
    "over each, as is expected",
    "precision": "{case.where} is computed in {dtypes}",
    "module": "{case.where} differs {case.size}, and all outputs before are equal",
    "learning-rate": VALUES,
    "hyper": VALUES,
    "scaler": VALUES,
    "optimizer-state": "{case.where} {differs}",
    "not-trained": "{odd}, first {first}, trained in {has} alone: the optimizer of {lacks} does "
    "not have it",
    "no-gradient": "{lone} of {parameters}, first {first}, have a gradient in {has} alone: "
    "detached, frozen or unused in {lacks}",
    "underflow": "{share:.0f} % of the gradient of {first} are zero in {name} alone (a GradScaler "
    "helps)",
    "accumulation": "{what}: {name} adds up {n} micro-batches and does not divide by their number",
    "sum-over-ranks": "{what}: {name} adds up over {n} ranks and does not divide by their number",
    "not-unscaled": "{what}, by its GradScaler's scale: they are not unscaled",
    "divided-twice": "{what}: {than} divides by {n} once too often",
    "factor": "{what}, by one factor for all gradients",
    "function": "{case.where} differs {case.size}, and all outputs before are equal",
    "weights-of-examples": "all outputs are equal, but {case.where} differs {case.size}, and "
    "gradients by no one factor: {case.unlike}, and a mean of means over unequal numbers of tokens "
    "does that",
    "step": "{case.where} differs {case.size}, and nothing before: the optimizer computes "
    "something else",
}
Evidence = tuple[str, dict[str, Any]]  # a kind, and what its sentence is filled in with


class Said(NamedTuple):
    """kind, text: of the answer. also: kinds of what else differs in the same step."""

    kind: str
    text: str
    also: Sequence[str] = ()


@dataclass(frozen=True)
class Case:
    """A difference where two trainings part.

    whole: of a resumed training that which was not interrupted.
    """

    parting: Divergence
    first: Difference
    whole: Training | None = None

    @property
    def step(self) -> int:
        """Of both, from 1."""
        return self.parting.steps

    @property
    def ranks(self) -> tuple[list[Rank], list[Rank]]:
        number = self.step - 1
        return self.parting.one.steps[number], self.parting.other.steps[number]

    @property
    def sides(self) -> list[tuple[Training, list[Rank], Training, list[Rank]]]:
        """Each training against the other, with the ranks of this step."""
        (a, b), one, other = self.ranks, self.parting.one, self.parting.other
        return [(one, a, other, b), (other, b, one, a)]

    @property
    def unlike(self) -> str:
        """What differs in number, ranks or micro-batches; empty if nothing does."""
        for what, one, other in zip(
            ("ranks", "micro-batches"), *map(shape, self.ranks), strict=True
        ):
            if one != other:
                return f"{what} are {self.both(one, other)}"
        return ""

    def both(self, one: object, other: object) -> str:
        return f"{one} in {self.parting.one.name} and {other} in {self.parting.other.name}"

    @property
    def where(self) -> str:
        """The entry in words, with the class of its module."""
        return place(self.first) + (f" ({self.module})" if self.module else "")

    @property
    def module(self) -> str:
        """The class of the module that the entry is of."""
        return str(self.parting.one.first["modules"].get(self.first.name.partition("[")[0], ""))

    @property
    def size(self) -> str:
        distance = self.first.distance
        known = self.first.phase == "grad" and distance < math.inf
        return f"{size(distance)} of all gradients" if known else size(distance)

    @cached_property
    def gradients(self) -> list[dict[str, Entry]]:
        """Of both, by A's names."""
        tables = (table(self.ranks[0], {}), table(self.ranks[1], self.parting.names))
        return [{name: of for (phase, name), of in each.items() if phase == "grad"}
                for each in tables]  # fmt: skip


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


def explain(case: Case) -> Said:
    """The kind of the first difference, and a clause that says it."""
    kind, values = not_finite(case) or OF_PHASE[case.first.phase](case)
    names = {"A": case.parting.one.name, "B": case.parting.other.name}
    return Said(kind, SENTENCES[kind].format(case=case, **names, **values))


def not_finite(case: Case) -> Evidence | None:
    entries = sorted(case.first.sides, key=lambda each: each.bad)
    fewer, worse = entries[0], entries[-1]
    if fewer.bad == worse.bad:
        return None
    name = (case.parting.other if worse is case.first.other else case.parting.one).name
    values = {"bad": worse.bad, "n": worse.n, "dtype": worse.dtype}
    return "not-finite", {**values, "name": name, "fewer": fewer.bad}


def of_weights(case: Case) -> Evidence:
    """What it means that networks begin a step with other weights."""
    name, weights = case.first.name, table(case.ranks[0], {})
    if case.first.misses:
        has, lacks = (
            (case.parting.other, case.parting.one)
            if case.first.one is None
            else (case.parting.one, case.parting.other)
        )
        values = {"has": has.name, "lacks": lacks.name}
        for tied in (of for of in lacks.first["ties"] if name in of):
            return "tied", {**values, "tied": " and ".join(tied), "count": len(tied)}
        return "structure", values
    counts = [sum(phase == "param" for phase, *_ in of) for of in (case.parting.others, weights)]
    kind = "step" if case.step > 1 else "weights" if case.whole else "initial-weights"
    return kind, {"count": f"{counts[0]} of {counts[1]}"}


def examples(rank: Rank) -> list[Any]:
    """What tells the examples of a step apart: indices, or else projections of the inputs.

    The last batches are those that were trained on: a resumed loop skips some before. Of several
    networks that with most inputs counts.
    """
    batches = [indices for _, indices in rank["data"]][-rank["micro"] :]
    if batches:
        return [each for of in batches for each in of]
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


def of_input(case: Case) -> Evidence:
    """What inputs that differ mean."""
    for this, ranks, _, _ in reversed(case.sides):
        own = [examples(rank) for rank in ranks]
        if len(own) > 1 and all(common(own[0], each) > ALIKE for each in own[1:]):
            return "same-on-ranks", {"ranks": len(own), "name": this.name}
    mine, theirs = map(taken, case.ranks)
    if len(mine) != len(theirs):
        return "batch", {"counts": case.both(len(mine), len(theirs))}
    if common(mine, theirs) > ALIKE:
        differ = " and ".join(states(case))
        why = f": the random state of {differ} differs" if differ else ""
        return "augmentation", {"why": why}
    if step := case.whole and begins(case.whole.steps, theirs):
        return "position", {"step": step}
    for this, ranks, that, others in reversed(case.sides):
        step = begins(this.steps[: case.step - 1], taken(ranks))
        if step and begins(that.steps[: case.step - 1], taken(others)) != step:
            return "epoch", {"name": this.name, "step": step}
    lone = [[each for each in a if each not in b] for a, b in ((mine, theirs), (theirs, mine))]
    first = case.both(*(", ".join(str(each)[:8] for each in of[:SHOWN]) for of in lone))
    values = {"lone": len(lone[0]), "examples": counted(len(mine), "example")}
    return "order", {**values, "first": first}


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


def of_optimizer(case: Case) -> Evidence:
    """What its state, its options or a GradScaler that differ mean."""
    if case.first.phase == "state":
        alone = (case.parting.one if case.first.one else case.parting.other).name
        differs = f"is in {alone} alone" if case.first.misses else f"differs {case.size}"
        return "optimizer-state", {"differs": differs}
    option = "learning-rate" if case.first.name.startswith("lr") else "hyper"
    return "scaler" if case.first.phase == "scale" else option, {}


def of_gradients(case: Case) -> Evidence:
    """What a loss or gradients that differ mean."""
    mine, theirs = case.gradients
    keys = [key for key in mine if key in theirs]
    a, b = case.parting.one.name, case.parting.other.name
    for has, lacks, name, than in ((mine, theirs, a, b), (theirs, mine, b, a)):
        values = {"has": name, "lacks": than}
        if odd := [key for key in has if key not in lacks]:
            return "not-trained", {**values, "odd": counted(odd, "parameter"), "first": odd[0]}
        if lone := [key for key in keys if has[key].square and not lacks[key].square]:
            values |= {"parameters": counted(keys, "parameter"), "first": lone[0]}
            return "no-gradient", {**values, "lone": len(lone)}
    shares = [(theirs[key].zeros / theirs[key].n - mine[key].zeros / mine[key].n, key)
              for key in keys if mine[key].n == theirs[key].n > 0]  # fmt: skip
    more, key = max(shares, key=lambda each: abs(each[0]), default=(0.0, ""))
    if abs(more) > MORE_ZEROS:
        return "underflow", {"share": 100 * abs(more), "first": key, "name": b if more > 0 else a}
    if (ratio := factor(mine, theirs)) is not None:
        return of_factor(case, ratio)
    return "weights-of-examples" if case.unlike else "function", {}


def factor(mine: Mapping[str, Entry], theirs: Mapping[str, Entry]) -> float | None:
    """The one number by which all gradients of B are those of A; None without, or if it is 1."""
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


def of_factor(case: Case, ratio: float) -> Evidence:
    """What one factor for all gradients means."""
    of_a, of_b = case.sides  # each begins with its own training
    that, small, this, big = of_a if ratio > 1 else of_b
    times = max(ratio, 1 / ratio)
    losses = [each.total for of in (small, big) if (each := table(of, {}).get(("loss", "loss")))]
    by_loss = len(losses) == 2 and losses[0] != 0 and is_near(losses[1] / losses[0], times)
    what = f"in {this.name} {'the loss is' if by_loss else 'gradients are'} {times:.3g} times as"
    values = {"what": f"{what} large as in {that.name}", "name": this.name, "than": that.name}
    (ranks, micro), (ranks_of_small, micro_of_small) = shape(big), shape(small)
    scale = table(big, {}).get(("scale", "scale"))
    for kind, n in (
        ("accumulation", micro if by_loss else 0),
        ("sum-over-ranks", ranks),
        ("not-unscaled", scale.total if scale else 0),
        ("divided-twice", micro_of_small),
        ("divided-twice", ranks_of_small),
    ):
        if is_near(n, times):
            return kind, {**values, "n": n}
    return "factor", values


def is_near(number: float, times: float) -> bool:
    return number > 0 and abs(math.log(number / times)) < NEAR


def of_module(case: Case) -> Evidence:
    """What an output that differs first means."""
    if "Dropout" in case.module:
        if case.unlike:
            return "dropout", {"why": f", as is expected: {case.unlike}"}
        rank = states(case).get("torch")
        why = "" if rank is None else ": the random state of torch differs"
        if rank is not None and len(case.ranks[0]) > 1:
            why += f" on rank {rank}, so ranks are seeded otherwise"
        return "dropout", {"why": why}
    if "BatchNorm" in case.module and case.unlike:
        return "batchnorm", {}
    dtypes = [entry.dtype for entry in case.first.sides if entry.dtype in LIMITS]
    if len({*dtypes}) > 1:
        return "precision", {"dtypes": case.both(*dtypes)}
    return "module", {}


OF_PHASE = {
    "param": of_weights,
    "input": of_input,
    "output": of_module,
    **dict.fromkeys(("loss", "grad"), of_gradients),
    **dict.fromkeys(("scale", "hyper", "state"), of_optimizer),
}


def facts(case: Case) -> Iterator[Said]:
    """What else differs in the same step and does not follow from the first difference."""
    for each in case.parting.others:
        lone = each.phase in ("hyper", "scale") or (each.phase == "state" and each.misses)
        if lone and each != case.first:
            yield explain(replace(case, first=each))


def sentence(parting: Divergence, whole: Training | None = None) -> Said:
    """The answer. whole: of a resumed training that which was not interrupted."""
    if parting.first is None:
        return nothing(parting)
    step, first = parting.first
    case = Case(parting, first, whole)
    said, also = explain(case), {each.kind: each.text for each in facts(case)}
    if parting.grown:
        why = "rounding has grown, and no place can be told"
        said = Said("rounding", f"{case.where} differs {case.size}: {why}")
    elif said.kind == "function" and first.phase == "grad" and step > 1 and first.distance < MOST:
        said = Said("rounding", f"{case.where} differs {case.size}, {KINK}")
    last, until = parting.one.began + step - 1, ""
    if step > 1:
        exactly = parting.inexact is None or parting.inexact[0] >= step
        how = "bit for bit" if exactly else f"but for rounding ({parting.worst:.0e} at most)"
        until = f"Equal {how} up to step {last}. "
    more = f" In the same step, {'; '.join(also.values())}." if also else ""
    return Said(said.kind, f"{until}At step {last + 1}: {said.text}.{more}", [*also])


def nothing(parting: Divergence) -> Said:
    """The answer where trainings do not part."""
    began, harmless = parting.one.began, ""
    text = f"Nothing differs up to step {began + parting.steps}"
    if parting.harmless:
        harmless = f", but for {place(parting.harmless)}, which training does not follow"
    if parting.inexact is None or parting.worst <= EXACT:
        return Said("rounding" if parting.inexact else "equal", f"{text}: bit for bit{harmless}.")
    step, each = parting.inexact
    since = f"{parting.worst:.0e} at most; from step {began + step}, {Case(parting, each).where} on"
    return Said("rounding", f"{text} but by rounding ({since}){harmless}.")


def besides(training: Training) -> Iterator[str]:
    """What is said of a training whether or not it parts from another."""
    others = (
        f"The ranks of {training.name} have other gradients of {each.name} from step {step} on."
        for step, ranks in enumerate(training.steps, 1)
        for rank in ranks[1:]
        for each in differences(ranks[:1], [rank], {})
        if each.phase == "grad" and each.distance > AGREED
    )
    yield from islice(others, 1)
    if lost := training.steps[-1][0]["lost"]:
        yield f"Not all could be recorded in {training.name}: {lost}."


def answer(
    parting: Divergence, whole: Training | None = None, exact: bool = False
) -> dict[str, Any]:
    """What was found, as JSON has it. exact: whether it is about all that is not equal."""
    said, began = sentence(parting, whole), parting.one.began
    step, each = (parting.inexact if exact else parting.first) or (None, None)
    return {
        "version": 1,
        "kind": said.kind,
        "step": step and step + began,
        "phase": each and each.phase,
        "name": each and each.name,
        "distance": each and each.distance,
        "text": said.text,
        "also": [*said.also],
        "inexact": parting.inexact and [parting.inexact[0] + began, *parting.inexact[1][:3]],
        "worst": parting.worst,
        "steps": parting.steps,
        "behind": [],
    }
