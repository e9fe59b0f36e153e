"""What the lead of a study's answer rests on, and what its command trains."""

from __future__ import annotations

from ninefold.answer.answer import Compared
from ninefold.answer.cell import PLAIN, Cell
from ninefold.answer.decision import Decision
from ninefold.answer.leads import nothing_named, same_share
from ninefold.answer.study_facts import (
    FAILED_RUN,
    NEEDLESS,
    OTHER_LOSS,
    OTHER_NUMERICS,
    SHORT_WEIGHTS,
    UNSCALED,
    StudyFacts,
)
from ninefold.answer.words import percent
from ninefold.numbers import (
    between,
    capitalized,
    counted,
    difference,
    difference_with_unit,
    listed_and,
    number,
    plural,
    rounded_epochs,
    three_digits,
    unit_of_difference,
    with_article,
    with_unit,
    within_margin,
)
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import FAILED, PASSED, UNDECIDED, Estimate

NOISY = 0.5  # share of a mean from which on its interval says nothing
_NEVER_NAMED = {
    UNSCALED: "Not named without a score: small gradients of float16 underflow without a "
    "GradScaler",
    SHORT_WEIGHTS: "Not named without a score: a small update is lost in a weight of bfloat16",
    OTHER_LOSS: "Not named by its loss, which is that of a part of each batch",
    NEEDLESS: "Never named, as only float16 needs a GradScaler",
}


def reasons(found: Decision[StudyFacts]) -> list[str]:
    """Return what the lead rests on."""
    facts, cell = found.facts, found.named
    if cell is None:
        _, do = nothing_named(facts)
        return [do] if do else exclusions(facts)
    seconds = estimate(facts.seconds[cell])
    took = f"{three_digits(seconds.mean or 0.0)} s per epoch ({_uncertainty(seconds, facts.unit)})"
    said = [f"{facts.label(cell)} takes {took}."]
    if cell != PLAIN and (speed := facts.speedup(cell)) is not None:
        said.append(f"It is {_over_plain(found, speed)}.")
    if found.decided and found.chance is not None:
        sure = f"with {percent(found.chance)} confidence"
        said.append(f"Nothing acceptable is {same_share(facts)} faster, {sure}.")
    if found.decided and cell != PLAIN and facts.scored:
        said += _why_safe(facts, cell)
    if not found.decided:
        said += _open_to(found)
    said += _lost(found, cell)
    said += exclusions(facts)
    return said


def _over_plain(found: Decision[StudyFacts], speed: Compared) -> str:
    """How many times as fast as the baseline the named configuration is, with its interval."""
    base, sure = found.facts.label(PLAIN), speed.sure(found.facts.settings)
    open_ = ": not shown to differ" if speed.interval and speed.verdict in UNDECIDED else ""
    return f"{speed.value:.2f} times as fast as {base} ({sure}){open_}"


def _open_to(found: Decision[StudyFacts]) -> list[str]:
    """Which configurations may be the fastest, and what is open of them."""
    facts, scoring = found.facts, found.facts.group.scoring
    names = [
        f"{facts.label(cell)}{f' (its {scoring.name} is open)' if cell in found.unscored else ''}"
        for cell in found.may_be
    ]
    said = [f"Still possible: {'; '.join(names)}."]
    kept = within_margin(facts.settings.margin, scoring.mark, scoring.better, facts.label(PLAIN))
    for cell in found.unscored:
        keeps = f"{facts.label(cell)} keeps {with_article(scoring.name)} (shown to be {kept})"
        said.append(f"Whether {keeps} is open: more seeds may decide it.")
    return said


def _lost(found: Decision[StudyFacts], cell: Cell) -> list[str]:
    """Which configurations are out for their score alone: a table says how all compare in time."""
    facts, score = found.facts, found.facts.group.score
    others = {
        other: speed.verdict
        for other in found.rivals
        if other != cell and facts.excluded(other) is None
        if (speed := facts.speedup(other, cell)) is not None
    }
    said, lost = [], []
    for other, verdict in others.items():
        is_worse = facts.safe[other] == "worse"
        if verdict == "faster":
            why = f"worse{_loss(facts, other)}" if is_worse else "not shown to be kept"
            said.append(f"{facts.label(other)} is faster, but its {score} is {why}.")
        elif is_worse and verdict != "slower":
            lost.append(other)
    return said + [f"Eliminated, as {score} is lost: {facts.labels(lost)}."] * bool(lost)


