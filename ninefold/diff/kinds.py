"""What kind of difference the first one is, and the sentence that says so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ninefold.diff.compare import (
    EXACT,
    LIMITS,
    ONE_FACTOR,
    OPTIONS,
    PHASES,
    SCALE,
    Difference,
    Divergence,
    Rank,
    Training,
    disagreement,
    examples,
    factor,
    is_near,
    parts,
    shape,
    table,
    taken,
    trained_on,
    underflow,
    without_call,
)
from ninefold.numbers import counted

ALIKE = 0.9  # share of examples that two steps have in common if they have the same ones
SHOWN = 3  # examples
OUTPUTS = "all compared outputs"
Told = tuple[str, str]  # a kind, and the clause that says it


def answer(parting: Divergence, exact: bool = False) -> dict[str, Any]:
    """What was found, as JSON has it.

    exact: whether its step and name are of the first that is not equal bit for bit.
    """
    also = [*beside(parting)]
    kind, text = sentence(parting, also) if parting.beyond else nothing(parting)
    first = parting.inexact if exact else parting.beyond and (parting.step, parting.beyond[0])
    step, each = first or (None, None)
    return {
        "version": 1,
        "kind": kind,
        "step": step,
        "phase": each and each.phase,
        "name": each and each.name,
        "distance": each and each.distance,
        "text": text,
        "also": [*dict.fromkeys(kind for kind, _ in also)],
        "inexact": parting.inexact and [parting.inexact[0], *parting.inexact[1][:3]],
        "worst": parting.worst,
        "steps": parting.steps,
        "behind": [],
    }


def sentence(parting: Divergence, also: Iterable[Told]) -> Told:
    """The kind and the answer where trainings part. also: what else differs."""
    first, until = parting.beyond[0], ""
    kind, said = explain(parting, first)
    if parting.grown:
        far = differs(parting, first)
        kind, said = "rounding", f"{far}: rounding has grown, and no place can be told"
    if parting.steps > 1:
        exactly = parting.inexact is None or parting.inexact[0] >= parting.step
        how = "bit for bit" if exactly else f"but for rounding ({since(parting)})"
        if not exactly and not parting.worst and parting.harmless:
            how = f"but for {where(parting, parting.harmless)}"
        until = f"Equal {how} up to step {parting.step - 1}. "
    more = f" In the same step, {'; '.join(said for _, said in also)}." if also else ""
    return kind, f"{until}At step {parting.step}: {said}.{more}"


def nothing(parting: Divergence) -> Told:
    """The kind and the answer where trainings do not part."""
    known = parting.one.unrecorded is parting.other.unrecorded is None
    what = "Nothing differs" if known else "Of what could be recorded, nothing differs"
    text, harmless = f"{what} up to step {parting.step}", ""
    if parting.harmless:
        alone = parting.harmless.misses
        why = "which one alone has" if alone else "which changes no loss or gradient"
        harmless = f", but for {where(parting, parting.harmless)}, {why}"
    if parting.inexact is None or parting.worst <= EXACT:
        return "rounding" if parting.inexact else "equal", f"{text}: bit for bit{harmless}."
    return "rounding", f"{text} but by rounding ({since(parting)}){harmless}."


def since(parting: Divergence) -> str:
    """How far rounding goes, and from where on."""
    assert parting.inexact is not None
    worst, (step, each) = parting.worst, parting.inexact
    far = f"{worst:.0e}" if worst < 0.01 else f"{100 * worst:.0f} %"
    of = ", in gradients" * (parting.kinks == worst > 0)
    return f"{far} at most{of}; from step {step}, {where(parting, each)} on"


def beside(parting: Divergence) -> Iterator[Told]:
    """What else differs where trainings part and does not follow from the first difference: each
    option, a state that one lacks, and behind options what parts the trainings without them.
    """
    rest = [each for each in parting.beyond if each.phase not in OPTIONS]
    behind = rest[:1] if parts(rest, parting.last) else []
    told = {option(each) for each in parting.beyond[:1]}
    for each in parting.beyond:
        missing = each.phase == "state" and each.misses
        if option(each) not in told and (each.phase in OPTIONS or missing or each in behind):
            told.add(option(each))
            yield explain(parting, each)


def remarks(one: Training, other: Training) -> Iterator[str]:
    """What is said of two trainings whether or not they part."""
    for training in (one, other):
        for step, ranks in enumerate(training.steps, 1):
            if odd := disagreement(ranks):
                of = f"gradients of {odd.name} from step {step} on"
                yield f"The ranks of {training.name} have other {of}."
                break
        if training.unrecorded:
            yield f"Not all could be recorded in {training.name}: {training.unrecorded}."


# A difference in words.


def module(parting: Divergence, each: Difference) -> str:
    """The class of the module that a difference is of."""
    name = each.name.partition("[")[0]
    known = [ranks[0]["modules"].get(name, "") for ranks in parting.ranks]  # so far
    return parting.both(*known) if all(known) and known[0] != known[1] else str(known[0])


def option(each: Difference) -> str:
    """`lr` of `lr of fc.weight`; of others the phase."""
    return each.name.partition(" of ")[0] if each.phase == "hyper" else each.phase


def where(parting: Divergence, each: Difference) -> str:
    kind = module(parting, each)
    return PHASES[each.phase].words.format(each.name) + (f" ({kind})" if kind else "")


def differs(parting: Divergence, each: Difference) -> str:
    return f"{where(parting, each)} differs {size(each)}"


def size(each: Difference) -> str:
    if each.distance == math.inf:
        return "in the number of elements"
    percent = f"{100 * each.distance:,.{0 if each.distance > 0.1 else 2}f} %"
    by = f"by {each.distance:.0e}" if each.distance < 1e-4 else f"by {percent}"
    return f"{by} of all gradients" if each.phase == "grad" else by


def unlike(parting: Divergence, of: Difference | None = None) -> str:
    """What differs in number, ranks, micro-batches, or calls of a module; empty if nothing does."""
    one, other = ((*shape(ranks), of and calls(ranks[0], of.name)) for ranks in parting.ranks)
    pairs = zip(("ranks", "micro-batches", "its calls"), one, other, strict=True)
    return next((f"{what} are {parting.both(a, b)}" for what, a, b in pairs if a != b), "")


def calls(rank: Rank, name: str) -> int:
    """How often a rank calls the module with the output of this name."""
    outputs = (other for phase, other, *_ in rank["entries"] if phase == "output")
    return sum(without_call(other) == name for other in outputs)


# What it means, by its phase.


def explain(parting: Divergence, each: Difference) -> Told:
    """The kind of a difference, and a clause that says it."""
    bad = [entry.bad for entry in each.sides]
    if min(bad) < max(bad):
        number = bad.index(max(bad))
        worse, name = each.sides[number], parting.names[number]
        numbers = f"{worse.bad:,.0f} of {worse.n:,.0f} numbers of {where(parting, each)}"
        skips = " (its GradScaler skips such a step)" * (SCALE in table(parting.ranks[number]))
        few = f"are not finite in {name}{skips}, {min(bad):,.0f} in {parting.names[1 - number]}"
        return "not-finite", f"{numbers} ({worse.dtype}) {few}"
    if each.phase in ("output", "loss", "grad"):
        if took_others(parting):
            return of_input(parting, each)
        rows = [taken(ranks, by_index=False) for ranks in parting.ranks]
        if rows[0] != rows[1] and sorted(rows[0]) == sorted(rows[1]) and not unlike(parting):
            same = "the rows of the inputs are the same, in another order"
            return "order", f"{differs(parting, each)}: {same}"
    return OF_PHASE[each.phase](parting, each)


def took_others(parting: Divergence) -> bool:
    """Whether the loaders gave other examples; asked where the inputs could not be compared."""
    if parting.after or any(each.phase == "input" for each in parting.last):
        return False
    orders = [Training("", steps).order() for steps in parting.until]
    for name in {*orders[0]} & {*orders[1]}:
        count = sum(len(trained_on(rank).get(name, [])) for rank in parting.ranks[0])
        until = min(len(order[name]) for order in orders)  # some loaders are a batch ahead
        until -= until % max(count, 1)
        own = ([str(each) for each in order[name][until - count : until]] for order in orders)
        if count and common(*own) <= ALIKE:
            return True
    return False


def of_weights(parting: Divergence, each: Difference) -> Told:
    """What it means that networks begin a step with other weights."""
    if each.misses:
        has, lacks = parting.names[each.one is None], parting.other if each.one else parting.one
        for tied in (of for of in lacks.first["ties"] if each.name in of):
            one = f"{' and '.join(tied)} are one parameter in {lacks.name} (tied)"
            return "tied", f"{one}, and {len(tied)} parameters in {has}"
        there = "is in" if parting.steps == 1 else "belongs to a network that is called in"
        return "structure", f"{where(parting, each)} {there} {has} alone"
    if parting.steps > 1:
        before = "nothing before: the optimizer computes something else"
        if parting.kinks:
            before = f"before it gradients by at most {100 * parting.kinks:.2g} %"
        return "step", f"{differs(parting, each)}, and {before}"
    differ = sum(other.phase == "param" for other in parting.beyond)
    count = f"{differ} of {len(parting.entries('param')[0])}, first {each.name}"
    if parting.after:
        return "weights", f"weights are not restored: {count}"
    why = "another seed, or none, before the network is made, layers in another order, or others "
    why += "are loaded"
    return "initial-weights", f"weights differ from the start: {count}: {why}"


def of_input(parting: Divergence, each: Difference) -> Told:
    """What inputs that differ mean. Indices of unlike datasets are of unlike examples."""
    data = [", ".join(trained_on(ranks[0])) for ranks in parting.ranks]
    kind, said = of_examples(parting, each, indexed=data[0] == data[1] > "")
    others = f"; the loaders are of {parting.both(*data)}" * (all(data) and data[0] != data[1])
    return kind, said + others


def of_examples(parting: Divergence, each: Difference, indexed: bool) -> Told:
    """What it means that networks take others. indexed: whether their indices can be compared."""
    a, b = parting.names
    own = [[examples(rank, indexed) for rank in ranks] for ranks in parting.ranks]
    alike = [len(of) > 1 and all(common(of[0], each) > ALIKE for each in of[1:]) for of in own]
    if alike[0] != alike[1]:
        same = f"all {len(own[alike[1]])} ranks of {parting.names[alike[1]]} take the same examples"
        return "same-on-ranks", f"{same}: its sampler does not divide them"
    mine, theirs = (taken(ranks, indexed) for ranks in parting.ranks)
    if len(mine) != len(theirs):
        numbers = parting.both(len(mine), len(theirs))
        what = "examples" if indexed else "inputs of networks"
        return "batch", f"the {what} of a step are {numbers}"
    if common(mine, theirs) > ALIKE:
        states = " and ".join(drawn_otherwise(parting, "rng"))
        same = f"the {'indices' if indexed else 'examples'} are the same"
        too = f"; the random state of {states} differs, too" if states else ""
        return "augmentation", f"{same}, but {differs(parting, each)}{too}"
    if parting.after and (step := begins(parting.one.steps, theirs, indexed)):
        lost = "the position in the data was not restored"
        return "position", f"{b} goes on with the examples of {a}'s step {step}: {lost}"
    again = [begins(steps[:-1], taken(steps[-1], indexed), indexed) for steps in parting.until]
    if again[0] != again[1] and not parting.after:
        name, step = (b, again[1]) if again[1] else (a, again[0])
        why = "its order is the same in each epoch"
        why += "" if indexed else ", or each worker of its loader reads all"
        why += " (sampler.set_epoch is not called)" * (len(parting.ranks[name == b]) > 1)
        return "epoch", f"{name} takes the examples of its step {step} again: {why}"
    if not indexed:
        return "order", f"{differs(parting, each)}: other examples, or other values of the same"
    pairs = (mine, theirs), (theirs, mine)
    lone = [[each for each in own if each not in others] for own, others in pairs]
    shown = parting.both(*(", ".join(of[:SHOWN]) for of in lone))
    return "order", f"{len(lone[0])} of {counted(len(mine), 'example')} are others: {shown}"


def common(one: Sequence[str], other: Sequence[str]) -> float:
    """The share of examples that two steps have in common."""
    mine, theirs = {*one}, {*other}
    return len(mine & theirs) / max(len(mine), len(theirs), 1)


def begins(steps: Sequence[Sequence[Rank]], these: Sequence[str], by_index: bool) -> int | None:
    """The first step, from 1, that takes these examples."""
    same = (n for n, of in enumerate(steps, 1) if common(taken(of, by_index), these) > ALIKE)
    return next(same, None)


def drawn_otherwise(parting: Divergence, *at: str) -> dict[str, int]:
    """The random states that differ, and on which rank first: as both were seeded alike, somebody
    has drawn from them.

    at: "rng" is the step's first forward pass, "after" its end.
    """
    found = dict[str, int]()
    for number, (mine, theirs) in enumerate(zip(*parting.ranks, strict=False)):
        for when in at:
            for name in mine[when].keys() & theirs[when].keys():
                if mine[when][name] != theirs[when][name]:
                    found.setdefault(name, number)
    return dict(sorted(found.items()))


def of_module(parting: Divergence, each: Difference) -> Told:
    """What an output that differs first means."""
    said, numbers = differs(parting, each), unlike(parting, each)
    dtypes = [entry.dtype for entry in each.sides if entry.dtype in LIMITS]
    if len({*dtypes}) > 1:
        return "precision", f"{said}: it is computed in {parting.both(*dtypes)}"
    if "BatchNorm" in module(parting, each) and numbers:
        why = "and it takes mean and variance over each, as is expected"
        return "batchnorm", f"{said}: {numbers}, {why}"
    drew = [{name for rank in ranks for name in rank["drew"]} for ranks in parting.ranks]
    drawn_for = {*drew[0], *drew[1]}
    compared = {other.name for other in parting.last if other.phase == "output"} - {each.name}
    before = (name for ranks in parting.ranks for name in outputs_until(ranks, each.name))
    if drawn := next((name for name in before if name in drawn_for and name not in compared), None):
        of = "it" if drawn == each.name else drawn
        random = f"{said} by random numbers that are drawn for {of}"
        if not all(drew):
            lacks = parting.names[bool(drew[0])]
            return "dropout", f"{random}, and {lacks} draws none: no dropout there, or eval()"
        if numbers:
            return "dropout", f"{random}: others where {numbers}, as is expected"
        if states := drawn_otherwise(parting, "rng", "after"):  # a compiler draws others from one
            random += f": the random state of {' and '.join(states)} differs"
            if number := min(states.values()):
                random += f" on rank {number}, so ranks are seeded otherwise"
            return "dropout", random
    return "module", f"{said}, and {OUTPUTS} before are equal"


def outputs_until(ranks: Sequence[Rank], name: str) -> list[str]:
    """The names of a step's outputs in order, up to and with this one."""
    names = [key for phase, key in table(ranks) if phase == "output"]
    return names[: names.index(name) + 1]


