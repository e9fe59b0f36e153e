"""What limits the answer of a study, as a table: add yours to `NOTES`, where it is to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ninefold.answer.cell import PLAIN, Cell
from ninefold.answer.grouping import merit
from ninefold.answer.runs import Run, RunGroup, device_lists
from ninefold.answer.study_facts import WRAPPER, Named, StudyFacts
from ninefold.answer.words import disturbed
from ninefold.errors import one_line
from ninefold.numbers import listed_and, three_digits
from ninefold.result import AS_FLOAT32, ON_GPU, OWN_AUTOCAST, SLOW
from ninefold.types import LEAST_ROUNDS

UNEVEN = 1.1  # times the memory of the GPU that holds least, from which on the most is told
UNEVEN_LOAD = 1.25  # the same of load
GIB = 2**30


@dataclass(frozen=True)
class Note:
    """Something that limits an answer.

    when: what the runs have of it; nothing where it does not hold. Of a list each has a sentence.
    say: the sentence. In it {0} is what `when` returns, {plain} the baseline, {score} that of the
        task; `{0:trains|train}` chooses by how many configurations `when` returns.
    """

    when: Callable[[StudyFacts], Any]
    say: str = "{0}"

    def sentences(self, facts: StudyFacts) -> list[str]:
        found, known = self.when(facts), {"plain": facts.label(PLAIN), "score": facts.group.score}
        each = found if isinstance(found, list) else [found] if found else []
        return [self.say.format(one, **known) for one in each]


# What the rows ask that takes more than an expression.


def _notes(facts: StudyFacts, holds: Callable[[str], bool]) -> list[str]:
    """Notes of the runs that it holds for, each once."""
    return list(filter(holds, dict.fromkeys(n for run in facts.group.runs for n in run.notes)))


def _devices(facts: StudyFacts) -> str:
    """The devices of the runs that completed, where they differ: `cpu or NVIDIA H200`."""
    found = device_lists([run for run in facts.group.runs if run.ok])
    return one_line(" or ".join(map(listed_and, found))) if len(found) > 1 else ""


def _who_waits(facts: StudyFacts, waits: Callable[[Cell], bool]) -> str:
    """Who waits, with the verb: `ddp, fp32 waits`; nothing if nobody does."""
    cells = list(filter(waits, facts.cells))
    if cells and cells == facts.cells:
        return "Every configuration waits"
    return f"{found} {found:waits|wait}" if (found := facts.named(cells)) else ""


def _disturbed(facts: StudyFacts) -> list[str]:
    """The cells that too few rounds could time: in how many, of how many."""
    of = {cell: sum(run.timed for run in facts.group.completed(cell)) for cell in facts.cells}
    counted = {cell: len(facts.seconds.get(cell, {})) for cell in of}
    return [
        f"{facts.label(cell)} could be timed undisturbed in {counted[cell]} of {of[cell]} rounds"
        for cell in of
        if of[cell] >= LEAST_ROUNDS and counted[cell] < LEAST_ROUNDS
    ]


def _short_steps(facts: StudyFacts) -> str:
    """The cells that a wrapper's own work was added to, and how long their steps are."""
    steps = [facts.group.step_seconds(first) for first, _ in facts.uncontrolled]
    known = [step for step in steps if step is not None]
    if (found := facts.named([copy for _, copy in facts.uncontrolled])) is None:
        return ""
    return (
        f"{found} {found:repeats|repeat} the work of none and {found:is|are} no A/A control here: "
        f"on a GPU DataParallel itself takes up to {1e3 * WRAPPER:g} ms of a step, which is "
        f"{1e3 * min(known):.2g} ms long"
    )


def _whole_batch(facts: StudyFacts) -> str:
    """The cells whose batch norm sees a part of a batch, and the settings by which it sees all."""
    cells = facts.batch_norm()
    chunked = [any((run.chunks or 1) > 1 for run in facts.group.completed(cell)) for cell in cells]
    settings = ["parallel.chunks=1"] * any(chunked)
    settings += ["parallel.sync_batchnorm=true"] * (not all(chunked))
    found, whole = facts.named(cells), " or ".join(settings)
    shows = "shows" if facts.scored else "would show"
    costs = f"their {facts.group.score} {shows} whether that costs anything"
    return f"{found}: {costs} ({whole} uses the whole batch)" if found else ""


