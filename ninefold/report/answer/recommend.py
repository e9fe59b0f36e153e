"""Says which cell to train with, per goal: the best whose accuracy is safe, with the reasons.

Of cells that are not shown to differ from the best, the simplest is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from ninefold.report.answer.evidence import Evidence
from ninefold.report.data.cells import BASELINE, PLAIN, plainness
from ninefold.report.data.rounds import round_number, rounds_of
from ninefold.report.numbers import decimals_for
from ninefold.report.stats.differences import EQUAL, NOTHING
from ninefold.report.stats.measures import BYTES, SECONDS, TO_TARGET
from ninefold.report.stats.statistics import compare, estimate
from ninefold.report.stats.verdicts import (
    OPEN,
    Comparison,
    Control,
    Estimate,
    Pair,
    Safety,
    Settings,
)

UNFINISHED = (
    "The study was not finished: to go on with it, repeat its command with study.resume=FOLDER."
)


@dataclass(frozen=True)
class Goal:
    """What a cell may be best at. `name` and `key` are those of report.json."""

    name: str
    key: str
    verb: str  # of a cell with less of it than another: "is faster"
    more: str  # what cells with more of it are shown to do: "take longer"
    best: str  # of the cell with the least of it: "has the fastest epoch"
    unit: Callable[[float, Evidence], str]


@dataclass(frozen=True)
class Recommendation:
    """The cell for a goal, None where nothing can be said; `sentence` and `reasons` are plain.

    tied: cells that tie with it. open: the cells on which more runs could change it.
    """

    goal: Goal
    cell: str | None
    sentence: str
    reasons: list[str] = field(default_factory=list)
    tied: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)


def _per_epoch(value: float, evidence: Evidence) -> str:
    return f"{number(value)} s per epoch"


def _to_target(value: float, evidence: Evidence) -> str:
    return f"{number(value)} s to {evidence.target:.2f} % test accuracy"


def _mebibytes(value: float, evidence: Evidence) -> str:
    return f"{value / 2**20:.0f} MiB"


GOALS = (
    Goal(
        "fastest epoch",
        SECONDS.key,
        "is faster",
        "take longer",
        "has the fastest epoch",
        _per_epoch,
    ),
    Goal(
        "fastest to target",
        TO_TARGET,
        "is faster",
        "take longer",
        "is the fastest to the target",
        _to_target,
    ),
    Goal(
        "least memory", BYTES.key, "takes less", "take more", "takes the least memory", _mebibytes
    ),
)


def recommend(evidence: Evidence) -> list[Recommendation]:
    """Return a recommendation for each goal that was measured; that for time always."""
    found = [_for_goal(evidence, goal) for goal in GOALS]
    return [each for each in found if each is not None]


def is_settled(recommendation: Recommendation) -> bool:
    """Whether more runs of what was run cannot change it."""
    return not recommendation.open


def _for_goal(evidence: Evidence, goal: Goal) -> Recommendation | None:
    values = evidence.of_goal(goal.key)
    if not values:
        return None if goal is not GOALS[0] else Recommendation(
            goal, None,
            "Not enough runs: none has ended well. "
            + (UNFINISHED if evidence.unfinished else "Mend what failed and run it again."),
            open=evidence.cells,
        )  # fmt: skip
    pairs = _pairs(evidence, goal, values)
    means = {cell: mean for cell in values if (mean := estimate(values[cell]).mean) is not None}
    possible = [cell for cell in means if excluded(cell, evidence) is None]
    safe = sorted((cell for cell in possible if evidence.safe[cell] == "safe"), key=plainness)
    unknown = [cell for cell in possible if evidence.safe[cell] == OPEN]
    if not safe:
        return Recommendation(
            goal, None, _nothing_safe(evidence, goal), open=unknown or evidence.cells
        )
    unbeaten = [
        cell for cell in safe
        if not any(pairs.verdict(cell, other) == "faster" for other in safe)
    ]  # fmt: skip
    best = min(unbeaten or safe, key=lambda cell: means[cell])
    level = [
        cell for cell in unbeaten
        if cell == best or pairs.verdict(best, cell) in ("tie", OPEN)
    ]  # fmt: skip
    cell = level[0] if level else best
    tied = [other for other in level if other != cell and pairs.verdict(cell, other) == "tie"]
    # What another round could still change: who might be faster than it, and might be safe.
    unsure = [other for other in safe if pairs.verdict(cell, other) == OPEN and other != cell]
    unsure += [
        other for other in unknown
        if pairs.verdict(cell, other) in ("faster", OPEN)
        or (pairs.verdict(cell, other) == "tie" and plainness(other) < plainness(cell))
    ]  # fmt: skip
    others = [other for other in possible if other != cell and evidence.safe[other] != "worse"]
    if others and all(pairs.verdict(cell, other) == OPEN for other in others):
        return Recommendation(
            goal, None, _not_enough(evidence, goal, means, pairs, cell, unsure), open=others
        )
    reasons = _reasons(evidence, goal, values, means, pairs, cell, best, tied, unsure)
    return Recommendation(
        goal, cell, _sentence(evidence, goal, means, pairs, cell), reasons, tied, unsure
    )


class Pairs:
    """The verdicts on pairs of cells, asked for in either order.

    held: whether the A/A controls did that these verdicts depend on.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._pairs = {(pair.first, pair.second): pair for pair in comparison.seconds}
        self.held = all(control.held for control in comparison.controls)

    def verdict(self, first: str, second: str) -> str:
        """Return what `second` is against `first`: faster, slower, tie, not enough runs."""
        if first == second:
            return "tie"
        if pair := self._pairs.get((first, second)):
            return str(pair.verdict)
        if pair := self._pairs.get((second, first)):
            turned = {"faster": "slower", "slower": "faster"}
            return turned.get(pair.verdict, str(pair.verdict))
        return OPEN

    def ratio(self, first: str, second: str) -> tuple[float, float | None, float | None] | None:
        """Return the ratio second/first and its interval, None where it is not known."""
        if (pair := self._pairs.get((first, second))) and pair.estimate is not None:
            return pair.estimate, pair.low, pair.high
        if (pair := self._pairs.get((second, first))) and pair.estimate:
            low = 1 / pair.high if pair.high else None
            high = 1 / pair.low if pair.low else None
            return 1 / pair.estimate, low, high
        return None

    def needed(self, first: str, second: str) -> int | None:
        """Return how many seeds in all would settle it, where that is known."""
        pair = self._pairs.get((first, second)) or self._pairs.get((second, first))
        return pair.needed if pair else None


