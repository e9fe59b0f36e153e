"""Verdicts on pairs, on the safety of accuracy and on the A/A control, as the page shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninefold.report.data.cells import PLAIN
from ninefold.report.numbers import MISSING
from ninefold.report.render.strips import Strip, between, chance, counted, scale, signed, times
from ninefold.report.stats.verdicts import OPEN

# What a verdict looks like: a glyph and a word that do without color, and the color's class.
_LOOKS = {
    "faster": ("▲", "faster", "good"), "slower": ("▼", "slower", "bad"),
    "better": ("▲", "better", "good"), "worse": ("▼", "worse", "bad"),
    "tie": ("=", "tie", "even"), "safe": ("✓", "safe", "good"),
    OPEN: ("?", "too few", "open"),
}  # fmt: skip
_OPPOSITE = {"faster": "slower", "slower": "faster", "better": "worse", "worse": "better"}


@dataclass(frozen=True)
class Look:
    glyph: str
    word: str
    kind: str
    value: str = ""


@dataclass(frozen=True)
class Row:
    """A verdict with all that it rests on."""

    name: str
    against: str
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
    """All pairs of one measure: the matrix `cells` by `cells`, and a row for each pair."""

    key: str
    title: str
    about: str
    summary: str
    cells: list[str]
    matrix: dict[tuple[str, str], Look]
    rows: list[Row]


def pairs(group: Mapping[str, Any]) -> list[Matrix]:
    """Return the verdicts on time and on accuracy; none where there are no pairs."""
    found = [
        _matrix(group, "seconds", "Time", 1.0, times, lambda ratio: 1 / ratio if ratio else 0.0),
        _matrix(group, "accuracy", "Accuracy", 0.0, _points, lambda points: -points),
    ]
    return [shown for shown in found if shown.rows]


def _points(value: float | None) -> str:
    return signed(value, 2)


def _matrix(
    group: Mapping[str, Any], key: str, title: str, even: float,
    show: Callable[[float | None], str], turn: Callable[[float], float],
) -> Matrix:  # fmt: skip
    items = group["pairs"][key]
    place = scale([even, *(item[end] for item in items for end in ("low", "high", "estimate"))])
    matrix = {}
    for item in items:
        verdict, estimate = item["verdict"], item["estimate"]
        matrix[item["second"], item["first"]] = look(verdict, show(estimate))
        matrix[item["first"], item["second"]] = look(
            _OPPOSITE.get(verdict, verdict), show(None if estimate is None else turn(estimate))
        )
    named = {cell for item in items for cell in (item["first"], item["second"])}
    what = "ratio of seconds per epoch" if key == "seconds" else "difference in points"
    return Matrix(
        key, title, what, _summary(items),
        [cell["cell"] for cell in group["cells"] if cell["cell"] in named],
        matrix,
        [_row(item, item["second"], item["first"], item["estimate"], show, place, even)
         for item in items],
    )  # fmt: skip


def _summary(items: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(item["verdict"] for item in items)
    unsettled, ties = counts.pop(OPEN, 0), counts.pop("tie", 0)
    differ = sum(counts.values())
    text = f"Of {counted(items, 'pair')} {differ} {'differs' if differ == 1 else 'differ'} and "
    text += f"{ties} {'is a tie' if ties == 1 else 'are ties'}."
    if unsettled:
        needed = [item["needed"] for item in items if item["needed"]]
        which = "them" if len(needed) == unsettled else f"{len(needed)} of them"
        seeds = f"; about {max(needed)} seeds would settle {which}" if needed else ""
        text += f" For {unsettled} there are not enough runs{seeds}."
    return text


def safety(group: Mapping[str, Any], margin: float) -> list[Row]:
    """Return a row for each cell whose accuracy was held against the baseline's and the margin."""
    items = group["safety"]
    place = scale([0.0, -margin, *(item[end] for item in items for end in ("low", "difference"))])
    return [
        _row(
            {**item, "high": None}, item["cell"], PLAIN, item["difference"], _points, place,
            -margin,
        )
        for item in items
    ]  # fmt: skip


def _row(
    item: Mapping[str, Any], name: str, against: str, estimate: float | None,
    show: Callable[[float | None], str], place: Callable[[float], float], even: float,
) -> Row:  # fmt: skip
    low, high = item["low"], item["high"]
    one_sided = high is None and low is not None
    return Row(
        name, against, look(item["verdict"]), item["verdict"], show(estimate),
        f"at least {show(low)}" if one_sided else between(low, high, show),
        chance(item["adjusted"]), item["n"],
        str(item["needed"] or (MISSING if item["verdict"] == OPEN else "")),
        Strip(
            place(estimate if estimate is not None else even),
            None if low is None else place(low),
            100.0 if one_sided else None if high is None else place(high),
            rule=place(even),
            about=f"{name} against {against}: {show(estimate)}",
        ),
    )  # fmt: skip


def controls(group: Mapping[str, Any]) -> list[Row]:
    """Return a row for each A/A control, on one scale around 1."""
    items = group["controls"]
    ends = [item[end] for item in items for end in ("ratio", "low", "high")]
    reach = max((item["floor"] or 0.0 for item in items), default=0.0)
    place = scale([1 - reach, 1.0, 1 + reach, *ends])
    return [
        Row(
            item["second"], item["first"],
            Look("✓", "held", "good") if item["held"] else Look("✗", "did not hold", "bad"), "",
            times(item["ratio"], 3),
            between(item["low"], item["high"], lambda ratio: times(ratio, 3)), "", 0,
            f"{100 * item['floor']:.1f} %" if item["floor"] is not None else "",
            Strip(
                place(1.0 if item["ratio"] is None else item["ratio"]),
                None if item["low"] is None else place(item["low"]),
                None if item["high"] is None else place(item["high"]),
                rule=place(1.0), band=(place(1 - reach), place(1 + reach)),
                about=f"{item['second']} against {item['first']}: {times(item['ratio'], 3)}",
            ),
        )
        for item in items
    ]  # fmt: skip


def look(verdict: str, value: str = "") -> Look:
    """Return how a verdict looks; one that is new is shown by its own words."""
    return Look(*_LOOKS.get(verdict, ("·", verdict, "even")), value=value)
