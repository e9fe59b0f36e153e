"""What limits the answer, as a table: add yours to `CAVEATS`, where it is to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ninefold.errors import one_line
from ninefold.numbers import listed_and, plural, three_digits
from ninefold.report.answer.evidence import WRAPPER, Evidence, step_seconds
from ninefold.report.data.cell import PLAIN, Cell, plainness
from ninefold.report.data.cells import Group
from ninefold.report.data.rounds import others
from ninefold.report.data.runs import Run
from ninefold.result import AS_FLOAT32, ON_GPU, ONE_THREAD, SLOW
from ninefold.tournament.taken import AROUND, OTHERS
from ninefold.types import LEAST_ROUNDS

UNEVEN = 1.1  # times the memory of the GPU that holds least, from which on the most is told
# The same of load, and of a process's memory: rank 0 also logs and saves, up to 1.18 times there.
UNEVEN_WORK = 1.25
GIB = 2**30
TOLD = 0.1  # share of the turns from which on it is told that they were left out
LEFT_OUT = {
    OTHERS: "other programs used the CPUs during {}",
    AROUND: "the machine was slow during {}",
}


@dataclass(frozen=True)
class Caveat:
    """Something that limits an answer.

    when: what the runs that the answer is of have of it; nothing where it does not hold.
    say: the sentence, or what makes it of that and of their evidence.
    each: whether each thing that `when` returns has a sentence of its own.
    """

    when: Callable[[Evidence], Any]
    say: str | Callable[[Any, Evidence], str]
    each: bool = False

    def sentences(self, evidence: Evidence) -> list[str]:
        if not (found := self.when(evidence)):
            return []
        if isinstance(self.say, str):
            return [self.say]
        return [self.say(one, evidence) for one in (found if self.each else [found])]


# What the rows ask and say that takes more than an expression.


def _names(evidence: Evidence, cells: Iterable[Cell]) -> str:
    """The labels of cells, the simplest first."""
    return evidence.labels(sorted(cells, key=plainness))


def _who_waits(evidence: Evidence, cells: Sequence[Cell]) -> str:
    if cells == evidence.cells:
        return "Every configuration waits"
    return f"{evidence.labels(cells)} {plural(cells, 'waits', 'wait')}"


def _notes(evidence: Evidence) -> list[str]:
    """Every note of the runs, once."""
    return list(dict.fromkeys(note for run in evidence.group.runs for note in run.notes))


def _quiet(evidence: Evidence) -> bool:
    """Whether the cells took turns, most of which other programs left alone."""
    return evidence.timed and not evidence.turns.swamped and not evidence.turns.busy


def _others(evidence: Evidence) -> float:
    """Share of the CPU time that other programs used, 0 where it is not known."""
    of_turns = evidence.turns.others
    return (others(evidence.sweep.timing) if of_turns is None else of_turns) or 0.0


def _left_out(evidence: Evidence) -> float:
    """Share of the turns that do not count."""
    return sum(evidence.turns.left_out.values())


def _used(evidence: Evidence) -> str:
    return f"Other programs used {100 * _others(evidence):.0f} % of the CPU time"


def _disturbed(evidence: Evidence) -> list[tuple[Cell, int, int]]:
    """The cells that too few rounds could time: in how many, of how many."""
    of = {cell: sum(run.timed for run in evidence.group.completed(cell)) for cell in evidence.cells}
    counted = {cell: len(evidence.seconds.get(cell, {})) for cell in of}
    return [
        (cell, counted[cell], of[cell])
        for cell in of
        if of[cell] >= LEAST_ROUNDS and counted[cell] < LEAST_ROUNDS
    ]


def _shortest_step(evidence: Evidence) -> float:
    """Seconds of the shortest step that a wrapper's own work was added to."""
    steps = [step_seconds(evidence.group, first) for first, _ in evidence.uncontrolled]
    return min(step for step in steps if step is not None)