def _pairs(evidence: Evidence, goal: Goal, values: Mapping[str, Mapping[int, float]]) -> Pairs:
    """Return the verdicts on what a goal measures; controls are of times."""
    settings = evidence.settings
    if goal.key == SECONDS.key:
        return Pairs(evidence.comparison)
    if goal.key != BYTES.key:
        return Pairs(compare(values, evidence.accuracy, settings, evidence.controls))
    found = compare(values, evidence.accuracy, settings)
    return Pairs(replace(found, seconds=[_exact(pair, values, settings) for pair in found.seconds]))


def _exact(pair: Pair, values: Mapping[str, Mapping[int, float]], settings: Settings) -> Pair:
    """Judge a ratio of memory that no round moved by itself: a GPU's peak is so to the byte."""
    first, second = values[pair.first], values[pair.second]
    seen = {second[key] / first[key] for key in first if key in second}
    if pair.estimate is None or pair.n < EQUAL or max(seen) - min(seen) > NOTHING:
        return pair
    same = abs(math.log(pair.estimate)) <= math.log1p(settings.same)
    verdict = "tie" if same else "slower" if pair.estimate > 1 else "faster"
    return replace(
        pair, low=None, high=None, p=None, adjusted=None, verdict=verdict, needed=None
    )  # fmt: skip


