"""The sentences of the answer. What they say is decided in `recommend` and `evidence`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ninefold.report.answer.evidence import Evidence
from ninefold.report.answer.pairs import Pairs, Ratio
from ninefold.report.answer.recommend import (
    APART,
    COPY,
    FAILED_RUN,
    NEEDLESS,
    NO_RUNS,
    NOTHING_SAFE,
    OTHER_NUMERICS,
    Recommendation,
    excluded,
)
from ninefold.report.data.cell import PLAIN, Cell
from ninefold.report.numbers import (
    counted,
    difference,
    listed_and,
    plural,
    three_digits,
    unit_of_difference,
    with_unit,
    within_margin,
)
from ninefold.report.stats.measures import BYTES, SECONDS, TO_TARGET, target_text
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import OPEN, WITHIN, Estimate

MOST_NAMED = 3  # cells whose open scores the answer names one by one
UNFINISHED = "The study is not finished. To resume it, repeat its command with study.resume=FOLDER."


@dataclass(frozen=True)
class _Words:
    """How a goal is worded.

    better: of a cell with less of the measure than another.
    more: what cells with more of it are shown to do.
    best: of the cell with the least of it.
    """

    better: str
    more: str
    best: str


_WORDS = {
    SECONDS.key: _Words("is faster", "take longer", "has the fastest epoch"),
    TO_TARGET: _Words("is faster", "take longer", "is the fastest to the target"),
    BYTES.key: _Words("takes less", "take more", "takes the least memory"),
}


def answer(goals: Sequence[Recommendation]) -> str:
    """Return the answer: a sentence for the first goal, and one for the others."""
    first = goals[0]
    text = sentence(first)
    if first.decided:
        text = f"Train with {text}"
    if first.unscored:
        many = len(first.unscored) > MOST_NAMED
        faster = [_with_ratio(first, other) for other in first.unscored]
        which = f"{len(first.unscored)} other cells" if many else listed_and(faster)
        text += f" Whether the {_score(first)} is safe is still open for {which}."
    others = [goal for goal in goals[1:] if goal.cell is not None]
    same = [goal.goal.name for goal in others if goal.cell == first.cell]
    if same:  # "the choice" and not "the best": it may tie with others
        text += f" It is also the choice for {' and '.join(same)}."
    for goal in others:
        if goal.cell != first.cell:
            text += f" {goal.goal.name.capitalize()}: {goal.cell}."
    return text


def of_scores(found: Recommendation) -> str | None:
    """Return the answer of a study that asked for scores alone; None without a baseline's."""
    evidence, score = found.evidence, _score(found)
    others = [cell for cell in evidence.cells if cell != PLAIN]
    if PLAIN not in evidence.accuracy or not others:
        return None
    scoring = evidence.group.scoring
    allowed = within_margin(evidence.settings.margin, scoring.mark, scoring.better, PLAIN)
    by_verdict: dict[str, list[Cell]] = {}
    for cell in others:
        by_verdict.setdefault(evidence.safe[cell], []).append(cell)
    if list(by_verdict) == ["safe"]:
        text = f"The {score} is safe in {plural(others, str(others[0]), 'all')}"
        text += f" {len(others)} other cells" * (len(others) > 1) + f": {allowed}."
    else:
        parts = []
        for verdict, said in (("safe", "safe"), ("worse", "worse"), (OPEN, "still open")):
            if cells := by_verdict.get(verdict, []):
                many = len(cells) > MOST_NAMED
                parts.append(f"{said} in {f'{len(cells)} cells' if many else listed_and(cells)}")
        text = f"The {score} is {', '.join(parts)}. Safe: {allowed}."
    text += " Times were not asked for"
    return (
        f"{text}; {found.cell} is the simplest that may be the fastest."
        if found.cell
        else f"{text}."
    )