def _untimed(facts: StudyFacts) -> str:
    """Cells that were not timed, and whose work they repeat."""
    left, bases = sorted(facts.sweep.untimed), sorted(set(facts.sweep.untimed.values()))
    found = Named(listed_and(left), len(left))
    why = f"as {found:it only repeats|they only repeat} the work of {listed_and(bases)}"
    return f"{found} {found:was|were} not timed, {why}" if left else ""


def _uneven_memory(facts: StudyFacts) -> str:
    """Which cells have a GPU that holds more than another one does, as dp's first GPU."""
    found = _uneven(facts.group, lambda run: run.peak_memory_bytes, UNEVEN)
    said = [
        f"GPU {number} of {facts.label(cell)} holds {most / low:.2g} times what the one with the "
        f"least does ({three_digits(most / GIB)} and {three_digits(low / GIB)} GiB)"
        for cell, number, most, low in found
    ]
    return listed_and(said)


def _uneven_load(facts: StudyFacts) -> str:
    """Which cells have a GPU that is busier than another one is."""
    found = _uneven(facts.group, lambda run: run.load, UNEVEN_LOAD)
    said = [
        f"GPU {number} of {facts.label(cell)} is at work {most:.0%} of the time, "
        f"the idlest {low:.0%}"
        for cell, number, most, low in found
    ]
    return listed_and(said)


def _uneven(
    group: RunGroup, of: Callable[[Run], Sequence[float]], least: float
) -> Iterator[tuple[Cell, int, float, float]]:
    """Cells in which a GPU has `least` times another's value: its number, the two values.

    of: a value for each GPU of a run; those of the runs of a cell are averaged, so that one
        disturbed run tells nothing.
    """
    for cell in group.cells:
        rows = [
            values for run in group.of(cell) if "cpu" not in run.devices and (values := of(run))
        ]
        means = [fmean(column) for column in zip(*rows, strict=False)]
        if len(means) > 1 and max(means) > least * min(means) > 0:
            yield cell, means.index(max(means)), max(means), min(means)


def _measures_all_but_the_default(facts: StudyFacts) -> bool:
    """Whether it has fp32 or tf32 on a GPU with TF32, and not PyTorch's default."""
    runs = [run for run in facts.group.runs if {*run.devices} - {"cpu"}]
    default = any(run.tf32_convolutions and not run.tf32 for run in runs)
    has = any(run.dtype == "float32" and run.tf32_convolutions is not None for run in runs)
    return has and not default