def excluded(cell: str, evidence: Evidence) -> str | None:
    """Return why a cell is not recommended whatever its numbers, or None."""
    if cell in evidence.bad:
        return f"{cell} is left out: a run of it ended as {evidence.bad[cell]}."
    if (original := evidence.copies.get(cell)) in evidence.cells:
        return f"{cell} is left out: on one device it does what {original} does."
    if cell in evidence.different:
        why = evidence.different[cell]
        return f"{cell} is left out: its first steps do not compute the same. {why}".strip()
    return None


def _nothing_safe(evidence: Evidence, goal: Goal) -> str:
    if PLAIN not in evidence.accuracy:
        do = f"Run it with parallel={BASELINE[0]} amp={BASELINE[1]}."
        if evidence.unfinished and PLAIN in (*evidence.planned, *evidence.cells):
            do = UNFINISHED
        return (
            f"No answer on the {goal.name}: {PLAIN}, which accuracies are held against, has no run "
            f"that ended well. {do}"
        )
    return f"No answer on the {goal.name}: no cell that could be taken is shown safe."


def _not_enough(
    evidence: Evidence,
    goal: Goal,
    means: Mapping[str, float],
    pairs: Pairs,
    cell: str,
    unsure: Sequence[str],
) -> str:
    seeds = _seeds_for(evidence, pairs, cell, unsure)
    most = max(len(evidence.accuracy.get(each, {})) for each in means)
    do = (
        f"about {seeds} seeds in all would settle it" if seeds and seeds > most
        else f"run more seeds than these {most}, such as {max(5, 2 * most)}"
    )  # fmt: skip
    if not pairs.held:
        do = "the A/A control did not hold: run it again on a quieter machine or with longer steps"
    return f"Not enough runs to say which cell {goal.best}: {do}."


def _seeds_for(evidence: Evidence, pairs: Pairs, cell: str, unsure: Sequence[str]) -> int | None:
    """Return the seeds in all that settle every open question, None where one is not known."""
    found = []
    for other in unsure:
        if pairs.verdict(cell, other) == OPEN:
            found.append(pairs.needed(cell, other))
        if evidence.safe[other] == OPEN:
            safety = _safety(evidence, other)
            found.append(safety.needed if safety else None)
    known = [seeds for seeds in found if seeds is not None]
    return max(known) if known and len(known) == len(found) else None


def _sentence(
    evidence: Evidence, goal: Goal, means: Mapping[str, float], pairs: Pairs, cell: str
) -> str:
    value = goal.unit(means[cell], evidence)
    if len(means) == 1:
        missed = goal.key == TO_TARGET and set(evidence.short) - {cell}
        alone = "got there in every run" if missed else "was measured"
        return f"{cell}: {value}; no other cell {alone}."
    if cell == PLAIN:
        better = [other for other in means if evidence.safe[other] == "safe"
                  and pairs.verdict(cell, other) == "faster"]  # fmt: skip
        if better:  # or it would be recommended
            return f"{cell}: {value}; only {join(better)}, left out, is shown to do better."
        return f"{cell}: {value}, and no safe cell is shown to do better."
    ratio = pairs.ratio(PLAIN, cell)
    if ratio is None or pairs.verdict(PLAIN, cell) != "faster":
        return f"{cell}: {value}, and its accuracy is safe."
    return f"{cell}: {value}, {times(ratio, PLAIN, evidence)}; its accuracy is safe."