def _whole_batch(cells: Sequence[Cell], evidence: Evidence) -> str:
    """The settings by which batch norm uses the whole batch in these cells."""
    chunked = [cell in evidence.chunked() for cell in cells]
    settings = ["parallel.chunks=1"] * any(chunked)
    settings += ["parallel.sync_batchnorm=true"] * (not all(chunked))
    return " or ".join(settings)


def _uneven_memory(kind: str, least: float, limits: str) -> Caveat:
    """Which cells have a GPU or a process that holds more than others do, as dp's first GPU."""

    def say(found: Sequence[tuple[Cell, int, float, float]], evidence: Evidence) -> str:
        said = [
            f"{kind} {number} of {evidence.label(cell)} holds {most / low:.2g} times what the one "
            f"with the least does ({three_digits(most / GIB)} and {three_digits(low / GIB)} GiB)"
            for cell, number, most, low in found
        ]
        return f"Memory is spread unevenly, {limits}: {listed_and(said)}."

    return Caveat(
        lambda evidence: _uneven(evidence, kind, lambda run: run.peak_memory_bytes, least),
        say,
    )


def _uneven_load(evidence: Evidence) -> list[str]:
    """Which cells have a GPU or a process that is busier than others are."""
    label = evidence.label
    gpus, processes = (
        _uneven(evidence, kind, lambda run: run.load, UNEVEN_WORK) for kind in ("GPU", "process")
    )
    return [
        f"GPU {number} of {label(cell)} is at work {most:.0%} of the time, the idlest {low:.0%}"
        for cell, number, most, low in gpus
    ] + [
        f"process {number} of {label(cell)} takes {three_digits(most)} CPU seconds a second, the "
        f"idlest {three_digits(low)}"
        for cell, number, most, low in processes
    ]


def _uneven(
    evidence: Evidence, kind: str, of: Callable[[Run], Sequence[float]], least: float
) -> list[tuple[Cell, int, float, float]]:
    """Cells in which a device has `least` times another's value: its number, the two values.

    kind: of devices, GPU or process (on a CPU). of: a value for each device of a run; those of the
    runs of a cell are averaged, so that one disturbed run tells nothing.
    """
    of_cells: dict[Cell, list[Sequence[float]]] = {}
    for run in evidence.group.runs:
        kinds = {"process" if device == "cpu" else "GPU" for device in run.devices}
        if kinds == {kind} and (values := of(run)):
            of_cells.setdefault(run.cell, []).append(values)
    found = []
    for cell, rows in sorted(of_cells.items(), key=lambda item: plainness(item[0])):
        if len({len(row) for row in rows}) > 1:
            continue
        means = [fmean(column) for column in zip(*rows, strict=True)]
        if len(means) > 1 and min(means) > 0 and max(means) > least * min(means):
            found.append((cell, means.index(max(means)), max(means), min(means)))
    return found


def _measures_all_but_the_default(evidence: Evidence) -> bool:
    """Whether it has fp32 or tf32 on a GPU with TF32, and not PyTorch's default."""
    runs = [run for run in evidence.group.runs if {*run.devices} - {"cpu"}]
    default = any(run.tf32_convolutions and not run.tf32 for run in runs)
    has = any(run.dtype == "float32" and run.tf32_convolutions is not None for run in runs)
    return has and not default


