"""The sentences of the answer. What they say is decided in `recommend` and `ninefold.answer`."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

from ninefold.answer.words import percent
from ninefold.numbers import (
    capitalized,
    counted,
    difference,
    difference_with_unit,
    listed_and,
    number,
    plural,
    score_text,
    three_digits,
    times_as_fast,
    unit_of_difference,
    with_article,
    with_unit,
    within_margin,
)
from ninefold.report.answer.evidence import (
    FAILED_RUN,
    NEEDLESS,
    OTHER_LOSS,
    OTHER_NUMERICS,
    SHORT_WEIGHTS,
    UNSCALED,
    Evidence,
)
from ninefold.report.answer.recommend import Kind, Recommendation, lead_of
from ninefold.report.answer.tree import Chip, Compared
from ninefold.report.data.cell import BASELINE, PLAIN, Cell
from ninefold.report.stats.measures import BYTES
from ninefold.stats.statistics import estimate
from ninefold.stats.verdicts import FAILED, OPEN, PASSED, UNDECIDED, Estimate

MAX_CHIPS = 3  # beside the lead: more are not taken in at a glance
MAX_NAMED = 3  # configurations that a sentence names one by one
LEFT_OUT = "left out"  # of a score
NOISY = 0.5  # share of a mean from which on its interval says nothing
_LEADS = {
    Kind.NO_RUN: "No answer yet: no run ended well.",
    Kind.NO_BASELINE: f"No answer yet: {BASELINE} has no run that ended well.",
    Kind.UNSCALED: "No answer: float16 without a GradScaler is judged beside fp32; add fp32.",
    Kind.NOTHING_SAFE: "No answer: no configuration is shown to keep {score}.",
    Kind.NOTHING_ELSE: "Only {cells} was measured: there is nothing to compare it with.",
    Kind.SAME_WORK: "Use {use}: all others only repeat its work.",
    Kind.OTHERS_SLOWER: "Use {use}: all others are slower.",
    Kind.OTHERS_EXCLUDED: "Use {use}: no other configuration is acceptable.",
    Kind.FASTER: "Use {use}: {speedup} times as fast as {base}.",
    Kind.BASELINE: "Use {use}: nothing acceptable is more than {same} faster.",
    Kind.NEAR_FASTEST: "Use {use}: at most {same} slower than the fastest.",
    Kind.SCORE_OPEN: "Not decided: whether {cells} keeps {score} is open.",
    Kind.SCORES_OPEN: "Not decided: {score} of {count} configurations is still open.",
    Kind.ONE_PRECISION: "Use {precisions}. Not decided: {strategies}.",
    Kind.ONE_STRATEGY: "Use {strategies}. Not decided: {precisions}.",
    Kind.TOO_FEW: "Too few {unit}s to tell: {cells} is the fastest so far.",
    Kind.TWO_LEFT: "Not decided: {cells} may be the fastest.",
    Kind.SEVERAL_LEFT: "Not decided: {count} of {candidates} configurations may be the fastest.",
}

_NEVER_NAMED = {
    UNSCALED: "Not named without a score: small gradients of float16 underflow without a "
    "GradScaler",
    SHORT_WEIGHTS: "Not named without a score: a small update is lost in a weight of bfloat16",
    OTHER_LOSS: "Not named without a score, as the loss of a part of a batch is another one",
    NEEDLESS: "Never named, as only float16 needs a GradScaler",
}


def lead(found: Recommendation) -> str:
    """Return the answer in at most 14 words, after two on the load that it holds under."""
    evidence, said = found.facts, lead_of(found)
    first = said.cells[0] if said.cells else PLAIN
    text = _LEADS[said.kind].format(
        cells=" or ".join(map(evidence.label, said.cells)),
        use=_use(evidence, first),
        precisions=" or ".join(dict.fromkeys(map(evidence.precision, said.cells))),
        strategies=" or ".join(dict.fromkeys(map(_strategy, said.cells))),
        count=len(said.cells),
        candidates=len(found.candidates),
        speedup=number(said.speedup, 2),
        base=_base(first),
        score=with_article(evidence.group.score),
        same=_same(evidence),
        unit=evidence.unit,
    )
    under_load = evidence.turns.swamped and text.startswith(("Use ", "Only "))
    return f"Under load: {text}" if under_load else text


def _use(evidence: Evidence, cell: Cell) -> str:
    """Return what a configuration to use is called: that of one process is no strategy."""
    if cell.strategy == PLAIN.parallel:
        return f"{_strategy(cell)} in {evidence.precision(cell)}"
    return evidence.label(cell)


def _strategy(cell: Cell) -> str:
    return "one process" if cell.strategy == PLAIN.parallel else cell.strategy


def lead_of_scores(evidence: Evidence) -> str:
    """Return the answer of a study that asked for scores alone, in at most 14 words."""
    score, others = evidence.group.score, _scored(evidence)
    if PLAIN not in evidence.scores:
        return _LEADS[Kind.NO_BASELINE]
    verdicts = [_verdict(evidence, cell) for cell in others]
    if {*verdicts} <= {LEFT_OUT}:
        return f"No answer yet: nothing to compare {with_article(score)} with."
    if len(others) == 1:
        name, of = evidence.label(others[0]), with_article(score)
        kept = {"safe": f"{name} keeps {of}.", "worse": f"{name} loses {of}."}
        open_ = f"Whether {name} keeps {of} is still open."
        return capitalized(kept.get(verdicts[0], open_))
    counts = Counter(verdicts)
    if counts["safe"] == len(others):
        return f"All {len(others)} other configurations keep {with_article(score)}."
    words = (("safe", "kept by"), ("worse", "lost by"), (OPEN, "still open for"))
    parts = [f"{said} {counts[verdict]}" for verdict, said in words if counts[verdict]]
    return f"{capitalized(score)}: {', '.join(parts)} of {len(others)} configurations."


def chips(found: Recommendation) -> list[Chip]:
    """Return how sure the answer is, and what it costs in score and memory."""
    evidence, cell = found.facts, found.named
    if cell is None:
        return []
    if not found.decided:
        possible = evidence.labels(found.may_be)
        if len(found.may_be) > MAX_NAMED:
            possible = f"{len(found.may_be)} of {len({*found.candidates, *found.unscored})}"
        return [
            Chip("still possible", possible, "open"),
            Chip("fastest so far", evidence.label(cell), "open"),
            *_least_memory(found),
        ]
    said = []
    speed = evidence.speedup(cell)
    if speed and speed.verdict == "faster" and speed.low is not None:
        name = f"speedup over {evidence.label(PLAIN)}"
        said.append(Chip(name, _with_interval(speed), "good"))
    if found.chance is not None:
        sure = f"{percent(found.chance)} that nothing is {_same(evidence)} faster"
        said.append(Chip("confidence", sure, "good"))
    if not evidence.scored:
        said.append(Chip(evidence.group.score, "not asked for", "open"))
    elif score := _score_of(evidence, cell):
        seeds = len(evidence.scores.get(cell, {}))
        if seeds < 2 or (cell == PLAIN and evidence.open_scores):  # nothing is shown of it
            score, state = f"{score}; open: {counted(seeds, 'seed')}", OPEN
        else:
            state = "good"
        said.append(Chip(evidence.group.score, score, state))
    if cell != PLAIN and {cell, PLAIN} <= (memory := _memory(evidence)).keys():
        share = round(100 * (memory[cell] / memory[PLAIN] - 1))
        text = f"{abs(share)} % {'less' if share < 0 else 'more'}" if share else "the same"
        said.append(Chip("memory", text, "good" if share <= 0 else "open"))
    return said[:MAX_CHIPS]  # the table has the others


def _least_memory(found: Recommendation) -> list[Chip]:
    """Which takes the least memory of those that may be the fastest and look the same so far."""
    evidence, cell = found.facts, found.named
    assert cell is not None
    memory, same = _memory(evidence), 1 + evidence.settings.same
    speeds = {other: evidence.speedup(other, cell) for other in found.may_be if other in memory}
    near = [other for other, speed in speeds.items() if speed and speed.value * same >= 1]
    if len(near) < 2:
        return []
    least = min(near, key=lambda other: memory[other])
    return [Chip("as fast so far, with the least memory", evidence.label(least), "open")]


def _memory(evidence: Evidence) -> dict[Cell, float]:
    """The peak memory of the configurations, the mean over their runs."""
    found = BYTES.values(evidence.group)
    return {cell: fmean(known.values()) for cell, known in found.items()}


def chips_of_scores(evidence: Evidence) -> list[Chip]:
    """Return what a study of scores alone allows for, and that it tells no times."""
    return [
        Chip("kept means", _kept(evidence), "even"),
        Chip("times", "not interleaved: no verdict", "open"),
    ]


def reasons(found: Recommendation) -> list[str]:
    """Return what the lead rests on."""
    evidence, cell = found.facts, found.named
    if cell is None:
        return [_why_nothing(found)]
    seconds = estimate(evidence.seconds[cell])
    said = [
        f"{evidence.label(cell)} takes {three_digits(seconds.mean or 0.0)} s per epoch "
        f"({_uncertainty(seconds, evidence.unit)})."
    ]
    speed = evidence.speedup(cell)
    if cell != PLAIN and speed is not None:
        said.append(f"It is {_interval(found)}.")
    if found.decided and cell != PLAIN and evidence.scored:
        said.append(_why_safe(evidence, cell))
    if not found.decided:
        said += _open_to(found)
    said += _behind(found)
    said += _exclusions(evidence)
    if found.decided and found.chance is not None:
        said.append(_sure(found))
    if len(found.rivals) > 1:
        said.append(_acceptable(evidence))
    return said


def _open_to(found: Recommendation) -> list[str]:
    """Which configurations may be the fastest, and what is open of them."""
    evidence, score = found.facts, found.facts.group.score
    names = [
        f"{evidence.label(cell)}{f' (its {score} is open)' if cell in found.unscored else ''}"
        for cell in found.may_be
    ]
    said = [f"Still possible: {'; '.join(names)}."]
    for cell in found.unscored:
        said.append(
            f"Whether {evidence.label(cell)} keeps {with_article(score)} (shown to be "
            f"{_kept(evidence)}) is open: more seeds may decide it."
        )
        speed = evidence.speedup(cell, found.named) if found.named else None
        if speed and speed.high is not None and speed.high < 1:
            said[-1] += (
                f" It looks slower ({_with_interval(speed)} times as fast): if more rounds "
                "show that, its score does not matter."
            )
    return said


def _behind(found: Recommendation) -> list[str]:
    """Return how each other configuration that is not left out compares with the named one."""
    evidence, cell = found.facts, found.named
    assert cell is not None
    others = {
        other: speed
        for other in found.rivals
        if other != cell and evidence.excluded(other) is None
        if (speed := evidence.speedup(other, cell)) is not None
    }
    lost = [other for other in others if evidence.safe[other] == "worse"]
    verdicts = {other: speed.verdict for other, speed in others.items()}
    slower = [other for other in others if verdicts[other] == "slower" or other in found.out]
    said = []
    if slower:
        shown = [f"{evidence.label(other)} {others[other].value:.2f}" for other in slower]
        said.append(f"Shown to be slower (its speed is 1): {'; '.join(shown)}.")
        if by_best := [other for other in slower if verdicts[other] != "slower"]:
            said.append(
                f"Of these, the test for the fastest alone shows {evidence.labels(by_best)}: it "
                "asks in one direction, among the acceptable ones, and can decide where the "
                "interval of a pair still reaches 1."
            )
    if tied := [other for other in others if verdicts[other] == "tie" and other not in lost]:
        said.append(f"As fast: {evidence.labels(tied)}.")
    for other in (other for other in others if verdicts[other] == "faster"):
        why = "worse" if other in lost else "not shown to be kept"
        said.append(
            f"{evidence.label(other)} is faster, but its {evidence.group.score} is {why}"
            f"{_loss(evidence, other) if why == 'worse' else ''}."
        )
    if out := [o for o in lost if o not in slower and verdicts[o] != "faster"]:
        said.append(f"Eliminated, as {evidence.group.score} is lost: {evidence.labels(out)}.")
    unclear = [o for o in others if verdicts[o] in UNDECIDED and o not in (*slower, *lost)]
    unclear = [other for other in unclear if other != PLAIN or evidence.speedup(cell) is None]
    if unclear:
        shown = [f"{evidence.label(other)} {_with_interval(others[other])}" for other in unclear]
        more = len(shown) - MAX_NAMED
        rest = f", and {counted(more, 'further one')}" if more > 0 else ""
        said.append(f"Open (its speed is 1): {'; '.join(shown[:MAX_NAMED])}{rest}.")
    return said


def _acceptable(evidence: Evidence) -> str:
    """Return what counts as acceptable."""
    known = f"{', ' if evidence.scored else ' and '}that computes the same"
    if evidence.scored:
        known += f", and whose {evidence.group.score} is shown to be {_kept(evidence)}"
    return f"Acceptable is a configuration whose runs all ended well{known}."


def _sure(found: Recommendation) -> str:
    """Return what the confidence is of."""
    evidence, cell = found.facts, found.named
    assert cell is not None
    text = (
        f"The confidence is that no acceptable configuration is more than {_same(evidence)} "
        "faster: on this machine, with this model, batch size and version of torch. It says "
        "nothing about longer training or other hardware."
    )
    speeds = {
        other: speed.value
        for other in found.rivals
        if other != cell and (speed := evidence.speedup(other, cell)) is not None
    }
    if evidence.comparison.floor and speeds:
        closest = max(speeds, key=lambda other: speeds[other])
        text += (
            f" The closest, {evidence.label(closest)}, is {speeds[closest]:.2f} times as fast; "
            f"the check is off by {floor_text(evidence)}."
        )
    return text


def reasons_of_scores(evidence: Evidence) -> list[str]:
    """Return how the score of each configuration compares with the baseline's."""
    words = {"safe": "kept", "worse": "lost"}
    said = [
        f"{evidence.label(cell)}: {_score_of(evidence, cell) or 'not known'} "
        f"({words.get(verdict, verdict)})."
        for cell in _scored(evidence)
        for verdict in [_verdict(evidence, cell)]
    ]
    return said + _exclusions(evidence)


