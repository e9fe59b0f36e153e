"""The verdicts as rows and as a matrix of cells, for the page and for report.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ninefold.report.answer.tree import Group
from ninefold.report.data.cell import PLAIN, Cell
from ninefold.report.numbers import (
    MISSING,
    NOT_KNOWN,
    between,
    capitalized,
    chance,
    counted,
    difference,
    in_words,
    plural,
    times,
    typeset,
    unit_of_difference,
)
from ninefold.report.render.strips import Strip, scale
from ninefold.report.stats.measures import SCORE_KEY
from ninefold.stats.verdicts import (
    OPEN,
    OTHER_HOSTS,
    WITHIN,
    Control,
    Pair,
    Safety,
    Steady,
)

# Glyph and word of a verdict, which do without color, and the class of its color.
_LOOKS = {
    "faster": ("▲", "faster", "good"),
    "slower": ("▼", "slower", "bad"),
    "better": ("▲", "better", "good"),
    "worse": ("▼", "worse", "bad"),
    "tie": ("=", "tie", "even"),
    "safe": ("✓", "safe", "good"),
    OPEN: ("?", "too few", "open"),
    WITHIN: ("~", "in the floor", "open"),
    OTHER_HOSTS: ("≠", "other hosts", "open"),
}
_OPPOSITE = {"faster": "slower", "slower": "faster", "better": "worse", "worse": "better"}
Show = Callable[[float | None], str]


@dataclass(frozen=True)
class Look:
    """How a verdict is shown."""

    glyph: str
    word: str
    kind: str
    value: str = ""


HELD, FAILED = Look("✓", "held", "good"), Look("✗", "did not hold", "bad")
UNKNOWN = Look("?", NOT_KNOWN, "open")


@dataclass(frozen=True)
class Row:
    """A verdict with the numbers that it rests on, as text."""

    name: Cell
    against: Cell | None
    look: Look
    verdict: str
    value: str
    interval: str
    adjusted: str
    n: int
    needed: str
    strip: Strip


@dataclass(frozen=True)
class Matrix:
    """All pairs of one measure: a matrix of `cells`, by (row, column), and a row for each pair."""

    key: str
    title: str
    about: str
    summary: str
    cells: list[Cell]
    matrix: dict[tuple[Cell, Cell], Look]
    rows: list[Row]


def pairs(group: Group) -> list[Matrix]:
    """Return the verdicts on time and on the score; none where there are no pairs."""
    found = []
    if group.pairs.seconds:
        found.append(_matrix(group, group.pairs.seconds, "seconds"))
    if group.pairs.accuracy:
        found.append(_matrix(group, group.pairs.accuracy, SCORE_KEY))
    return found


def _in_unit(unit: str) -> Show:
    """How differences of a score are shown."""
    return lambda value: typeset(difference(value, unit))


def _times(value: float | None) -> str:
    return typeset(times(value))


def _ratio(value: float | None) -> str:
    return typeset(times(value, 3))


def _matrix(group: Group, items: Sequence[Pair], key: str) -> Matrix:
    time = key == "seconds"
    points = _in_unit(unit := group.unit)
    show, even = (_times, 1.0) if time else (points, 0.0)
    place = scale([even, *(end for pair in items for end in (pair.low, pair.high, pair.estimate))])
    matrix = {}
    for pair in items:
        turned = None
        if pair.estimate is not None:
            turned = -pair.estimate if not time else 1 / pair.estimate if pair.estimate else 0.0
        opposite = _OPPOSITE.get(pair.verdict, pair.verdict)
        matrix[pair.second, pair.first] = look(pair.verdict, show(pair.estimate))
        matrix[pair.first, pair.second] = look(opposite, show(turned))
    named = {cell for pair in items for cell in (pair.first, pair.second)}
    return Matrix(
        key,
        "Time" if time else capitalized(group.score),
        "ratio of seconds per epoch" if time else in_words("difference", unit_of_difference(unit)),
        _summary(items, "timing rounds" if time and group.timing_rounds else "seeds"),
        [cell.cell for cell in group.cells if cell.cell in named],
        matrix,
        [_pair_row(pair, _ratio if time else points, place, even) for pair in items],
    )


def _summary(items: Sequence[Pair], unit: str) -> str:
    """How many pairs are decided; unit: what more of would decide the others."""
    counts = Counter(pair.verdict for pair in items)
    unsettled, ties = counts.pop(OPEN, 0), counts.pop("tie", 0)
    apart, within = counts.pop(OTHER_HOSTS, 0), counts.pop(WITHIN, 0)
    differ = sum(counts.values())
    text = f"Of {counted(items, 'pair')} {differ} {plural(differ, 'differs', 'differ')} and "
    text += f"{ties} {plural(ties, 'is a tie', 'are ties')}."
    if unsettled:
        needed = [pair.needed for pair in items if pair.needed]
        which = "them" if len(needed) == unsettled else f"{len(needed)} of them"
        more = f"; about {max(needed)} {unit} would settle {which}" if needed else ""
        text += f" For {unsettled} there are not enough runs{more}."
    if within:
        text += (
            f" {within} {plural(within, 'lies', 'lie')} within the floor of a control that did "
            "not hold: more runs would not settle them."
        )
    if apart:
        text += f" {apart} {plural(apart, 'has', 'have')} times of different hosts."
    return text


def _pair_row(pair: Pair, show: Show, place: Callable[[float | None], float], even: float) -> Row:
    return Row(
        name=pair.second,
        against=pair.first,
        look=look(pair.verdict),
        verdict=pair.verdict,
        value=show(pair.estimate),
        interval=MISSING if pair.n < 2 else between(pair.low, pair.high, show, NOT_KNOWN),
        adjusted=typeset(chance(pair.adjusted)),
        n=pair.n,
        needed=_needed(pair),
        strip=Strip(
            place(even if pair.estimate is None else pair.estimate),
            None if pair.low is None else place(pair.low),
            None if pair.high is None else place(pair.high),
            rule=place(even),
            about=f"{pair.second} compared with {pair.first}: {show(pair.estimate)}",
        ),
    )


def safety(group: Group, margin: float) -> list[Row]:
    """Return a row for each cell whose score was tested against the baseline's."""
    points, more = _in_unit(group.unit), group.better != "less"
    allowed = -margin if more else margin
    place = scale(
        [0.0, allowed, *(end for test in group.safety for end in (test.low, test.difference))]
    )
    return [
        Row(
            name=test.cell,
            against=PLAIN,
            look=look(test.verdict),
            verdict=test.verdict,
            value=points(test.difference),
            interval=MISSING
            if test.low is None
            else f"at {'least' if more else 'most'} {points(test.low)}",
            adjusted=typeset(chance(test.adjusted)),
            n=test.n,
            needed=_needed(test),
            strip=Strip(
                place(allowed if test.difference is None else test.difference),
                # The interval has no end on the side of a gain.
                None if test.low is None else place(test.low) if more else 0.0,
                None if test.low is None else 100.0 if more else place(test.low),
                rule=place(allowed),
                about=f"{test.cell} compared with {PLAIN}: {points(test.difference)}",
            ),
        )
        for test in group.safety
    ]