def check(facts: StudyFacts) -> list[str]:
    """Return what the A/A control says of the measurement of time, and what follows."""
    if not facts.asks_time:
        return []
    control, same = facts.comparison.control, same_share(facts)
    if control is None:
        return ["No A/A control was timed, so nothing checks the measurement itself."]
    names = list(dict.fromkeys(second.parallel for _, second in control.pairs))
    work = plural(names, "does the work of none here and is", "do the work of none here and are")
    why = "interval not known yet" if control.low is None else f"interval beyond {same}"
    why, follows = {
        PASSED: ("", f", within {same}"),
        FAILED: ("", f", not within {same}: something else changes the times"),
    }.get(control.state, (f" ({why})", ""))
    ends = between(control.low, control.high, lambda end: number(end, 3), "")
    speed = f"{number(control.speedup, 3)} times as fast{ends and f' (95 % interval {ends})'}"
    said = [f"A/A test {control.state}{why}: {listed_and(names)} {work} {speed}{follows}."]
    if facts.comparison.floor:
        below = f"no difference of time below {100 * facts.comparison.floor:.1f} %"
        said.append(f"By this test {below} counts as faster or slower.")
    return said


def exclusions(facts: StudyFacts) -> list[str]:
    """Return why configurations are left out, but for those that do another one's work."""
    why = {cell: facts.excluded(cell) for cell in facts.cells}
    said = []
    for cell, reason in why.items():
        name = facts.label(cell)
        if reason == FAILED_RUN:
            said.append(f"{name} is left out: a run of it ended as {facts.failed[cell]}.")
        elif reason == OTHER_NUMERICS:
            text = f"{name} is left out: its first steps do not compute the same."
            said.append(f"{text} {facts.other_numerics()[cell]}".strip())
    for kind, text in _NEVER_NAMED.items():
        if cells := [cell for cell, reason in why.items() if reason == kind]:
            said.append(f"{text}: {facts.labels(cells)}.")
    return said


def _uncertainty(found: Estimate, unit: str) -> str:
    of = counted(found.n, unit)
    if found.half is None or not found.mean:
        return of
    share = found.half / found.mean
    if share > NOISY:
        return f"{of}, too noisy to say how exactly"
    shown = f"±{100 * share:.1f} %" if share >= 0.001 else "less than ±0.1 %"
    return f"{of}, 95 % interval {shown}"


def _why_safe(facts: StudyFacts, cell: Cell) -> list[str]:
    """How far a score that is kept is from the baseline's, and what loss of it is ruled out."""
    safety, unit = facts.safety(cell), facts.group.scoring.mark
    if safety is None or safety.difference is None or safety.low is None:
        return []
    said = f"{capitalized(facts.group.score)}: {difference_with_unit(safety.difference, unit)}"
    bound = facts.group.scoring.sign * safety.low
    if bound < 0:
        said += f"; a loss above {difference(-bound, unit).lstrip('+')} is ruled out"
    elif safety.difference:
        said += "; no loss"
    margin = with_unit(f"{facts.settings.margin:g}", unit_of_difference(unit))
    allowed = f"up to {margin}" if facts.settings.margin else "no loss"
    return [f"{said} ({counted(safety.n, 'seed')}; {allowed} would be allowed)."]


def _loss(facts: StudyFacts, cell: Cell) -> str:
    safety = facts.safety(cell)
    if safety is None or safety.difference is None:
        return ""
    return f": {difference_with_unit(safety.difference, facts.group.scoring.mark)}"


def trains(facts: StudyFacts) -> list[str]:
    """Return what the printed command trains."""
    epochs = facts.group.epochs
    if epochs is None:
        return []
    longer = "epochs=N" + " max_steps=null" * bool(epochs % 1)  # max_steps ends amid an epoch
    known = rounded_epochs(epochs)
    return [f"It trains for {known:g} {plural(known, 'epoch')}: add {longer} for a longer run."]
