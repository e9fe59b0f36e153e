"""The results of a study: one row for each configuration, the fastest first."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ninefold.answer.answer import AnswerTable, Compared
from ninefold.answer.cell import BASELINE, PLAIN
from ninefold.answer.fields import Field, Word, word
from ninefold.answer.measures import BYTES, SCORE_KEY, SECONDS, THROUGHPUT
from ninefold.answer.study_facts import NEEDLESS, OTHER_NUMERICS
from ninefold.numbers import (
    capitalized,
    counted,
    decimals_of,
    decimals_of_score,
    difference,
    number,
    within_margin,
)
from ninefold.report.render.tables import NONE, Table, filled, table_of
from ninefold.report.tree import CellReport, Group
from ninefold.stats.verdicts import OPEN

_REASONS = {OTHER_NUMERICS: "other numerics", NEEDLESS: "scaler not needed"}
_AGAINST = {  # how the time compares with the recommended one's
    "named": Word("use this", "good"),
    "slower": Word("slower", ""),
    "tie": Word("as fast", "even"),
    "faster": Word("faster", ""),
    OPEN: Word("open", "open"),
}
Show = Callable[[CellReport], Field]


def ordered(group: Group) -> list[CellReport]:
    """Return the configurations as they are shown: the best first, then those left out.

    Best are the fastest, or where times were not asked for those with the best score.
    """
    sign = -1 if group.better == "more" else 1

    def key(cell: CellReport) -> tuple[bool, float]:
        if scores_alone(group):
            score = cell.mean(SCORE_KEY)
            return reason(cell) != "", math.inf if score is None else sign * score
        return reason(cell) != "", -cell.speedup.value if cell.speedup else math.inf

    return sorted(group.shown, key=key)


def scores_alone(group: Group) -> bool:
    """Whether a study asked for scores and not for times, as one of processes always does."""
    return not group.asks_time and group.scored and group.scaling is None


def reason(cell: CellReport) -> str:
    """Return in a word or two why a configuration is out whatever its time is; else nothing."""
    return cell.status or _REASONS.get(cell.excluded or "", "")


def style(cell: CellReport) -> str:
    """Return how a row of a configuration is set apart."""
    return "named" if cell.against == "named" else "out" * bool(reason(cell))


def verdict_of(cell: CellReport) -> Word | None:
    """Return how the time of a configuration compares with the recommended one's."""
    return None if reason(cell) or not cell.against else _AGAINST[cell.against]


def difference_of(cell: CellReport, group: Group) -> Compared | None:
    """Return the difference of a configuration's score to the baseline's.

    Its interval ends at the bound of the test of its score on the side of a loss.
    """
    if cell.cell == PLAIN and cell.mean(SCORE_KEY) is not None:
        return Compared(0.0, None, None, "baseline")
    test = next((each for each in group.comparison.safety if each.cell == cell.cell), None)
    if test is None or test.difference is None:
        return None
    pairs = {(pair.first, pair.second): pair for pair in group.comparison.score}
    pair = pairs.get((PLAIN, cell.cell))
    low, high = (pair.low, pair.high) if pair else (None, None)
    if test.low is not None:
        low, high = (test.low, high) if group.better == "more" else (low, test.low)
    return Compared(test.difference, low, high, str(test.verdict))


def results(group: Group) -> Table:
    """Return the table of results: times, scores, memory, and what else there is."""
    units = {info.key: info.unit for info in group.measures}
    known = [found.half for cell in group.shown if (found := cell.measures.get(SECONDS.key))]
    columns: dict[str, Show] = {
        f"s/epoch{', ± 95 %' * any(known)}": figures_of(group, SECONDS.key, spread=True),
        f"speedup, {group.settings.confidence:.3g} % interval": _speed,
        "vs best": lambda cell: Field("", word=verdict_of(cell)),
        ", ".join(filter(None, (group.score, group.unit))): scores_of(group),
        "memory, MiB": figures_of(group, BYTES.key, 2.0**-20),
        units.get(THROUGHPUT.key) or "images/s": figures_of(group, THROUGHPUT.key),
    }
    if scores_alone(group):  # they come first
        time, _, _, score, *others = columns.items()
        columns = dict([score, time, *others])
    cells = ordered(group)
    rows = [
        [Field(cell.label, reason(cell)), *(show(cell) for show in columns.values())]
        for cell in cells
    ]
    table = table_of("Results", ["configuration"], list(columns), rows)
    return filled(replace(table, styles=[style(cell) for cell in cells]))