def sentence(found: Recommendation) -> str:
    """Return the recommendation for one goal, or why there is none, in a sentence."""
    if found.why_none == NO_RUNS:
        do = UNFINISHED if found.evidence.unfinished else "Fix what failed and run it again."
        return f"Not enough runs: none has ended well. {do}"
    if found.why_none == NOTHING_SAFE:
        return _nothing_safe(found)
    if found.why_none == APART:
        return (
            f"No answer on the {found.goal.name}: the cells ran on different hosts, whose times "
            "are not compared. Run every cell on the same ones."
        )
    if found.cell is None or found.pairs is None:
        return _not_enough(found)
    cell, means, pairs = found.cell, found.means, found.pairs
    value = _with_unit(found, cell)
    if len(means) == 1:
        missed = found.goal.key == TO_TARGET and set(found.evidence.short) - {cell}
        alone = "reached it in every run" if missed else "was measured"
        return f"{cell}: {value}; no other cell {alone}."
    better = [
        other
        for other in means
        if found.evidence.safe[other] == "safe" and pairs.verdict(cell, other) == "faster"
    ]
    if found.chance is not None:
        return _fastest_sentence(found, value, pairs, better)
    if cell == PLAIN:
        if better:  # they are left out, or one of them would be recommended
            return f"{cell}: {value}; only {listed_and(better)}, left out, is shown to do better."
        return f"{cell}: {value}, and no safe cell is shown to do better."
    ratio = pairs.ratio(PLAIN, cell)
    safe = f"its {_score(found)} is safe" if found.evidence.scored else ""
    if ratio is None or pairs.verdict(PLAIN, cell) != "faster":
        return f"{cell}: {value}{safe and f', and {safe}'}."
    apart = _times(ratio, PLAIN, found.evidence)
    return f"{cell}: {value}, {apart}{safe and f'; {safe}'}."


def _fastest_sentence(
    found: Recommendation, value: str, pairs: Pairs, better: Sequence[Cell]
) -> str:
    """Return the recommendation for the fastest epoch, with its confidence."""
    evidence, cell = found.evidence, found.cell
    best = "the fastest safe cell" if evidence.scored else "the fastest cell"
    if found.unscored:
        best = "the fastest cell that is shown safe so far"
    within = f"within {100 * evidence.settings.same:g} % of {best}"
    chance = found.chance or 0.0
    within = (
        f"with {_percent(chance)} confidence {within}"
        if chance >= 0.001
        else f"not shown to be {within}"
    )
    if found.decided:
        text = f"{cell}: {value}, {within}"
    else:
        among = f"the simplest of the {len(found.may_be)} cells that may be the fastest"
        if len(found.may_be) < 2:
            among = "the only one that is not shown to be slower than another"
        text = f"Not decided yet: train with {cell}, {among}: {value}, {within}"
        lead = found.lowest and found.lowest != cell and pairs.ratio(cell, found.lowest)
        if lead and lead[0] < 1 - evidence.settings.same:
            text += f"; the lowest mean so far is {found.lowest}'s (×{lead[0]:.2f})"
    ratio = pairs.ratio(PLAIN, cell)
    if cell != PLAIN and ratio and pairs.verdict(PLAIN, cell) == "faster":
        text += f"; {_times(ratio, PLAIN, evidence)}"
    if cell != PLAIN and evidence.scored:
        text += f"; its {_score(found)} is safe"
    if better:  # they are left out, or one of them would be recommended
        text += f"; only {listed_and(better)}, left out, is shown to do better"
    return f"{text}."


def _with_ratio(found: Recommendation, other: Cell) -> str:
    """A cell, and the share of the recommended one's time that it takes if it is shown faster."""
    cell, pairs = found.cell, found.pairs
    ratio = pairs.ratio(cell, other) if cell and pairs else None
    if cell is None or pairs is None or ratio is None or pairs.verdict(cell, other) != "faster":
        return str(other)
    return f"{other} (×{ratio[0]:.2f})"


def _percent(chance: float) -> str:
    """A confidence in percent, rounded down."""
    return "more than 99.9 %" if chance > 0.999 else f"{math.floor(1000 * chance) / 10:g} %"


def _score(found: Recommendation) -> str:
    """The name of the task's score."""
    return found.evidence.group.score