def of_optimizer(parting: Divergence, each: Difference) -> Told:
    """What its state, its options or a GradScaler that differ mean."""
    if each.phase == "state":
        alone = f"{where(parting, each)} is in {parting.names[each.one is None]} alone"
        return "optimizer-state", alone if each.misses else differs(parting, each)
    kind = "learning-rate" if each.name.startswith("lr") else "hyper"
    numbers = [entry.total for entry in each.sides]
    shown = ([f"{x:.{digits}g}" for x in numbers] for digits in range(4, 18))
    values = parting.both(*next((texts for texts in shown if len({*texts}) > 1), numbers))
    same = sum(option(of) == option(each) for of in parting.beyond)  # by weight where groups differ
    more = f" (first of {same} weights)" if " of " in each.name and same > 1 else ""
    return "scaler" if each.phase == "scale" else kind, f"{where(parting, each)} is {values}{more}"


def of_gradients(parting: Divergence, each: Difference) -> Told:
    """What a loss or gradients that differ mean."""
    mine, theirs = parting.entries("grad")
    keys = [key for key in mine if key in theirs]
    if found := underflow(parting):
        more, key = found
        zero = f"{100 * abs(more):.0f} % of the gradient of {key} are zero"
        return "underflow", f"{zero} in {parting.names[more > 0]} alone (a GradScaler helps)"
    a, b = parting.names
    for has, lacks, name, than in ((mine, theirs, a, b), (theirs, mine, b, a)):
        if odd := [key for key in has if key not in lacks]:
            alone = f"{counted(odd, 'parameter')}, first {odd[0]}, trained in {name} alone"
            steps = (parting.one if than == a else parting.other).steps
            if any(("grad", odd[0]) in table(ranks) for ranks in steps):
                why = f"another optimizer of {than} has it, and each optimizer's step is one here"
                return "structure", f"{alone}: {why}"
            return "not-trained", f"{alone}: the optimizer of {than} does not have it"
        if lone := [key for key in keys if has[key].square and not lacks[key].square]:
            some = f"{len(lone)} of {counted(keys, 'parameter')}, first {lone[0]}"
            why = f"detached, frozen or unused in {than}"
            return "no-gradient", f"{some}, have a gradient in {name} alone: {why}"
    ratio, of_loss = factor(mine, theirs), factor_of_loss(parting)
    for name, number in ((b, 1), (a, 0)):
        if keys and parting.steps > 1 and adds_up(parting, number):
            once = f"those of step {parting.step - 1} are in them, too (zero_grad is not called)"
            return "not-zeroed", f"gradients of {name} add up: {once}"
    for times in (of_loss, ratio):  # gradients that are clipped do not show that of the loss
        if times:
            kind, said = of_factor(parting, times, of_loss)
            if keys and all(other.phase != "grad" for other in parting.beyond):
                said += "; gradients are equal, so they are divided or clipped after it"
            if times == ratio or kind != "factor":
                return kind, said
    said, numbers = differs(parting, each), unlike(parting)
    if not numbers:
        return "function", f"{said}, and {OUTPUTS} before are equal"
    said = f"{OUTPUTS} are equal, but {said}, and gradients by no one factor: {numbers}"
    if each.phase == "loss":
        why = "a mean of means over unequal numbers of tokens can do that, or a loss that compares "
        why += "examples"
        return "weights-of-examples", f"{said}, and {why}"
    why = "gradients are not averaged, a clip, a hook or a gather acts on those of each alone, or "
    why += "losses of unequal weights happen to be alike"
    return "function", f"{said}; the loss is equal, so {why}"