NOTES = (
    Note(
        lambda facts: facts.named(facts.other_losses()),
        "The loss of a batch is not the mean of the losses of its parts (a sum, weights, ignored "
        "targets, or a comparison of examples): each process has a part, so that {0} "
        "{0:trains|train} on other gradients than one process does. These are times of another "
        "experiment. A loss that returns a number for each example is averaged alike.",
    ),
    Note(lambda facts: _notes(facts, lambda note: note.startswith((ON_GPU, *SLOW)))),
    Note(_devices, "Runs used different devices ({0}), which may explain what differs."),
    # How the times were taken
    Note(_short_steps, "{0}. Longer steps, as of a larger batch, would make it one."),
    Note(
        lambda facts: not facts.scored,
        "Only speed was compared: whether a configuration keeps the score is not known.",
    ),
    Note(
        lambda facts: (
            PLAIN in facts.scores
            and facts.open_scores
            and {*map(len, facts.scores.values())} == {1}
        ),
        "Each {score} is of one seed: whether a configuration keeps it is open, and takes more "
        "seeds.",
    ),
    Note(
        lambda facts: (
            facts.scored
            and not facts.settings.margin
            and len(facts.cells) > 1
            and ", in ".join(["report.margin sets that", *filter(None, [facts.group.scoring.unit])])
        ),
        "No margin is set for the {score}: it counts as kept only if any loss is ruled out. {0}.",
    ),
    Note(
        lambda facts: not facts.asks_time and facts.group.on_hosts < 2,
        "Times are of full training runs, not interleaved: study.ask=[time] compares speed.",
    ),
    Note(
        lambda facts: not facts.asks_time and facts.group.on_hosts > 1,
        "Times are of full training runs, not interleaved: runs on several hosts cannot be "
        "interleaved.",
    ),
    Note(
        lambda facts: facts.timed and facts.sweep.timing_groups > 1 and facts.sweep.timing_groups,
        "Not all configurations could be alive at once, for want of memory or on a GPU that takes "
        "one process at a time: they were timed in {0} groups. What changed between the groups of "
        "a round does not cancel.",
    ),
    # Other programs on the machine
    Note(lambda facts: [*disturbed(facts.turns)] if facts.timed else []),
    Note(_disturbed, "{0}."),
    Note(lambda facts: _notes(facts, lambda note: note in (OWN_AUTOCAST, AS_FLOAT32))),
    # What is not compared with the rest
    Note(_untimed, "{0}."),
    Note(
        lambda facts: facts.named(facts.other_numerics()),
        "{0} {0:does|do} not compute what {plain} does: "
        "{0:it is another experiment|they are other experiments}, not another way of doing this "
        "one.",
    ),
    Note(_whole_batch, "Batch norm computes its statistics over a part of each batch in {0}."),
    Note(lambda facts: facts.named(facts.not_ok), "Not every run ended well: {0}."),
    # What else the times and the memory depend on
    Note(
        lambda facts: _who_waits(facts, facts.waits_for_data),
        "{0} for data: faster loading would change the times.",
    ),
    Note(
        _measures_all_but_the_default,
        "PyTorch's own default lies between fp32, which is without TF32, and tf32: it computes "
        "convolutions alone in TF32. amp=default measures it.",
    ),
    Note(
        lambda facts: len({bool(run.resident_bytes) for run in facts.group.runs if run.ok}) > 1,
        "Some runs took their examples from the GPU and others from the host: dataset.resident "
        "makes them agree.",
    ),
    Note(
        lambda facts: any(
            run.backend == "nccl" and run.peak_memory_bytes for run in facts.group.runs
        ),
        "The peak memory of a GPU is what tensors took in PyTorch's allocator: the buffers of "
        "NCCL and of CUDA graphs, and CUDA's context, come on top of it.",
    ),
    Note(_uneven_memory, "Memory is spread unevenly, and the fullest GPU limits the batch: {0}."),
    Note(_uneven_load, "Load is spread unevenly, and the others wait for the busiest: {0}."),
    Note(
        lambda facts: _who_waits(facts, facts.waits_for_host),
        "{0} for the host: the GPU has done a step almost as soon as the host has queued its "
        "operations. Fewer or longer operations, as with a larger batch_size or "
        "compile.mode=reduce-overhead, would change the times. Turns slow such a step: speedups "
        "may be up to 10 % too small.",
    ),
    Note(
        lambda facts: any(run.random_inputs for run in facts.group.runs),
        "The images are random: their {score} says nothing about a real dataset.",
    ),
)


def notes(facts: StudyFacts) -> list[str]:
    """Return what limits the answer, in a sentence each, the most important first."""
    return [sentence for note in NOTES for sentence in note.sentences(facts)]


def several_groups(found: Sequence[RunGroup]) -> str:
    """Return which of several groups the answer is of: the first. found: the largest first."""
    first, second = found[:2]
    best = f"has the best {first.score}" if first.training else "is the fastest"
    best = "comes first" if merit(first) == merit(second) else best
    why = "has the most of them" if first.ok > second.ok else f"{best} of those with as many"
    return (
        f"Runs of {len(found)} different conditions are never averaged together; the answer is of "
        f"{one_line(first.title)}, which {why}."
    )
