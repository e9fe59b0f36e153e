"""Lists what limits the answer, in a sentence each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from ninefold.errors import one_line
from ninefold.report.answer.evidence import MIN_ROUNDS, WRAPPER, Evidence, step_seconds
from ninefold.report.data.cell import PLAIN, Cell, plainness
from ninefold.report.data.cells import Group
from ninefold.report.data.rounds import others
from ninefold.report.data.runs import Run
from ninefold.report.numbers import listed_and, plural, three_digits, times_as_fast
from ninefold.result import ON_GPU, ONE_THREAD
from ninefold.stats.verdicts import FAILED, Steady
from ninefold.study_record import StudyRecord
from ninefold.tournament.taken import ALONE, AROUND, OTHERS

UNEVEN = 1.1  # times the memory of the GPU that holds least, from which on the most is told
# The same of load, and of a process's memory: rank 0 also logs and saves, up to 1.18 times there.
UNEVEN_WORK = 1.25
GIB = 2**30
TOLD = 0.1  # share of the turns from which on it is told that they were left out


def caveats(evidence: Evidence, sweep: StudyRecord) -> list[str]:
    """Return what limits the answer."""
    label = evidence.label
    notes = dict.fromkeys(note for run in evidence.group.runs for note in run.notes)
    found = []
    if other := evidence.other_losses():
        found.append(
            "The loss of a batch is not the mean of the losses of its parts (a sum, weights, or a "
            "comparison of examples): each process has a part, so that "
            f"{_simplest_first(evidence, other)} {plural(other, 'trains', 'train')} on other "
            "gradients than one process does. These are times of another experiment."
        )
    found += [note for note in notes if note.startswith(ON_GPU)]
    found += [
        _not_steady(each, evidence) for each in evidence.comparison.steady if each.state == FAILED
    ]
    if evidence.group.timing and not evidence.comparison.steady:
        found.append(
            "No process trained without interruption after its turns: how far these are from "
            "a long run is not known."
        )
    if evidence.uncontrolled:
        found.append(_no_control(evidence))
    if not evidence.scored:
        found.append(
            "Only speed was compared: whether a configuration keeps the score is not known."
        )
    if evidence.scored and not evidence.settings.margin and len(evidence.cells) > 1:
        name, unit = evidence.group.score, evidence.group.scoring.unit
        found.append(
            f"No margin is set for the {name}: it counts as kept only if any loss is ruled out. "
            f"report.margin sets that{unit and f', in {unit}'}."
        )
    if not evidence.asks_time:
        measured = "study.ask=[time] compares speed"
        if evidence.group.on_hosts > 1:
            measured = "runs on several hosts cannot be interleaved"
        found.append(f"Times are of full training runs, not interleaved: {measured}.")
    if evidence.group.timing and (count := sweep.timing_groups) > 1:
        found.append(
            "Not all configurations could be alive at once, for want of memory or on a GPU that "
            f"takes one process at a time: they were timed in {count} groups. What changed between "
            "the groups of a round does not cancel."
        )
    if evidence.group.timing:
        found += _state_of_machine(evidence, others(sweep.timing))
    found += [note for note in notes if note.endswith(ONE_THREAD)][:1]
    if sweep.untimed:
        names = sorted(sweep.untimed)
        found.append(
            f"{listed_and(names)} {plural(names, 'was', 'were')} not timed, as "
            f"{plural(names, 'it only repeats', 'they only repeat')} the work of "
            f"{listed_and(sorted(set(sweep.untimed.values())))}."
        )
    if different := list(evidence.other_numerics()):
        others_are = plural(different, "it is another experiment", "they are other experiments")
        found.append(
            f"{_simplest_first(evidence, different)} {plural(different, 'does', 'do')} not compute "
            f"what {label(PLAIN)} does: {others_are}, "
            "not another way of doing this one."
        )
    if batch_norm := evidence.batch_norm():
        chunked = [evidence.chunked(cell) for cell in batch_norm]
        whole = ["parallel.chunks=1"] * any(chunked)
        whole += ["parallel.sync_batchnorm=true"] * (not all(chunked))
        found.append(
            "Batch norm computes its statistics over a part of each batch in "
            f"{_simplest_first(evidence, batch_norm)}: their {evidence.group.score} shows "
            f"whether that costs anything ({' or '.join(whole)} uses the whole batch)."
        )
    if evidence.failed:
        found.append(f"Not every run ended well: {_simplest_first(evidence, evidence.failed)}.")
    if waiting := [cell for cell in evidence.cells if evidence.waits_for_data(cell)]:
        found.append(
            f"{_who_waits(evidence, waiting)} for data: faster loading would change the times."
        )
    on_gpu = [run for run in evidence.group.runs if {*run.devices} - {"cpu"}]
    default = any(run.tf32_convolutions and not run.tf32 for run in on_gpu)
    if any(run.dtype == "float32" for run in on_gpu) and not default:
        found.append(
            "PyTorch's own default lies between fp32, which is without TF32, and tf32: it computes "
            "convolutions alone in TF32. amp=default measures it."
        )
    if len({bool(run.resident_bytes) for run in evidence.group.runs if run.ok}) > 1:
        found.append(
            "Some runs took their examples from the GPU and others from the host: dataset.resident "
            "makes them agree."
        )
    if any(run.backend == "nccl" and run.peak_memory_bytes for run in evidence.group.runs):
        found.append(
            "The peak memory of a GPU is what tensors took in PyTorch's allocator: the buffers of "
            "NCCL and of CUDA graphs, and CUDA's context, come on top of it."
        )
    found += _uneven_memory(evidence) + _uneven_load(evidence)
    if waiting := [cell for cell in evidence.cells if evidence.waits_for_host(cell)]:
        found.append(_bound_by_host(evidence, waiting))
    if any(run.random_inputs for run in evidence.group.runs):
        score = evidence.group.score
        found.append(f"The images are random: their {score} says nothing about a real dataset.")
    return found


def _state_of_machine(evidence: Evidence, of_rounds: float | None) -> list[str]:
    """Return which turns were left out, or why all count although they were disturbed.

    of_rounds: share of the CPU time that other programs used, where it is not known of each turn.
    """
    turns = evidence.turns
    share = of_rounds if turns.others is None else turns.others
    used = f"Other programs used {100 * (share or 0.0):.0f} % of the CPU time"
    if turns.swamped:
        return [f"{used}: this says little about the machine alone."]
    if turns.busy:
        return [
            f"{used} throughout. These are times under that load; configurations whose threads "
            "wait for each other lose most. For this machine alone, run it again when it is quiet."
        ]
    found = []
    if (left := sum(turns.left_out.values())) >= TOLD:
        reasons = {
            OTHERS: "other programs used the CPUs during {}",
            AROUND: "during {} the turns around were slow as well",
            ALONE: "{} took more than three times as long as usual",
        }
        parts = [reasons[why].format(f"{100 * of:.0f} %") for why, of in turns.left_out.items()]
        found.append(f"{100 * left:.0f} % of the turns were left out: {listed_and(parts)}.")
    elif turns.others is None and share is not None and share > TOLD:
        found.append(f"{used} during the turns; in which of them is not known.")
    found += [
        f"{evidence.label(cell)} could be timed undisturbed in {counted} of {total} rounds."
        for cell in evidence.cells
        if (total := sum(run.timed for run in evidence.group.completed(cell))) >= MIN_ROUNDS
        and (counted := len(evidence.seconds.get(cell, {}))) < MIN_ROUNDS
    ]
    return found


def _uneven_memory(evidence: Evidence) -> list[str]:
    """Which cells have a GPU or a process that holds more than others do, as dp's first GPU."""
    found = []
    for kind, least, limits in (
        ("GPU", UNEVEN, "and the fullest GPU limits the batch"),
        ("process", UNEVEN_WORK, "and the memory of a host has to hold the fullest process"),
    ):
        said = [
            f"{kind} {number} of {evidence.label(cell)} holds {most / low:.2g} times what the one "
            f"with the least does ({three_digits(most / GIB)} and {three_digits(low / GIB)} GiB)"
            for cell, number, most, low in _uneven(
                evidence.group.runs, kind, lambda run: run.peak_memory_bytes, least
            )
        ]
        if said:
            found.append(f"Memory is spread unevenly, {limits}: {listed_and(said)}.")
    return found