CAVEATS = (
    Caveat(
        lambda evidence: evidence.other_losses(),
        lambda cells, evidence: (
            "The loss of a batch is not the mean of the losses of its parts (a sum, weights, "
            "ignored targets, or a comparison of examples): each process has a part, so that "
            f"{_names(evidence, cells)} {plural(cells, 'trains', 'train')} on other gradients than "
            "one process does. These are times of another experiment. A loss that returns a number "
            "for each example is averaged alike."
        ),
    ),
    Caveat(
        lambda evidence: [note for note in _notes(evidence) if note.startswith((ON_GPU, *SLOW))],
        lambda note, _: note,
        each=True,
    ),
    # How the times were taken
    Caveat(
        lambda evidence: [copy for _, copy in evidence.uncontrolled],
        lambda copies, evidence: (
            f"{_names(evidence, copies)} {plural(copies, 'repeats', 'repeat')} the work of none "
            f"and {plural(copies, 'is', 'are')} no A/A control here: on a GPU DataParallel itself "
            f"takes up to {1e3 * WRAPPER:g} ms of a step, which is "
            f"{1e3 * _shortest_step(evidence):.2g} ms long. Longer steps, as of a larger batch, "
            "would make it one."
        ),
    ),
    Caveat(
        lambda evidence: not evidence.scored,
        "Only speed was compared: whether a configuration keeps the score is not known.",
    ),
    Caveat(
        lambda evidence: (
            evidence.open_scores
            and max(map(len, evidence.scores.values()), default=0) == 1
            and evidence.group.scoring
        ),
        lambda score, _: (
            f"Each {score.name} is of one seed: whether a configuration keeps it is open, and "
            "takes more seeds."
        ),
    ),
    Caveat(
        lambda evidence: (
            evidence.scored
            and not evidence.settings.margin
            and len(evidence.cells) > 1
            and evidence.group.scoring
        ),
        lambda score, _: (
            f"No margin is set for the {score.name}: it counts as kept only if any loss is ruled "
            f"out. report.margin sets that{score.unit and f', in {score.unit}'}."
        ),
    ),
    Caveat(
        lambda evidence: not evidence.asks_time and evidence.group.on_hosts < 2,
        "Times are of full training runs, not interleaved: study.ask=[time] compares speed.",
    ),
    Caveat(
        lambda evidence: not evidence.asks_time and evidence.group.on_hosts > 1,
        "Times are of full training runs, not interleaved: runs on several hosts cannot be "
        "interleaved.",
    ),
    Caveat(
        lambda evidence: evidence.timed and evidence.sweep.timing_groups > 1,
        lambda _, evidence: (
            "Not all configurations could be alive at once, for want of memory or on a GPU that "
            "takes one process at a time: they were timed in "
            f"{evidence.sweep.timing_groups} groups. What changed between the groups of a round "
            "does not cancel."
        ),
    ),
    # Other programs on the machine
    Caveat(
        lambda evidence: evidence.timed and evidence.turns.swamped,
        lambda _, evidence: f"{_used(evidence)}: this says little about the machine alone.",
    ),
    Caveat(
        lambda evidence: evidence.timed and evidence.turns.busy and not evidence.turns.swamped,
        lambda _, evidence: (
            f"{_used(evidence)} throughout. These are times under that load; configurations whose "
            "threads wait for each other lose most. For this machine alone, run it again when it "
            "is quiet."
        ),
    ),
    Caveat(
        lambda evidence: (
            _quiet(evidence) and _left_out(evidence) >= TOLD and evidence.turns.left_out
        ),
        lambda shares, evidence: (
            f"{100 * _left_out(evidence):.0f} % of the turns were left out: "
            + listed_and([LEFT_OUT[why].format(f"{100 * of:.0f} %") for why, of in shares.items()])
            + "."
        ),
    ),
    Caveat(
        lambda evidence: (
            _quiet(evidence)
            and _left_out(evidence) < TOLD < _others(evidence)
            and evidence.turns.others is None
        ),
        lambda _, evidence: f"{_used(evidence)} during the turns; in which of them is not known.",
    ),
    Caveat(
        lambda evidence: _quiet(evidence) and _disturbed(evidence),
        lambda found, evidence: "{} could be timed undisturbed in {} of {} rounds.".format(
            evidence.label(found[0]), *found[1:]
        ),
        each=True,
    ),
    Caveat(
        lambda evidence: [note for note in _notes(evidence) if note.endswith(ONE_THREAD)],
        lambda notes, _: notes[0],
    ),
    Caveat(lambda evidence: AS_FLOAT32 in _notes(evidence), AS_FLOAT32),
    # What is not compared with the rest
    Caveat(
        lambda evidence: sorted(evidence.sweep.untimed),
        lambda names, evidence: (
            f"{listed_and(names)} {plural(names, 'was', 'were')} not timed, as "
            f"{plural(names, 'it only repeats', 'they only repeat')} the work of "
            f"{listed_and(sorted(set(evidence.sweep.untimed.values())))}."
        ),
    ),
    Caveat(
        lambda evidence: evidence.other_numerics(),
        lambda cells, evidence: (
            f"{_names(evidence, cells)} {plural(cells, 'does', 'do')} not compute what "
            f"{evidence.label(PLAIN)} does: "
            f"{plural(cells, 'it is another experiment', 'they are other experiments')}, not "
            "another way of doing this one."
        ),
    ),
    Caveat(
        lambda evidence: evidence.batch_norm(),
        lambda cells, evidence: (
            "Batch norm computes its statistics over a part of each batch in "
            f"{_names(evidence, cells)}: their {evidence.group.score} shows whether that costs "
            f"anything ({_whole_batch(cells, evidence)} uses the whole batch)."
        ),
    ),
    Caveat(
        lambda evidence: evidence.failed,
        lambda cells, evidence: f"Not every run ended well: {_names(evidence, cells)}.",
    ),
    # What else the times and the memory depend on
    Caveat(
        lambda evidence: list(filter(evidence.waits_for_data, evidence.cells)),
        lambda cells, evidence: (
            f"{_who_waits(evidence, cells)} for data: faster loading would change the times."
        ),
    ),
    Caveat(
        _measures_all_but_the_default,
        "PyTorch's own default lies between fp32, which is without TF32, and tf32: it computes "
        "convolutions alone in TF32. amp=default measures it.",
    ),
    Caveat(
        lambda evidence: (
            len({bool(run.resident_bytes) for run in evidence.group.runs if run.ok}) > 1
        ),
        "Some runs took their examples from the GPU and others from the host: dataset.resident "
        "makes them agree.",
    ),
    Caveat(
        lambda evidence: any(
            run.backend == "nccl" and run.peak_memory_bytes for run in evidence.group.runs
        ),
        "The peak memory of a GPU is what tensors took in PyTorch's allocator: the buffers of "
        "NCCL and of CUDA graphs, and CUDA's context, come on top of it.",
    ),
    _uneven_memory("GPU", UNEVEN, "and the fullest GPU limits the batch"),
    _uneven_memory(
        "process", UNEVEN_WORK, "and the memory of a host has to hold the fullest process"
    ),
    Caveat(
        _uneven_load,
        lambda said, _: (
            f"Load is spread unevenly, and the others wait for the busiest: {listed_and(said)}."
        ),
    ),
    Caveat(
        lambda evidence: list(filter(evidence.waits_for_host, evidence.cells)),
        lambda cells, evidence: (
            f"{_who_waits(evidence, cells)} for the host: the GPU has done a step almost as soon "
            "as the host has queued its operations. Fewer or longer operations, as with a larger "
            "batch_size or compile.mode=reduce-overhead, would change the times. Turns slow such a "
            "step: speedups may be up to 10 % too small."
        ),
    ),
    Caveat(
        lambda evidence: any(run.random_inputs for run in evidence.group.runs),
        lambda _, evidence: (
            f"The images are random: their {evidence.group.score} says nothing about a real "
            "dataset."
        ),
    ),
)


def caveats(evidence: Evidence) -> list[str]:
    """Return what limits the answer, in a sentence each."""
    return [sentence for caveat in CAVEATS for sentence in caveat.sentences(evidence)]


def several_groups(group: Group, count: int, most: bool) -> str:
    """Return which of several groups the answer is of."""
    best = f"has the best {group.score}" if group.training else "comes first"
    why = "has the most of them" if most else f"{best} of those with as many"
    return (
        f"Runs of {count} different conditions are never averaged together; the answer is of "
        f"{one_line(group.title)}, which {why}."
    )
