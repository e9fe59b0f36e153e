"""The results of a study: one row for each configuration, the fastest first."""

from __future__ import annotations

import math
from collections.abc import Callable

from ninefold.report.answer.recommend import NEEDLESS, OTHER_NUMERICS
from ninefold.report.answer.tree import CellReport, Figures, Group, Report
from ninefold.report.data.cell import BASELINE, PLAIN
from ninefold.report.numbers import (
    between,
    capitalized,
    decimals_of,
    decimals_of_score,
    difference,
    number,
)
from ninefold.report.render.tables import NONE, Column, Field, Table, Word, filled, word
from ninefold.report.stats.measures import BYTES, ENERGY, SCORE_KEY, SECONDS, THROUGHPUT
from ninefold.stats.verdicts import Pair, Safety

_REASONS = {OTHER_NUMERICS: "other numerics", NEEDLESS: "scaler not needed"}
BEHIND = "behind"
_BASELINE = Word("baseline", "")
Show = Callable[[CellReport], Field]


def ordered(group: Group) -> list[CellReport]:
    """Return the configurations as they are shown: the best first, then those left out.

    Best are the fastest, or where times were not asked for those with the best score.
    """
    sign = -1 if group.better == "more" else 1

    def key(cell: CellReport) -> tuple[bool, float]:
        if scores_alone(group):
            score = _mean(cell, SCORE_KEY)
            return reason(cell) != "", math.inf if score is None else sign * score
        return reason(cell) != "", -cell.speed.times if cell.speed else math.inf

    return sorted(group.shown, key=key)


def scores_alone(group: Group) -> bool:
    """Whether a study asked for scores and not for times."""
    return not group.asks_time and group.scored


def reason(cell: CellReport) -> str:
    """Return in a word or two why a configuration is out whatever its time is; else nothing."""
    return cell.status or _REASONS.get(cell.excluded or "", "")


def style(cell: CellReport) -> str:
    """Return how a row of a configuration is set apart."""
    return "named" if cell.standing == "named" else "out" * bool(reason(cell))


def margin_of(group: Group, report: Report) -> float:
    """Return what a configuration may lose of the score."""
    return (report.settings.margin if group.own_margin is None else group.own_margin) or 0.0


def results(group: Group) -> Table:
    """Return the table of results: times, scores, memory, and what else there is."""
    cells = ordered(group)
    name = ", ".join(filter(None, (group.score, group.unit)))
    time: list[tuple[Column, Show]] = [
        (Column("s/epoch"), _of(group, SECONDS.key, spread=True)),
        (Column("times as fast"), _speed),
    ]
    score: list[tuple[Column, Show]] = [(Column(name), _score(group))]
    columns: list[tuple[Column, Show]] = [
        (Column("configuration", number=False), _name),
        *([*score, *time[:1]] if scores_alone(group) else [*time, *score]),
        (Column("memory, MiB"), _of(group, BYTES.key, 2.0**-20)),
        *_further_columns(group),
    ]
    rows = [[show(cell) for _, show in columns] for cell in cells]
    styles = [style(cell) for cell in cells]
    return filled(Table("Results", [column for column, _ in columns], rows, styles))


def _further_columns(group: Group) -> list[tuple[Column, Show]]:
    """The columns that only some studies fill."""
    units = {info.key: info.unit for info in group.measures}
    found: list[tuple[Column, Show]] = [
        (Column(units.get(THROUGHPUT.key) or "images/s"), _of(group, THROUGHPUT.key)),
        (Column("waits for data"), _waits),
    ]
    if any(cell.speedup and cell.speedup.ideal > 1 for cell in group.shown):
        found.append((Column("of ideal"), _of_ideal))
    found.append((Column("largest batch"), _of(group, "max_batch")))
    found.append((Column("J/epoch"), _of(group, ENERGY.key)))
    return found


def _name(cell: CellReport) -> Field:
    return Field(cell.label or str(cell.cell), reason(cell))


def _of(group: Group, key: str, factor: float = 1.0, spread: bool = False) -> Show:
    """How a measure is shown. spread: with half of its 95 % interval."""
    units = {info.key: info.unit for info in group.measures}
    means = [mean * factor for cell in group.shown if (mean := _mean(cell, key)) is not None]
    decimals = 0 if units.get(key) in ("bytes", "images") else decimals_of("", means)

    def show(cell: CellReport) -> Field:
        found = cell.measures.get(key)
        if found is None or found.mean is None:
            return NONE
        half = half_of(found) if spread else None
        more = "" if half is None else f"± {number(half * factor, decimals)}"
        return Field(
            number(found.mean * factor, decimals),
            "too noisy" if half and half > found.mean else more,
        )

    return show