def _needed(test: Pair | Safety) -> str:
    return str(test.needed or (MISSING if test.verdict == OPEN else ""))


def controls(group: Group) -> list[Row]:
    """Return a row for each A/A control, on one scale around 1."""
    reach = max((control.floor or 0.0 for control in group.controls), default=0.0)
    ends = [end for each in group.controls for end in (each.ratio, each.low, each.high)]
    place = scale([1 - reach, 1.0, 1 + reach, *ends])
    band = (place(1 - reach), place(1 + reach)) if reach else None
    return [_control_row(control, place, band) for control in group.controls]


def _control_row(
    control: Control, place: Callable[[float | None], float], band: tuple[float, float] | None
) -> Row:
    held = _held(control)
    return Row(
        name=control.second,
        against=control.first,
        look=held,
        verdict=held.word,
        value=_ratio(control.ratio),
        interval=between(control.low, control.high, _ratio, NOT_KNOWN),
        adjusted="",
        n=0,
        needed=NOT_KNOWN if control.floor is None else f"{100 * control.floor:.1f} %",
        strip=_strip_around_1(
            control, place, band, f"{control.second} compared with {control.first}"
        ),
    )


def steady(group: Group) -> list[Row]:
    """Return a row for each steady-state control, on one scale around 1."""
    ends = [end for each in group.steady for end in (each.ratio, each.low, each.high)]
    place = scale([1.0, *ends])
    rows = []
    for each in group.steady:
        held = _held(each)
        rows.append(
            Row(
                name=each.cell,
                against=None,
                look=held,
                verdict=held.word,
                value=_ratio(each.ratio),
                interval=between(each.low, each.high, _ratio, NOT_KNOWN),
                adjusted="",
                n=each.n,
                needed="",
                strip=_strip_around_1(each, place, None, f"{each.cell} in turns and in a stretch"),
            )
        )
    return rows


def _held(control: Control | Steady) -> Look:
    if not control.held:
        return FAILED
    return UNKNOWN if control.low is None else HELD


def _strip_around_1(
    control: Control | Steady,
    place: Callable[[float | None], float],
    band: tuple[float, float] | None,
    about: str,
) -> Strip:
    return Strip(
        place(control.ratio),
        None if control.low is None else place(control.low),
        None if control.high is None else place(control.high),
        rule=place(1.0),
        band=band,
        about=f"{about}: {_ratio(control.ratio)}",
    )


def look(verdict: str, value: str = "") -> Look:
    """Return how a verdict is shown; an unknown one by its own words."""
    return Look(*_LOOKS.get(verdict, ("·", verdict, "even")), value=value)
