"""What a reader of a bench should know besides the answer: one line each, the first first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ninefold.answer.times import Times
from ninefold.answer.words import disturbed
from ninefold.bench import batches, change, ranks
from ninefold.bench.measurements import BESIDE, Measurements
from ninefold.diff.compare import find
from ninefold.diff.kinds import answer
from ninefold.numbers import counted, plural

OTHERS = 0.05  # share of the CPU time from which on other programs are named
SEEN = 0.01  # share of a command's time that was not counted, from which on it is told
MOSTLY = 0.2  # the same, from which on the sentence says so
COMPARED = ("kind", "step", "steps", "text")  # of an answer of `ninefold diff`
CALM = 0.005  # share of disturbed turns that is not worth a line


class LeftOut(NamedTuple):
    """Steps of a command that were not counted: steps, of so many, seconds, share of its time."""

    steps: int
    of: int
    seconds: float
    share: float


def left_out(measured: Measurements, name: str) -> LeftOut:
    """The steps of a command that were not counted."""
    marked = [seconds for steps in measured.not_counted(name).values() for seconds in steps]
    turns = [turn for turn in measured.turns if turn.name == name]
    training = sum(turn.steps * turn.seconds for turn in turns)
    steps = len(marked) + sum(turn.steps for turn in turns)
    share = sum(marked) / max(sum(marked) + training, 1e-9)
    return LeftOut(len(marked), steps, sum(marked), share)


def notes(measured: Measurements, times: Times) -> Iterator[str]:
    """Yield each, the most important one first."""
    helps, first, turns = measured.helps, measured.commands[0], measured.counted()
    yield from () if helps is None else helps.lines[1:]
    yield from disturbed(turns, told=CALM)
    if not turns.busy and times.busy is not None and times.busy > OTHERS:
        yield f"Other programs used {100 * times.busy:.0f} % of the CPU time."
    yield from _of_gpus(measured)
    for name in measured.names:
        if measured.told[name].get("unscaled"):
            yield f"{name} computes in fp16 without a GradScaler: small gradients become zero."
    yield from ranks.sentences({name: measured.own_work[name] for name in measured.names})
    yield from batches.sentences(first.name, measured.batches, measured.examples)
    yield from change.sentences(measured.changes, measured.hellos)
    for each in measured.commands:
        if each.processes != first.processes and measured.examples.get(each.name) == 1:
            yield (
                f"A step of {each.name} takes as many examples as one of {first.name}; "
                "whether both compute the same was not looked at."
            )
    yield from of_first_steps("the script" if helps else first.name, compared(measured))
    yield from () if helps is None else helps.notes
    if names := [name for name in measured.names if name in measured.waits]:
        yield (
            f"{' and '.join(names)} {plural(names, 'waits', 'wait')} for the host: what is "
            "compared with that is compared by long stretches, and speedups may be up to 10 % too "
            "small."
        )
    for name in measured.names:
        if share := measured.drift(name):
            last = max(measured.places[t.order] for t in measured.turns if t.name == name)
            yield (
                f"{name}'s steps take {100 * abs(share):.0f} % {'longer' if share > 0 else 'less'} "
                f"at the end of a round than at its start: compared are its first {last}."
            )
    for name in measured.names:
        if count := measured.restarts[name]:
            again = counted(count, "time")
            yield f"{name} ended and was started again {again}; its start and end are not timed."
    yield from _of_left_out(measured)


def compared(measured: Measurements) -> dict[str, Any]:
    """How the first steps of commands compare with those of the first, as `ninefold diff` says it.

    By name, of all that leave nothing out, take as many examples in as many processes, and could be
    recorded whole.
    """
    first, recorded = measured.commands[0], measured.recorded
    alike = [
        command.name
        for command in measured.commands[1:]
        if not command.leaves_out
        and command.processes == first.processes
        and measured.examples.get(command.name, 1.0) == 1
        and {first.name, command.name} <= recorded.keys()
        and not (recorded[first.name].unrecorded or recorded[command.name].unrecorded)
    ]
    answers = {name: answer(find(recorded[first.name], recorded[name])) for name in alike}
    return {name: {key: data[key] for key in COMPARED} for name, data in answers.items()}


def of_first_steps(first: str, compared: Mapping[str, Any]) -> Iterator[str]:
    """Whether commands compute what the first does. compared: as of the function."""
    equal = dict[int, list[str]]()
    for name, data in compared.items():
        if data["kind"] == "equal":
            equal.setdefault(data["steps"], []).append(name)
        elif data["kind"] == "rounding":
            # What has grown further is rounding, too.
            until, _, _ = data["text"].partition(" At step ")
            yield f"{name} computes what {first} does, but for rounding. {until}"
        else:
            yield f"{name} does not compute what {first} does. {data['text']}"
    for steps, names in equal.items():
        does = f"{plural(names, 'computes', 'compute')} what {first} does"
        yield f"{', '.join(names)} {does} in the first {counted(steps, 'step')}, bit for bit."


def _of_gpus(measured: Measurements) -> Iterator[str]:
    """What happened in turns on a GPU."""
    turns = {what: counted(n, "turn") for what, n in measured.on_gpu.items() if n}
    if beside := turns.pop(BESIDE, None):
        yield f"Other programs computed on the GPU in {beside}."
    if turns:
        limits = "; ".join(f"in {n} {limit}" for limit, n in turns.items())
        yield f"On the GPU, {limits}."


def _of_left_out(measured: Measurements) -> Iterator[str]:
    """What was not counted, by command, where it is worth a line."""
    lines, contents = list[str](), dict[str, None]()
    for name in measured.names:
        steps, of, seconds, share = left_out(measured, name)
        if share > SEEN:
            cost = f"({seconds:.1f} s, {100 * share:.0f} % of its time)"
            lines.append(f"in {name} {steps} of {of} {cost}")
            contents |= dict.fromkeys(measured.not_counted(name))
    if lines:
        yield f"Not counted are steps that contained {' or '.join(contents)}: {', '.join(lines)}."