def control_text(evidence: Evidence) -> str:
    """Return what the A/A control says of the measurement of time; empty where there is none."""
    control = evidence.comparison.control if evidence.asks_time else None
    if control is None:
        return ""
    doubles = listed_and(list(dict.fromkeys(second.parallel for _, second in control.pairs)))
    why = "too few rounds" if control.low is None else f"interval beyond {_same(evidence)}"
    why = "" if control.state in (PASSED, FAILED) else f" ({why})"
    text = f"A/A test {control.state}{why}: {doubles} does the work of none here and is "
    return text + times_as_fast(control.speedup, control.low, control.high)


def check(evidence: Evidence) -> str:
    """Return what the A/A control says, and what follows."""
    if not evidence.asks_time:
        return ""
    control, text = evidence.comparison.control, control_text(evidence)
    if control is None:
        return (
            "No two configurations do the same work here, so nothing checks the measurement itself."
        )
    if control.resolution is None:
        return f"{text}."
    same = _same(evidence)
    follows = {
        PASSED: f", within {same}.",
        FAILED: f", not within {same}: something besides the configurations changes the times.",
    }.get(control.state, ".")
    if not evidence.comparison.floor:
        return text + follows
    below = f"no difference of time below {floor_text(evidence)}"
    return f"{text}{follows} By this test {below} counts as faster or slower."