def _reasons(
    evidence: Evidence,
    goal: Goal,
    values: Mapping[str, Mapping[int, float]],
    means: Mapping[str, float],
    pairs: Pairs,
    cell: str,
    best: str,
    tied: Sequence[str],
    unsure: Sequence[str],
) -> list[str]:
    """What the sentence does not say: how sure it is, and of each other cell why not that one."""
    reasons = [_uncertainty(estimate(values[cell]))]
    if cell != PLAIN:
        ratio, verdict = pairs.ratio(PLAIN, cell), pairs.verdict(PLAIN, cell)
        if ratio and verdict != "faster":
            reasons.append(f"It takes {times(ratio, PLAIN, evidence)}: {verdict}.")
        reasons.append(_why_safe(evidence, cell))
    if best != cell:
        reasons.append(
            f"{best} has the lowest mean, {goal.unit(means[best], evidence)}, but is not shown to "
            f"differ from {cell}, which is simpler."
        )
    if above := _shown_above(means, pairs, cell):
        reasons.append(f"{above} shown to {goal.more}.")
    if tied:
        reasons.append(f"{join(tied)} {'tie' if len(tied) > 1 else 'ties'} with it.")
    for other in means:
        verdict = pairs.verdict(cell, other)
        ratio = pairs.ratio(cell, other)
        if other == cell or ratio is None:
            continue
        apart = times(ratio, cell, evidence)
        if (why := excluded(other, evidence)) is not None:
            if other not in evidence.copies or means[other] < means[cell]:
                reasons.append(why)
        elif evidence.safe[other] == "worse" and verdict == "faster":
            reasons.append(
                f"{other} {goal.verb}, {apart}, but its accuracy is worse than {PLAIN}'s: "
                f"{_loss(evidence, other)}."
            )
        elif other in unsure:
            missing = (
                f"{other} {goal.verb}, {apart}, but not shown safe"
                if verdict == "faster"
                else f"{other}, {apart}, is not told apart from it"
                if evidence.safe[other] == "safe"
                else f"{other}, {apart}, is not shown safe"
                if verdict == "tie"
                else f"{other}, {apart}, is neither told apart from it nor shown safe"
            )
            reasons.append(f"{missing}: {_what_settles(evidence, pairs, cell, other)}.")
    for other in evidence.cells:
        if other not in means:
            why = excluded(other, evidence)
            if goal.key == TO_TARGET and other in evidence.short and why is None:
                why = f"{other} reached the target in {evidence.short[other]}."
            reasons += [why] if why else []
    return reasons


def _what_settles(evidence: Evidence, pairs: Pairs, cell: str, other: str) -> str:
    if seeds := _seeds_for(evidence, pairs, cell, [other]):
        return f"about {seeds} seeds in all would settle it"
    if not pairs.held and pairs.verdict(cell, other) == OPEN:
        return "as the A/A control did not hold, more seeds need not settle it"
    return "more seeds may settle it"


def _shown_above(means: Mapping[str, float], pairs: Pairs, cell: str) -> str:
    """Say which cells have more of what a goal wants little of; empty where none is shown to."""
    ratios = {
        other: ratio[0] for other in means
        if pairs.verdict(cell, other) == "slower" and (ratio := pairs.ratio(cell, other))
    }  # fmt: skip
    if len(ratios) < 2:
        return "".join(f"{other} (×{ratio:.2f}) is" for other, ratio in ratios.items())
    least, most = (f"×{end(ratios.values()):.2f}" for end in (min, max))
    span = least if least == most else f"{least} to {most}"
    return f"{join(list(ratios))} ({span}) are"


def _uncertainty(found: Estimate) -> str:
    seeds = count(found.n, "seed")
    if found.low is None or found.high is None or not found.mean:
        return f"{seeds} {'gives' if found.n == 1 else 'give'} no interval."
    if found.sd == 0:
        return f"It is the same with each of {seeds}."
    share = 50 * (found.high - found.low) / found.mean
    shown = f"± {share:.1f} %" if share >= 0.1 else "less than ± 0.1 %"
    return f"Its mean is known to {shown} (95 % interval, {seeds})."


def _why_safe(evidence: Evidence, cell: str) -> str:
    safety, margin = _safety(evidence, cell), evidence.settings.margin
    if safety is None or safety.difference is None or safety.low is None:
        return f"Its accuracy is held against a margin of {margin:g} points."
    if safety.difference == safety.low:
        return f"Its accuracy is {PLAIN}'s with each of {count(safety.n, 'seed')}."
    return (
        f"Its accuracy differs by {safety.difference:+.2f} points from {PLAIN}'s, and is shown not "
        f"to lie below {safety.low:+.2f}, where {-margin:+g} would still be allowed."
    )


