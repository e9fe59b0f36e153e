"""The sentences about a series of numbers of processes."""

from __future__ import annotations

from collections.abc import Sequence

from ninefold.report.answer.scaling_tree import Missed, ScalingPoint, Series
from ninefold.report.numbers import counted, listed_and
from ninefold.report.stats.costs import FARTHEST, Costs
from ninefold.report.stats.verdicts import OTHER_HOSTS

MILLI, MEGA = 1e3, 1e6
ABOVE = 1.25  # times the most that the model allows, from which on it leaves something out


def sentences(series: Series, last: Costs | None, kind: str, confidence: float) -> list[str]:
    """Return what a series shows and what is predicted of it.

    last: the costs of the most processes, None where they are not known. kind: strong or weak.
    confidence: of the intervals, percent.
    """
    measured = [point for point in series.points if not point.oversubscribed]
    said = [_best(series, measured, kind, confidence), _enough(series, measured)]
    if last is not None:
        said.append(_model(series, last))
        said += [*_above(series, last), *_missed(series.missed)]
    if crowded := [point.cell for point in series.points if point.oversubscribed]:
        said.append(
            f"{listed_and(crowded)} had fewer cores or GPUs than processes: "
            f"{'it is' if len(crowded) == 1 else 'they are'} drawn hollow and "
            f"{'has' if len(crowded) == 1 else 'have'} no efficiency."
        )
    return [text for text in said if text]


def headline(series: Series, kind: str, confidence: float) -> str:
    """Return in a sentence whether more processes make training faster.

    kind: strong or weak. confidence: of the intervals that verdicts are from, percent.
    """
    more = [
        point
        for point in series.points
        if point.processes > 1 and point.speedup is not None and not point.oversubscribed
    ]
    strategy = f"{series.parallel} in {series.amp}"
    if not more:
        return f"{strategy}: no speed-up of more processes is known."
    best = max(more, key=lambda point: point.speedup or 0.0)
    apart = best.verdict == OTHER_HOSTS
    of = "95 % interval of its seeds" if apart else f"{confidence:.3g} % interval"
    text = _speed(series, best, kind, of)
    if apart:
        return (
            f"{strategy}: without a verdict, as it ran on other hosts or on more: at best {text}."
        )
    if best.verdict == "faster":
        return f"{strategy}: more processes are faster: {text}{_of_ideal(best)}."
    if best.verdict == "slower":
        return f"{strategy}: more processes are slower: at best {text}."
    if best.verdict == "tie":
        return f"{strategy}: more processes are no faster: at best {text}."
    return f"{strategy}: not shown to be faster or slower: at best {text}."


def _best(series: Series, points: Sequence[ScalingPoint], kind: str, confidence: float) -> str:
    others = [point for point in points if point.cell != series.base]
    more = [point for point in others if point.processes > 1]
    if more and all(point.verdict == OTHER_HOSTS for point in more):
        return (
            f"Its times are of different hosts than those of {series.base}, or of more hosts: no "
            "speed-up has a verdict."
        )
    faster = [point for point in others if point.verdict == "faster" and point.speedup]
    if not faster:
        return f"No number of its processes is shown to be faster than {series.base}."
    best = max(faster, key=lambda point: point.speedup or 0.0)
    return f"{_speed(series, best, kind, f'{confidence:.3g} % interval')}{_of_ideal(best)}."


def _speed(series: Series, point: ScalingPoint, kind: str, of: str) -> str:
    """How many times as fast as the base a point is. of: what its interval is called."""
    what = "is" if kind == "strong" else "trains"
    unit = "as fast as" if kind == "strong" else "as many examples a second as"
    text = f"{point.cell} {what} {point.speedup:.2f} times {unit} {series.base}"
    if point.speedup_low is not None and point.speedup_high is not None:
        text += f" ({of} {point.speedup_low:.2f} to {point.speedup_high:.2f})"
    return text


def _of_ideal(point: ScalingPoint) -> str:
    return "" if point.efficiency is None else f", {100 * point.efficiency:.0f} % of the ideal"


def _enough(series: Series, points: Sequence[ScalingPoint]) -> str:
    if len(points) < 2:
        return ""
    if series.enough is None:
        return "From which number on more processes do not pay is not shown."
    more = [point.cell for point in points if point.processes > series.enough]
    end = "is slower or ties" if len(more) == 1 else "are slower or tie"
    few = counted(series.enough, "process", "processes")
    return f"More than {few} are shown not to pay: {listed_and(more)} {end}."


def _model(series: Series, last: Costs) -> str:
    """The band of the cost model with the most processes, beside what was measured."""
    [point] = [point for point in series.points if point.processes == last.processes]
    took = "" if point.step_seconds is None else f"; it took {_ms(point.step_seconds)}"
    return (
        f"By the cost model a step of {point.cell} takes {_ms(last.least)} to {_ms(last.most)}"
        f"{took}: computing {_ms(last.compute)}, communication {_ms(last.communication)} "
        f"({_messages(last)}, "
        f"{last.sent / MEGA:.3g} MB at {last.speed / MEGA:.3g} MB/s). What takes longest is "
        f"{last.bound}."
    )


def _above(series: Series, last: Costs) -> list[str]:
    """That the model leaves something out, where a step took much longer than it allows."""
    [point] = [point for point in series.points if point.processes == last.processes]
    if point.step_seconds is None or point.step_seconds <= ABOVE * last.most:
        return []
    return [
        f"That is {point.step_seconds / last.most:.2f} times the most that the model allows: it "
        "leaves out a cost of this strategy here, and what it predicts is too favorable."
    ]


def _messages(costs: Costs) -> str:
    number, one = f"{costs.messages:.3g}", costs.messages == 1
    return f"{number} message{'' if one else 's'} of {_ms(costs.alpha)}{'' if one else ' each'}"


def _missed(found: Sequence[Missed]) -> list[str]:
    if not found:
        return []
    parts = [f"{100 * each.efficiency:.0f} % {_from(each)}" for each in found]
    return [f"Predicted, not measured: an efficiency of {listed_and(parts)}."]


def _from(missed: Missed) -> str:
    if missed.soonest is None:
        return f"is reached up to {FARTHEST} processes"
    if missed.latest is None:
        return f"is missed from {missed.soonest} processes on at the soonest"
    if missed.soonest == missed.latest:
        return f"is missed from {missed.soonest} processes on"
    return f"is missed from {missed.soonest} to {missed.latest} processes on"


def _ms(seconds: float) -> str:
    return f"{MILLI * seconds:.3g} ms"