def floor_text(evidence: Evidence) -> str:
    """Return the noise floor in percent."""
    return f"{100 * evidence.comparison.floor:.1f} %"


def _kept(evidence: Evidence) -> str:
    """Return what a score is shown to be that is kept: how far from the baseline's at most."""
    scoring, margin = evidence.group.scoring, evidence.settings.margin
    return within_margin(margin, scoring.mark, scoring.better, evidence.label(PLAIN))


def _same(evidence: Evidence) -> str:
    """The share of time that counts as equal, in percent."""
    return f"{100 * evidence.settings.same:g} %"


def _base(cell: Cell) -> str:
    """Return what the baseline is called beside a configuration."""
    return PLAIN.amp if cell.strategy == PLAIN.parallel else BASELINE


def _scored(evidence: Evidence) -> list[Cell]:
    """The configurations but the baseline that do work of their own."""
    return [cell for cell in evidence.cells if cell != PLAIN and cell not in evidence.no_op_of]


def _verdict(evidence: Evidence, cell: Cell) -> str:
    """The verdict on its score; LEFT_OUT where that is open and no more seeds are for it."""
    verdict = evidence.safe[cell]
    return LEFT_OUT if verdict == OPEN and cell not in evidence.open_scores else verdict


def _exclusions(evidence: Evidence) -> list[str]:
    """Why configurations are left out, but for those that do another one's work: see `check`."""
    why = {cell: evidence.excluded(cell) for cell in evidence.cells}
    said = []
    for cell, reason in why.items():
        name = evidence.label(cell)
        if reason == FAILED_RUN:
            said.append(f"{name} is left out: a run of it ended as {evidence.failed[cell]}.")
        elif reason == OTHER_NUMERICS:
            text = f"{name} is left out: its first steps do not compute the same."
            said.append(f"{text} {evidence.other_numerics()[cell]}".strip())
    for kind, text in _NEVER_NAMED.items():
        if cells := [cell for cell, reason in why.items() if reason == kind]:
            said.append(f"{text}: {evidence.labels(cells)}.")
    return said