def _loss(evidence: Evidence, cell: str) -> str:
    safety = _safety(evidence, cell)
    if safety is None or safety.difference is None:
        return "by how much is not known"
    return f"{safety.difference:+.2f} points"


def _safety(evidence: Evidence, cell: str) -> Safety | None:
    return next((each for each in evidence.comparison.safety if each.cell == cell), None)


def caveats(evidence: Evidence, sweep: Mapping[str, Any]) -> list[str]:
    """Return what a reader of the answer must know of how it was come by."""
    found = [_failed_control(evidence, control) for control in evidence.comparison.controls
             if not control.held]  # fmt: skip
    if evidence.unfinished:
        found.append(UNFINISHED)
    drifted = [
        round_number({**entry, "attempt": 0})
        for entry in rounds_of(sweep, evidence.group.part)
        if entry.get("drifted") and entry.get("counted")
    ]
    if drifted:
        what = "rounds" if len(drifted) > 1 else "round"
        found.append(
            f"The machine drifted in {what} {join(drifted)}, in each attempt: the times there "
            "count, and are to be doubted."
        )
    if evidence.different:
        found.append(
            f"{join(sorted(evidence.different, key=plainness))} does not compute what {PLAIN} "
            "does: it is another experiment, not another way of doing this one."
        )
    if evidence.batch_norm:
        who = join(sorted(evidence.batch_norm, key=plainness))
        found.append(
            f"Batch norm sees a part of each batch at a time in {who}: whether that costs anything "
            "is for the accuracy to say (parallel.sync_batchnorm=true takes the whole)."
        )
    if evidence.bad:
        found.append(f"Not every run ended well: {join(sorted(evidence.bad, key=plainness))}.")
    waiting = [cell for cell in evidence.cells
               if (ceiling := evidence.ceiling(cell)) and ceiling.data_bound]  # fmt: skip
    if waiting:
        who = "Every cell" if waiting == evidence.cells else join(waiting)
        found.append(
            f"{who} {'waits' if who == 'Every cell' or len(waiting) == 1 else 'wait'} for data: "
            "faster loading would change what the times say."
        )
    if evidence.group.dataset == "synthetic":
        found.append("The images are random: their accuracy says nothing of a real dataset.")
    return found


def _failed_control(evidence: Evidence, control: Control) -> str:
    steps = [run.train_seconds / run.steps for run in evidence.runs(control.first)
             if run.ok and run.train_seconds and run.steps]  # fmt: skip
    apart = abs(control.ratio - 1) * 1e3 * fmean(steps or [0.0])
    shown = f"{apart:.3g} ms" if apart >= 1 else f"{1e3 * apart:.0f} µs"
    each = f", {shown} a step {'more' if control.ratio > 1 else 'less'}" if steps else ""
    why = "Something other than the cells made times differ."
    if control.ratio > 1:
        why = (
            "Some µs a step are the cost of dp's wrapper itself; what is beyond them, something "
            "other than the cells made."
        )
    return (
        f"The A/A control did not hold: {control.second} does the same work as {control.first} and "
        f"took ×{control.ratio:.3f} of its time{each}. {why} Ratios of time up to "
        f"×{1 + control.floor:.3f} have no verdict."
    )


def number(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:.{decimals_for(value)}f}"


def times(ratio: tuple[float, float | None, float | None], cell: str, evidence: Evidence) -> str:
    """Return a ratio to a cell with its interval."""
    value, low, high = ratio
    text = f"{value:.3f} times {cell}'s"
    if low is None or high is None:
        return text
    return f"{text} ({evidence.settings.confidence:.3g} % interval {low:.3f} to {high:.3f})"


def count(items: int, name: str) -> str:
    return f"{items} {name}{'' if items == 1 else 's'}"


def join(names: Sequence[str]) -> str:
    """Return names as a phrase: a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
