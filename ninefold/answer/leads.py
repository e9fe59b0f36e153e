"""The first sentence of a study's answer, in at most 14 words: which one is said, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from ninefold.answer.cell import BASELINE, PLAIN, Cell
from ninefold.answer.decision import Decision
from ninefold.answer.study_facts import FAILED_RUN, OTHER_LOSS, StudyFacts
from ninefold.numbers import capitalized, number, with_article
from ninefold.stats.verdicts import OPEN

FEW_LEFT = 3  # configurations at most, of which it is told what all of them share
LEFT_OUT = "left out"  # of a score
FIX = "Fix what failed and run it again."


def lead(found: Decision[StudyFacts]) -> str:
    """Return which configuration is the fastest, or what is open; with the load it holds under."""
    named = found.named if found.decided else None
    said = _open(found) if named is None else _decided(found, named)
    under_load = found.facts.turns.swamped and said.startswith("Use ")
    return f"Under load: {said}" if under_load else said


def _decided(found: Decision[StudyFacts], cell: Cell) -> str:
    """The answer where this configuration is shown to be the one."""
    facts, use, same = found.facts, _use(found.facts, cell), same_share(found.facts)
    if found.chance is None:
        return _only(found, cell)
    speed = facts.speedup(cell)
    if speed and speed.verdict == "faster":
        base = PLAIN.amp if cell.strategy == PLAIN.strategy else BASELINE
        return f"Use {use}: {number(speed.value, 2)} times as fast as {base}."
    others = [other for other in found.candidates if other != cell]
    if speed is None and all(facts.verdict(cell, other) == "slower" for other in others):
        return f"Use {use}: all others are slower."
    if cell == PLAIN:
        return f"Use {use}: nothing acceptable is more than {same} faster."
    return f"Use {use}: at most {same} slower than the fastest."


def _only(found: Decision[StudyFacts], cell: Cell) -> str:
    """The answer where nothing else is acceptable."""
    facts, use = found.facts, _use(found.facts, cell)
    others = [other for other in found.rivals if other != cell]
    if others:
        slower = all(facts.verdict(cell, other) == "slower" for other in others)
        acceptable = f"nothing acceptable is more than {same_share(facts)} faster"
        why = "all others are slower" if slower else acceptable
        return f"Use {use}: {why}."
    rest = {*facts.cells, *facts.copies} - {cell}
    if rest and rest <= facts.copies.keys():
        return f"Use {use}: all others only repeat its work."
    return _alone(facts, cell)


def _alone(facts: StudyFacts, cell: Cell) -> str:
    name = facts.label(cell)
    return f"No other configuration was measured under the same conditions as {name}."


def _open(found: Decision[StudyFacts]) -> str:
    """What keeps it from being decided."""
    facts, left = found.facts, found.may_be
    if found.named is None:
        return nothing_named(facts)[0]
    if found.unscored:
        score, names = with_article(facts.group.score), facts.labels(found.unscored)
        if len(found.unscored) == 1:
            return f"Not decided: whether {names} keeps {score} is open."
        return f"Not decided: {score} of {len(found.unscored)} configurations is still open."
    if facts.few:
        so_far = facts.label(found.named)
        of_all = {*found.rivals} <= {*found.candidates}
        fastest = "the fastest" if of_all else "the fastest acceptable one"
        return f"Too few {facts.unit}s to tell: {so_far} is {fastest} so far."
    if 1 < len(left) <= FEW_LEFT:  # then what all of them share, and not all acceptable ones
        parts = facts.precision, _strategy
        for shared, other in (parts, parts[::-1]):
            if len(_each(shared, left)) == 1 < len(_each(shared, found.candidates)):
                open_ = " or ".join(_each(other, left))
                return f"Use {shared(left[0])}. Not decided: {open_}."
    if len(left) == 2:
        return f"Not decided: {' or '.join(map(facts.label, left))} may be the fastest."
    of = f"{len(left)} of {len(found.candidates)} configurations"
    return f"Not decided: {of} may be the fastest."


def nothing_named(facts: StudyFacts) -> tuple[str, str]:
    """Return a sentence on why no configuration may be named, and one on what to do about it.

    The second is empty where the reasons for which each is left out say that.
    """
    run = f"run it with parallel={PLAIN.parallel} amp={PLAIN.amp}."
    statuses = list(dict.fromkeys(facts.failed.values()))
    if facts.unfinished or facts.stopped:
        return "No answer yet: the study is not finished.", "Resume it."
    if not facts.seconds:
        return "No answer yet: no run ended well.", FIX
    if {*facts.seconds} <= {*facts.unscaled()} and PLAIN not in facts.cells:
        said = "No answer: float16 without a GradScaler is judged beside fp32; add fp32."
        return said, capitalized(run)
    if {*facts.cells} <= facts.failed.keys():
        whose = "each configuration" if len(facts.cells) > 1 else facts.label(facts.cells[0])
        ended = " or ".join(statuses[:2])
        return f"No answer: {whose} has a run that ended as {ended}.", FIX
    if len(facts.cells) == 1:
        return _alone(facts, facts.cells[0]), "Values of a key are compared: parallel=none,ddp."
    if PLAIN not in (facts.scores if facts.scored else facts.seconds):
        what = f"The {facts.group.score if facts.scored else 'time'} of the others"
        return _no_baseline(facts), f"{what} is compared with that of {facts.label(PLAIN)}: {run}"
    if facts.scored:
        score = with_article(facts.group.score)
        return f"No answer: no configuration is shown to keep {score}.", "More seeds may show it."
    return "No answer: no configuration is acceptable.", ""


def _no_baseline(facts: StudyFacts) -> str:
    lacks = "has no run that ended well" if PLAIN in facts.cells else "was not run"
    return f"No answer yet: {BASELINE} {lacks}."


def _each(part: Callable[[Cell], str], cells: Iterable[Cell]) -> list[str]:
    """The parts of cells, each once."""
    return list(dict.fromkeys(map(part, cells)))


def _use(facts: StudyFacts, cell: Cell) -> str:
    """What a configuration to use is called: that of one process is no strategy."""
    if cell.strategy == PLAIN.strategy:
        return f"{_strategy(cell)} in {facts.precision(cell)}"
    return facts.label(cell)


def _strategy(cell: Cell) -> str:
    return "one process" if cell.strategy == PLAIN.strategy else cell.strategy


def same_share(facts: StudyFacts) -> str:
    """Return the share of time that counts as equal, in percent."""
    return f"{100 * facts.settings.same:g} %"


def lead_of_scores(facts: StudyFacts) -> str:
    """Return the answer of a study that asked for scores alone."""
    others, score = compared_by_score(facts), with_article(facts.group.score)
    if PLAIN not in facts.scores:
        return _no_baseline(facts)
    verdicts = [verdict_of_score(facts, cell) for cell in others]
    if {*verdicts} <= {LEFT_OUT}:
        return f"No answer yet: nothing to compare {score} with."
    if len(others) == 1:
        name = facts.label(others[0])
        kept = {"safe": f"{name} keeps {score}.", "worse": f"{name} loses {score}."}
        return capitalized(kept.get(verdicts[0], f"Whether {name} keeps {score} is still open."))
    counts = Counter(verdicts)
    if counts["safe"] == len(others):
        return f"All {len(others)} other configurations keep {score}."
    words = (("safe", "kept by"), ("worse", "lost by"), (OPEN, "still open for"))
    parts = [f"{said} {counts[verdict]}" for verdict, said in words if counts[verdict]]
    of = f"{len(others)} configurations"
    return f"{capitalized(facts.group.score)}: {', '.join(parts)} of {of}."


def compared_by_score(facts: StudyFacts) -> list[Cell]:
    """Return the configurations but the baseline that do work of their own."""
    return [cell for cell in facts.cells if cell != PLAIN and cell not in facts.no_op_of]


def verdict_of_score(facts: StudyFacts, cell: Cell) -> str:
    """Return the verdict on a score; LEFT_OUT of a configuration of which a run failed or whose
    score is of other batches, and where it is open and no more seeds are for it.
    """
    if facts.excluded(cell) in (FAILED_RUN, OTHER_LOSS):
        return LEFT_OUT
    verdict = facts.safe[cell]
    return LEFT_OUT if verdict == OPEN and cell not in facts.open_scores else verdict