def adds_up(parting: Divergence, number: int) -> bool:
    """Whether all gradients of one are those of the other and, besides, its own of the step before.

    number: 0 for A, 1 for B.
    """
    entries, last = parting.entries("grad"), table(parting.until[number][-2])
    own, others = entries[number], entries[1 - number]
    least = ONE_FACTOR * math.sqrt(sum(each.square for each in own.values()))
    for key, each in own.items():
        now, before = others.get(key), last.get(("grad", key))
        if now is None or before is None:
            return False
        rests = each.total - now.total - before.total, each.folded - now.folded - before.folded
        if max(map(abs, rests)) > least:
            return False
    return True


def factor_of_loss(parting: Divergence) -> float | None:
    """How many times as large the loss of B is as that of A; None if that is 1 or not known."""
    one, other = (of.get("loss") for of in parting.entries("loss"))
    ratio = other.total / one.total if one and other and one.total else 1.0
    return None if ratio <= 0 or is_near(ratio, 1.0) else ratio


def of_factor(parting: Divergence, ratio: float, of_loss: float | None) -> Told:
    """What one factor for all gradients means. of_loss: that of the loss."""
    times, b_is_big = max(ratio, 1 / ratio), ratio > 1
    this, that = parting.names[b_is_big], parting.names[not b_is_big]
    big, small = parting.ranks[b_is_big], parting.ranks[not b_is_big]
    by_loss = of_loss is not None and is_near(of_loss, ratio)
    what = f"in {this} {'the loss is' if by_loss else 'gradients are'} {times:.3g} times as large"
    ranks, micro = shape(big)
    scales = [scale.total if (scale := table(of).get(SCALE)) else 0 for of in (big, small)]
    once, unscaled = "and does not divide by their number", "that is the GradScaler's scale, and"
    late = f"{that} clips before it unscales"
    rows = len(examples(big[0]))
    for kind, n, why in (
        ("accumulation", micro * by_loss, f"{this} adds up {micro} micro-batches {once}"),
        ("sum-over-ranks", ranks, f"{this} adds up over {ranks} ranks {once}"),
        ("not-unscaled", min(scales), f"{unscaled} {this} does not unscale, or {late}"),
        ("not-unscaled", scales[0], f"{unscaled} {this} does not unscale"),
        ("not-unscaled", scales[1], f"{unscaled} {late}"),
        *(("divided-twice", n, f"{that} divides by {n} once too often") for n in shape(small)),
        ("sum-over-examples", rows * by_loss, f"{this} adds up over {rows} examples {once}"),
    ):
        if is_near(n, times):
            perhaps = "perhaps " * (shape(big) == shape(small) and kind != "not-unscaled")
            return kind, f"{what} as in {that}: {perhaps}{why}"
    clips = ", as a clip does" * (of_loss is None)
    return "factor", f"{what} as in {that}, by one factor for all gradients{clips}"


OF_PHASE = {
    "param": of_weights,
    "input": of_input,
    "output": of_module,
    **dict.fromkeys(("loss", "grad"), of_gradients),
    **dict.fromkeys(("scale", "hyper", "state"), of_optimizer),
}