def reasons(found: Recommendation) -> list[str]:
    """Return what the sentence does not say: how certain it is, and why not another cell."""
    cell, pairs, evidence = found.cell, found.pairs, found.evidence
    if cell is None or pairs is None:
        return []
    said = [_uncertainty(estimate(found.values[cell]), found.unit)]
    if cell != PLAIN:
        ratio, verdict = pairs.ratio(PLAIN, cell), pairs.verdict(PLAIN, cell)
        if ratio and verdict != "faster":
            said.append(f"It takes {_times(ratio, PLAIN, evidence)}: {verdict}.")
        if evidence.scored:
            said.append(_why_safe(evidence, cell))
    if found.lowest and found.lowest != cell and found.decided:
        said.append(
            f"Of the safe cells {found.lowest} leads, with {_with_unit(found, found.lowest)}; "
            f"{cell} is simpler, and shown to be within {100 * evidence.settings.same:g} % of the "
            "fastest of them."
        )
    elif found.lowest and found.lowest != cell:
        said.append(
            f"Of the safe cells {found.lowest} has the lowest mean, "
            f"{_with_unit(found, found.lowest)}, but is not shown to differ from {cell}, which is "
            "simpler."
        )
    if above := _shown_above(found.means, pairs, cell):
        said.append(f"{above} shown to {_WORDS[found.goal.key].more}.")
    if found.tied:
        said.append(f"{listed_and(found.tied)} {plural(found.tied, 'ties', 'tie')} with it.")
    said += [text for other in found.means if (text := _why_not(found, pairs, cell, other))]
    for other in evidence.cells:
        if other not in found.means:
            why = exclusion(other, evidence)
            if found.goal.key == TO_TARGET and other in evidence.short and why is None:
                why = f"{other} reached the target in {evidence.short[other]}."
            said += [why] if why else []
    return said


def _why_not(found: Recommendation, pairs: Pairs, cell: Cell, other: Cell) -> str | None:
    """Return why another cell that was measured is not recommended, if it is worth a sentence."""
    evidence = found.evidence
    verdict, ratio = pairs.verdict(cell, other), pairs.ratio(cell, other)
    if other == cell or ratio is None:
        return None
    apart = _times(ratio, cell, evidence)
    better = _WORDS[found.goal.key].better
    if (why := exclusion(other, evidence)) is not None:
        does_more = other in (*evidence.copies, *evidence.needless)
        slower_copy = does_more and found.means[other] >= found.means[cell]
        return None if slower_copy else why
    if evidence.safe[other] == "worse" and verdict == "faster":
        return (
            f"{other} {better}, {apart}, but its {_score(found)} is worse than {PLAIN}'s: "
            f"{_loss(evidence, other)}."
        )
    if other not in found.unsure:
        return None
    if verdict == "faster":
        missing = f"{other} {better}, {apart}, but not shown safe"
    elif evidence.safe[other] == "safe":
        missing = f"{other}, {apart}, is not shown to differ from it"
    elif verdict == "tie":
        missing = f"{other}, {apart}, is not shown safe"
    else:
        missing = f"{other}, {apart}, is shown neither to differ from it nor to be safe"
    return f"{missing}: {_what_settles(found, pairs, cell, other)}."


def exclusion(cell: Cell, evidence: Evidence) -> str | None:
    """Return why a cell is not recommended whatever its numbers are, or None."""
    why = excluded(cell, evidence)
    if why == FAILED_RUN:
        return f"{cell} is left out: a run of it ended as {evidence.bad[cell]}."
    if why == COPY:
        return f"{cell} is left out: on one device it does what {evidence.copies[cell]} does."
    if why == NEEDLESS:
        return (
            f"{cell} is left out: it does what {evidence.needless[cell]} does, and has a "
            "GradScaler besides, which only float16 needs."
        )
    if why == OTHER_NUMERICS:
        sentence = evidence.different[cell]
        return f"{cell} is left out: its first steps do not compute the same. {sentence}".strip()
    return None


def _nothing_safe(found: Recommendation) -> str:
    evidence, goal = found.evidence, found.goal
    if PLAIN in evidence.accuracy:
        return f"No answer on the {goal.name}: no cell that could be recommended is shown safe."
    do = f"Run it with parallel={PLAIN.parallel} amp={PLAIN.amp}."
    if evidence.unfinished and (PLAIN in evidence.cells or str(PLAIN) in evidence.planned):
        do = UNFINISHED
    return (
        f"No answer on the {goal.name}: {PLAIN}, which the {_score(found)} of the other cells is "
        f"compared with, has no run that ended well. {do}"
    )