def _uneven_load(evidence: Evidence) -> list[str]:
    """Return which cells have a GPU or a process that is busier than others are."""
    runs = evidence.group.runs
    said = [
        f"GPU {number} of {evidence.label(cell)} is at work {most:.0%} of the time, the idlest "
        f"{low:.0%}"
        for cell, number, most, low in _uneven(runs, "GPU", lambda run: run.load, UNEVEN_WORK)
    ]
    said += [
        f"process {number} of {evidence.label(cell)} takes {three_digits(most)} CPU seconds a "
        f"second, the idlest {three_digits(low)}"
        for cell, number, most, low in _uneven(runs, "process", lambda run: run.load, UNEVEN_WORK)
    ]
    if not said:
        return []
    return [f"Load is spread unevenly, and the others wait for the busiest: {listed_and(said)}."]


def _uneven(
    runs: Sequence[Run], kind: str, of: Callable[[Run], Sequence[float]], least: float
) -> list[tuple[Cell, int, float, float]]:
    """Cells in which a device has `least` times another's value: its number, the two values.

    kind: of devices, GPU or process (on a CPU). of: a value for each device of a run; those of the
    runs of a cell are averaged, so that one disturbed run tells nothing.
    """
    of_cells: dict[Cell, list[Sequence[float]]] = {}
    for run in runs:
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


