"""How many examples a step of each command takes, by what its networks got in the first steps.

Batches of another size, micro-batches and further processes make a step longer, and its examples
more. So where their numbers differ, commands are compared by examples a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from ninefold.bench.command import Command
from ninefold.bench.messages import Batch, Hello
from ninefold.numbers import listed_and

PER_EXAMPLE = " in examples a second"
UNSEEN = "no network of torch.nn was seen to get a tensor in training"
LEARNING_RATE = "The learning rate may have to change."


class StepBatch(NamedTuple):
    """What the networks of a command get in a step, in all its ranks together.

    examples: ascending, the different numbers that networks get in most steps; empty: they vary.
    elements: of what they get then. fewest, most: the smallest number of examples, and the
    elements, in any step.
    """

    examples: tuple[int, ...]
    elements: float
    fewest: tuple[int, int]
    most: tuple[int, int]


def taken(ranks: Sequence[Sequence[Batch]]) -> StepBatch | None:
    """Return what steps take; None: it was not seen. ranks: what each took in the first steps.

    Two numbers are those of batches and of a smaller last one; more vary, as the nodes of graphs
    do. Of three steps or more the first is left out: networks may be called before training.
    """
    steps = list[tuple[tuple[int, ...], int]]()
    for of_step in zip(*ranks, strict=False):
        counts, elements = zip(*of_step, strict=True)
        if len({*map(len, counts)}) == 1:
            steps.append((tuple(map(sum, zip(*counts, strict=True))), sum(elements)))
    steps = steps[1:] if len(steps) > 2 else steps
    if not steps:
        return None
    times = Counter(counts for counts, _ in steps)
    usual = max(times, key=lambda counts: (times[counts], counts))
    sizes = [(counts[0], elements) for counts, elements in steps]
    return StepBatch(
        usual if len(times) <= 2 and times[usual] > 1 else (),
        median(elements for counts, elements in steps if counts == usual),
        (min(count for count, _ in sizes), min(elements for _, elements in sizes)),
        (max(count for count, _ in sizes), max(elements for _, elements in sizes)),
    )


def times_as_many(this: StepBatch, first: StepBatch) -> float | str:
    """How many times as many examples one takes as the other; or why that is not known.

    Numbers that vary are as many where they overlap. Where elements are as many, the same comes in
    another form: words one by one, or all in one tensor.
    """
    if not this.examples or not first.examples:
        ends = zip(this.fewest, this.most, first.fewest, first.most, strict=True)
        overlap = all(low <= most and least <= high for low, high, least, most in ends)
        return 1.0 if overlap else "they vary from step to step, as the nodes of graphs do"
    if not (first.examples[0] and first.elements):  # an empty tensor
        return 1.0 if this == first else "one of them gets no elements"
    ratio, largest = (this.examples[at] / first.examples[at] for at in (0, -1))
    if 1 in (ratio, this.elements / first.elements):
        return 1.0
    if ratio != largest:
        own, other = (listed_and(each.examples) for each in (this, first))
        return f"its networks get {own}, those of the other {other}"
    return ratio


def factors(
    commands: Sequence[Command],
    hellos: Mapping[str, Sequence[Hello]],
    seen: Mapping[str, StepBatch | None],
) -> Mapping[str, float]:
    """How many times as many examples a step of each command takes as one of the first.

    Empty where all are as many, or not seen, unless strategies are compared, whose batches have to
    be known. hellos: what each rank said after its first step, by name. seen: what steps take, by
    name. Raises ConfigError where numbers differ by what is not known.
    """
    first = commands[0]

    def ratio_of(name: str) -> float | str:
        own, base, ranks = seen[name], seen[first.name], [hellos[name], hellos[first.name]]
        if name == first.name:
            return 1.0
        if own is None or base is None:
            return UNSEEN
        times = times_as_many(own, base)
        if times != 1 and len({*map(len, ranks)}) > 1 and not all(map(averages, ranks)):
            return "no DistributedDataParallel and no FSDP was called in the first step"
        return times

    ratios = {command.name: ratio_of(command.name) for command in commands}
    if not first.processes and all(ratio in (1, UNSEEN) for ratio in ratios.values()):
        return {}
    for command in commands:
        if isinstance(why := ratios[command.name], str):
            both = f"a step of {command.name} takes as one of {first.name}"
            wrong = f"how many times as many examples {both} is not known, so there is no speedup"
            raise command.failure(wrong, why, "compare commands whose steps take as many")
    return {name: float(ratio) for name, ratio in ratios.items()}


def examples(batch: StepBatch | None) -> int | None:
    """How many examples a step takes; None: not known."""
    return batch.examples[0] if batch and batch.examples else None


def averages(ranks: Sequence[Hello]) -> bool:
    """Whether each of several ranks takes other examples, as far as is known."""
    return len(ranks) == 1 or ranks[0]["averages"] is not None


def sentences(
    first: str, seen: Mapping[str, StepBatch | None], ratios: Mapping[str, float]
) -> Iterator[str]:
    """What is compared where steps take other batches, or where that was not seen.

    first: the name of the first command. ratios: as of `factors`.
    """
    others = {name: factor for name, factor in ratios.items() if factor != 1}
    if others:
        many = [f"step of {name} takes {of:.4g} times as many" for name, of in others.items()]
        many[0] += f" examples as one of {first}"
        yield f"A {'; a '.join(many)}: speedups are of examples a second. {LEARNING_RATE}"
        return
    vary = [name for name, of in seen.items() if of and not of.examples]
    unseen = [name for name, of in seen.items() if of is None]
    for names, what in ((vary, "varies"), (unseen, "was not seen")):
        if names:
            whose = "" if len(names) == len(seen) else f" of {', '.join(names)}"
            yield f"How many examples a step{whose} takes {what}: steps are compared."