def _not_enough(found: Recommendation) -> str:
    if found.chance is not None:
        most = max(map(len, found.values.values()))
        return f"Not enough {found.unit}s to say which cell is the fastest: run more than {most}."
    needed = found.needed_for(found.unsure)
    most = max(len(found.evidence.accuracy.get(each, {})) for each in found.means)
    do = f"run more seeds than these {most}, such as {max(5, 2 * most)}"
    if needed and max(needed.values()) > most:
        do = f"about {_counts(needed)} in all would settle it"
    if found.pairs and not found.pairs.held:
        do = "a control did not hold: run it again on a quieter machine or with longer steps"
    return f"Not enough runs to say which cell {_WORDS[found.goal.key].best}: {do}."


def _what_settles(found: Recommendation, pairs: Pairs, cell: Cell, other: Cell) -> str:
    if needed := found.needed_for([other]):
        return f"about {_counts(needed)} in all would settle it"
    verdict = pairs.verdict(cell, other)
    if verdict == WITHIN or (not pairs.held and verdict == OPEN):
        return f"as a control did not hold, more {found.unit}s need not settle it"
    return f"more {found.unit if verdict == OPEN else 'seed'}s may settle it"


def _counts(needed: Mapping[str, int]) -> str:
    return listed_and([f"{count} {unit}s" for unit, count in needed.items()])


def _shown_above(means: Mapping[Cell, float], pairs: Pairs, cell: Cell) -> str:
    """Return which cells are shown to have more of the measure; empty where none is."""
    ratios = {
        other: ratio[0]
        for other in means
        if pairs.verdict(cell, other) == "slower" and (ratio := pairs.ratio(cell, other))
    }
    if len(ratios) < 2:
        return "".join(f"{other} (×{ratio:.2f}) is" for other, ratio in ratios.items())
    least, most = (f"×{end(ratios.values()):.2f}" for end in (min, max))
    span = least if least == most else f"{least} to {most}"
    return f"{listed_and(list(ratios))} ({span}) are"


def _with_unit(found: Recommendation, cell: Cell) -> str:
    value = found.means[cell]
    if found.goal.key == BYTES.key:
        return f"{value / 2**20:.0f} MiB"
    if found.goal.key == SECONDS.key:
        return f"{three_digits(value)} s per epoch"
    target = found.evidence.target or 0.0
    return f"{three_digits(value)} s to {target_text(target, found.evidence.group.scoring)}"


def _times(ratio: Ratio, cell: Cell, evidence: Evidence) -> str:
    value, low, high = ratio
    text = f"{value:.3f} times {cell}'s"
    if low is None or high is None:
        return text
    return f"{text} ({evidence.settings.confidence:.3g} % interval {low:.3f} to {high:.3f})"


def _uncertainty(found: Estimate, unit: str) -> str:
    seeds = counted(found.n, unit)
    if found.low is None or found.high is None or not found.mean:
        return f"{seeds} {plural(found.n, 'gives', 'give')} no interval."
    if found.sd == 0:
        return f"It is the same with each of {seeds}."
    share = 50 * (found.high - found.low) / found.mean
    shown = f"± {share:.1f} %" if share >= 0.1 else "less than ± 0.1 %"
    return f"Its mean is known to {shown} (95 % interval, {seeds})."


def _why_safe(evidence: Evidence, cell: Cell) -> str:
    safety, margin = evidence.safety(cell), evidence.settings.margin
    score, unit = evidence.group.score, evidence.group.scoring.mark
    worse = "below" if evidence.group.scoring.better == "more" else "above"
    if safety is None or safety.difference is None or safety.low is None:
        most = with_unit(f"{margin:g}", unit_of_difference(unit))
        return f"Its {score} may be up to {most} {worse} {PLAIN}'s."
    if safety.difference == safety.low:
        return f"Its {score} is {PLAIN}'s with each of {counted(safety.n, 'seed')}."
    apart = with_unit(difference(safety.difference, unit), unit_of_difference(unit))
    allowed = -evidence.group.scoring.sign * margin
    return (
        f"Its {score} differs by {apart} from {PLAIN}'s, and is shown not to be {worse} "
        f"{difference(safety.low, unit)}, where {allowed:+g} would still be allowed."
    )


def _loss(evidence: Evidence, cell: Cell) -> str:
    safety = evidence.safety(cell)
    if safety is None or safety.difference is None:
        return "by how much is not known"
    unit = evidence.group.scoring.mark
    return with_unit(difference(safety.difference, unit), unit_of_difference(unit))