def half_of(found: Figures) -> float | None:
    """Return half of the 95 % interval of a mean; None where it is not known."""
    return None if found.high is None or found.mean is None else found.high - found.mean


def _speed(cell: CellReport) -> Field:
    if cell.speed is None:
        return NONE
    if cell.cell == PLAIN:
        return Field("1.00", word=_BASELINE)
    ends = between(cell.speed.low, cell.speed.high, two_decimals, "")
    shown = None if reason(cell) else word(verdict_of(cell))  # it is out, however fast it is
    return Field(two_decimals(cell.speed.times), ends, shown)


def verdict_of(cell: CellReport) -> str:
    """Return how the speed of a configuration is called; `behind` where it cannot be the answer.

    That may be shown where the interval of its pair with the baseline still says nothing.
    """
    assert cell.speed is not None
    behind = cell.standing == BEHIND and word(cell.speed.verdict).state == "open"
    return BEHIND if behind else cell.speed.verdict


def two_decimals(value: float) -> str:
    """Return how many times as fast, as it is shown everywhere."""
    return number(value, 2)


def _score(group: Group) -> Show:
    figures = [found for cell in group.shown if (found := cell.measures.get(SCORE_KEY))]
    decimals = decimals_of_score(
        group.unit, [found.mean for found in figures], [found.sd for found in figures]
    )

    def show(cell: CellReport) -> Field:
        found, test = cell.measures.get(SCORE_KEY), safety_of(group, cell)
        if found is None or found.mean is None:
            return NONE
        text = number(found.mean, decimals)
        if cell.cell == PLAIN and scores_alone(group):
            return Field(text, word=_BASELINE)
        if test is None or test.difference is None:
            return Field(text)
        return Field(text, difference(test.difference, group.unit), word(test.verdict))

    return show


def _waits(cell: CellReport) -> Field:
    if not cell.data_bound or cell.phases is None:
        return NONE
    return Field(f"{cell.phases['data'] + cell.phases['transfer']:.0f} %")


def _of_ideal(cell: CellReport) -> Field:
    speedup = cell.speedup
    if speedup is None or speedup.ideal < 2:
        return NONE
    return Field(f"{100 * speedup.value / speedup.ideal:.0f} %", f"of {speedup.ideal}")


def safety_of(group: Group, cell: CellReport) -> Safety | None:
    """Return the test of a configuration's score against the baseline's."""
    return next((each for each in group.safety if each.cell == cell.cell), None)


def score_pair(group: Group, cell: CellReport) -> Pair | None:
    """Return the comparison of a configuration's score with the baseline's."""
    known = {(pair.first, pair.second): pair for pair in group.pairs.accuracy}
    return known.get((PLAIN, cell.cell))


def _mean(cell: CellReport, key: str) -> float | None:
    found = cell.measures.get(key)
    return None if found is None else found.mean


def about(table: Table, group: Group, report: Report) -> str:
    """Return what the fields of the table of results are."""
    said = ["± is half of the 95 % interval of the mean."]
    if repeats := [cell.label or str(cell.cell) for cell in group.cells if cell not in group.shown]:
        said.append(f"Without a row, as they do here what another one does: {'; '.join(repeats)}.")
    if group.timing_rounds:
        said.append(
            f"Times are of {group.timing_rounds} timing rounds, in which the configurations take "
            "turns."
        )
    if any(column.title == "times as fast" for column in table.columns):
        said.append(
            f"“times as fast” is against {BASELINE}, with the "
            f"{report.settings.confidence or 95:.3g} % interval."
        )
        if any(map(reason, group.shown)):
            said.append("A configuration that is struck out cannot be the answer, however fast.")
    words = {field.word.text for row in table.rows for field in row if field.word}
    meanings = {
        "kept": f"kept: shown to lose less of the {group.score} than the margin",
        "open": "open: not shown at the level that all pairs together need",
        BEHIND: "behind: shown to be slower than the fastest acceptable one",
        "in the noise": "in the noise: the difference is smaller than this study can tell",
    }
    told = [meaning for name, meaning in meanings.items() if name in words]
    return " ".join([*said, capitalized(f"{'; '.join(told)}.") if told else ""]).strip()