def _why_nothing(found: Recommendation) -> str:
    evidence = found.facts
    if lead_of(found).kind is Kind.NO_RUN:
        return "Fix what failed and run it again."
    if PLAIN not in evidence.scores:
        return (
            f"The {evidence.group.score} of the others is compared with that of "
            f"{evidence.label(PLAIN)}: run it with parallel={PLAIN.parallel} amp={PLAIN.amp}."
        )
    return "More seeds may show it."


def _interval(found: Recommendation) -> str:
    """How many times as fast as the baseline the named configuration is, with its interval."""
    evidence, cell = found.facts, found.named
    speed = evidence.speedup(cell) if cell else None
    assert speed is not None
    text = f"{speed.value:.2f} times as fast as {evidence.label(PLAIN)}"
    if not speed.interval:
        return f"{text} (interval not known yet)"
    shown = speed.verdict in ("faster", "slower", "tie") or PLAIN in found.out
    ends = f"{evidence.settings.confidence:.3g} % interval {speed.interval}"
    return f"{text} ({ends}){'' if shown else ': not shown to differ'}"


def _with_interval(speed: Compared) -> str:
    return f"{speed.value:.2f}{speed.interval and f' ({speed.interval})'}"


def _uncertainty(found: Estimate, unit: str) -> str:
    of = counted(found.n, unit)
    if found.low is None or found.high is None or not found.mean:
        return of
    share = 0.5 * (found.high - found.low) / found.mean
    if share > NOISY:
        return f"{of}, too noisy to say how exactly"
    shown = f"±{100 * share:.1f} %" if share >= 0.001 else "less than ±0.1 %"
    return f"{of}, 95 % interval {shown}"