def _who_waits(evidence: Evidence, waiting: Sequence[Cell]) -> str:
    if waiting == evidence.cells:
        return "Every configuration waits"
    return f"{evidence.labels(waiting)} {plural(waiting, 'waits', 'wait')}"


def _bound_by_host(evidence: Evidence, waiting: Sequence[Cell]) -> str:
    return (
        f"{_who_waits(evidence, waiting)} for the host: the GPU has done a step almost as soon as "
        "the host has queued its operations. Fewer or longer operations, as with a larger "
        "batch_size or compile.mode=reduce-overhead, would change the times."
    )


def _simplest_first(evidence: Evidence, cells: Iterable[Cell]) -> str:
    return evidence.labels(sorted(cells, key=plainness))


def _no_control(evidence: Evidence) -> str:
    copies = [second for _, second in evidence.uncontrolled]
    steps = [step_seconds(evidence.group, first) for first, _ in evidence.uncontrolled]
    shortest = 1e3 * min(step for step in steps if step is not None)
    return (
        f"{_simplest_first(evidence, copies)} {plural(copies, 'repeats', 'repeat')} the work of "
        f"none and {plural(copies, 'is', 'are')} no A/A control here: on a GPU DataParallel itself "
        f"takes up to {1e3 * WRAPPER:g} ms of a step, which is {shortest:.2g} ms long. Longer "
        "steps, as of a larger batch, would make it one."
    )


def _not_steady(steady: Steady, evidence: Evidence) -> str:
    alone = times_as_fast(steady.speedup, steady.low, steady.high)
    return (
        f"The steady-state check failed: without interruption {evidence.label(steady.cell)} is "
        f"{alone} as in turns. A long run may differ as much from the times here, and the noise "
        "floor is that much higher."
    )


def several_groups(group: Group, count: int, most: bool) -> str:
    """Return which of several groups the answer is of."""
    best = f"has the best {group.score}" if group.training else "comes first"
    why = "has the most of them" if most else f"{best} of those with as many"
    return (
        f"Runs of {count} different conditions are never averaged together; the answer is of "
        f"{one_line(group.title)}, which {why}."
    )