def table_of_answer(found: AnswerTable) -> Table:
    """Return the table of an answer to another question."""
    first, *others = found.columns
    table = table_of(found.title, [first], others, found.rows)
    styles = ["named" if row[0] == found.best else "" for row in found.rows]
    return filled(replace(table, styles=styles))


def figures_of(group: Group, key: str, factor: float = 1.0, spread: bool = False) -> Show:
    """Return how a measure is shown. spread: with half of its 95 % interval."""
    units = {info.key: info.unit for info in group.measures}
    means = [mean * factor for cell in group.shown if (mean := cell.mean(key)) is not None]
    decimals = 0 if units.get(key) == "bytes" else decimals_of("", means)

    def show(cell: CellReport) -> Field:
        found = cell.measures.get(key)
        if found is None or found.mean is None:
            return NONE
        half = found.half if spread else None
        more = "" if half is None else f"± {number(half * factor, decimals)}"
        more = "too noisy" if half and half > found.mean else more
        return Field(number(found.mean * factor, decimals), more)

    return show


def rounds_of(group: Group) -> str:
    """Return from how many rounds times are: `12 rounds`; `2 to 4 rounds` where some had fewer."""
    most = group.timing_rounds or 0
    found = [each.n for cell in group.shown if (each := cell.measures.get(SECONDS.key))]
    least = min(found, default=most)
    return f"{least} to {counted(most, 'round')}" if least < most else counted(most, "round")


def _speed(cell: CellReport) -> Field:
    found = cell.speedup
    return NONE if found is None else Field(number(found.value, 2), found.interval)


def scores_of(group: Group) -> Show:
    """Return how the score is shown, with its difference to the baseline's."""
    figures = [found for cell in group.shown if (found := cell.measures.get(SCORE_KEY))]
    decimals = decimals_of_score(
        group.unit, [found.mean for found in figures], [found.sd for found in figures]
    )
    bounds = {test.cell: test.low for test in group.comparison.safety}

    def show(cell: CellReport) -> Field:
        mean, found = cell.mean(SCORE_KEY), difference_of(cell, group)
        if mean is None:
            return NONE
        text, bound = number(mean, decimals), bounds.get(cell.cell)
        if found is None or cell.cell == PLAIN:
            return Field(text, word=word(found.verdict) if found and scores_alone(group) else None)
        more = difference(found.value, group.unit)
        if bound not in (None, found.value):
            more = f"{more}, at worst {difference(bound, group.unit)}"
        return Field(text, more, word(found.verdict))

    return show


def about(group: Group) -> str:
    """Return what the fields of the table of results are, in two sentences."""
    settings, said = group.settings, []
    if any(cell.speedup for cell in group.shown):
        named = any(cell.against == "named" for cell in group.cells)
        verdict = "against the recommended one" if named else "against those that may be the best"
        said.append(f"speedup is over {BASELINE}, the verdict {verdict}")
    if group.timing_rounds:
        said.append(f"times are of {rounds_of(group)} in turns")
    text = f"{capitalized('; '.join(said))}." if said else ""
    words = {test.verdict for test in group.comparison.safety}
    if "safe" in words:
        margin = within_margin(settings.margin, group.unit, group.better, BASELINE)
        text += f" Kept: the {group.score} is shown to be {margin}."
    return text.strip()