def _score_of(evidence: Evidence, cell: Cell) -> str | None:
    """A configuration's score beside the baseline's, None where it is not known."""
    unit, sign = evidence.group.scoring.mark, evidence.group.scoring.sign
    if cell == PLAIN:
        mean = estimate(evidence.scores.get(PLAIN, {})).mean
        return None if mean is None else with_unit(score_text(mean, unit), unit)
    safety = evidence.safety(cell)
    if safety is None or safety.difference is None:
        return None
    text = difference_with_unit(safety.difference, unit)
    if safety.low is None or evidence.safe[cell] != "safe" or safety.difference == safety.low == 0:
        return text
    bound = sign * safety.low
    if bound >= 0:
        return f"{text}; no loss"
    limit = difference(-bound, unit).lstrip("+")
    return f"{text}; a loss above {limit} is ruled out"


def _why_safe(evidence: Evidence, cell: Cell) -> str:
    scoring = evidence.group.scoring
    allowed = with_unit(f"{evidence.settings.margin:g}", unit_of_difference(scoring.mark))
    score = capitalized(evidence.group.score)
    seeds = (safety := evidence.safety(cell)) and counted(safety.n, "seed")
    return f"{score}: {_score_of(evidence, cell)} ({seeds}; up to {allowed} would be allowed)."


def _loss(evidence: Evidence, cell: Cell) -> str:
    safety = evidence.safety(cell)
    if safety is None or safety.difference is None:
        return ""
    unit = evidence.group.scoring.mark
    return f": {difference_with_unit(safety.difference, unit)}"


def trains(evidence: Evidence) -> list[str]:
    """Return what the printed command trains."""
    epochs, said = evidence.group.epochs, evidence.group.runs[0].settings
    if epochs is None:
        return []
    text = f"It trains for {epochs:g} {plural(epochs, 'epoch')}, as the study did"
    if limit := next((text for text in said if text.startswith("dataset.limit=")), None):
        return [f"{text}, with {limit}: change epochs and dataset.limit for a real run."]
    return [f"{text}: add epochs=N for a longer run."]
