"""Draws the plots of report.html as SVG that takes its colors and its font from the page.

Each comes twice, for wide and for narrow screens: a plot that is merely scaled cannot be read.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ninefold.errors import one_line
from ninefold.report.data.cells import PLAIN
from ninefold.report.data.rounds import round_number
from ninefold.report.render.svg import adopt
from ninefold.result import PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, NARROW = 960, 352  # CSS pixels

# What is drawn in a color here is shown in the page's custom property, which dark mode changes.
_PROPERTIES = {
    "#000001": "ink", "#000002": "muted", "#000003": "line", "#000004": "accent", "#000005": "warn",
    "#000006": "hatch",
    **{f"#00001{number}": f"phase-{name}" for number, name in enumerate(PHASES)},
}  # fmt: skip
_COLORS = {name: color for color, name in _PROPERTIES.items()}
_INK, _MUTED, _LINE, _ACCENT, _WARN = (
    _COLORS[name] for name in ("ink", "muted", "line", "accent", "warn")
)
_HATCHES = dict(zip(PHASES, ("//", "xxx", "", "\\\\", "|||"), strict=True))
# Any: the stubs of some matplotlib releases list every key they know.
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ninefold",
    "font.family": "DejaVu Sans",  # to measure with; it is wider than what pages are shown in
    "font.size": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlepad": 5,
    "axes.titley": 1.0,  # where it is anyway, but not looked for at each drawing
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _MUTED,
    "axes.labelsize": 11.5,
    "axes.linewidth": 1,
    "text.color": _INK,
    "xtick.color": _LINE,
    "ytick.color": _LINE,
    "xtick.labelcolor": _MUTED,
    "ytick.labelcolor": _MUTED,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "grid.color": _LINE,
    "grid.linewidth": 0.8,
    "hatch.linewidth": 0.7,
    "lines.solid_capstyle": "round",
}
_LABEL = 100  # CSS pixels that a label of a round needs
_LETTERS = 13  # of a cell's name
_POINTS = 150  # of one curve at most: more cannot be told apart in a panel


@dataclass(frozen=True)
class Picture:
    """One plot as two <svg> elements, and what it shows, in words."""

    about: str
    wide: str
    narrow: str


@dataclass
class _Canvas:
    """A figure of a width in CSS pixels, and the tooltips of what is drawn on it."""

    width: int
    figure: Figure
    tips: dict[str, str] = field(default_factory=dict)

    @property
    def narrow(self) -> bool:
        return self.width < 500

    def axes(self, left: float, top: float, right: float, bottom: float) -> Axes:
        """Axes with these margins, in CSS pixels."""
        width, height = (72 * inches for inches in self.figure.get_size_inches())
        return self.figure.add_axes(
            (left / width, bottom / height, (width - left - right) / width,
             (height - top - bottom) / height)
        )  # fmt: skip

    def tip(self, text: str) -> str:
        """An id for an artist, which then shows this text when pointed at."""
        name = f"tip{len(self.tips)}"
        self.tips[name] = one_line(text)
        return name


def phases(group: Mapping[str, Any]) -> Picture | None:
    """Seconds of an epoch by phase, a bar for each cell; None where no cell has phases.

    Where a cell's seconds are not known the bars are shares of a step instead.
    """
    cells = [cell for cell in group["cells"] if cell["phases"]]
    if not cells:
        return None
    seconds: dict[str, float] = {
        cell["cell"]: (cell["measures"].get("seconds") or {}).get("mean") or 0.0 for cell in cells
    }
    timed = all(seconds.values())
    unit = "seconds per epoch" if timed else "% of a training step"
    longest = max(seconds.values()) if timed else 100

    def draw(canvas: _Canvas) -> None:
        axes = canvas.axes(left=106, top=2, right=8 if canvas.narrow else 14, bottom=42)
        for row, cell in enumerate(group["cells"]):
            if not cell["phases"]:
                _say(axes, longest * 0.01, row, cell["status"] or "not known")
                continue
            scale = seconds[cell["cell"]] / 100 if timed else 1.0
            left = 0.0
            for phase in PHASES:
                share = cell["phases"].get(phase) or 0.0
                (bar,) = axes.barh(
                    row, share * scale, 0.74, left=left, color=_COLORS[f"phase-{phase}"],
                    hatch=_HATCHES[phase], edgecolor=_COLORS["hatch"], linewidth=0,
                )  # fmt: skip
                bar.set_gid(canvas.tip(f"{cell['cell']}: {phase} {share:.1f} %"))
                if share * scale / longest > (0.14 if canvas.narrow else 0.07):
                    _text(axes, left + share * scale / 2, row, f"{share:.0f} %", ha="center")
                left += share * scale
        axes.set_xlim(0, longest * 1.01)
        axes.set_xlabel(unit)
        _rows(axes, group["cells"])

    return _picture(
        draw, lambda narrow: 26 * len(group["cells"]) + 44,
        f"Stacked bars, {unit}, of each cell split into {', '.join(PHASES)}. "
        "The table below has every number.",
    )  # fmt: skip


def speedups(group: Mapping[str, Any]) -> Picture | None:
    """Speed-up over one device in the same precision, and the ideal; None where no cell has one."""
    found = [cell["speedup"] for cell in group["cells"] if cell["speedup"]]
    if not found:
        return None
    most = max(max(speedup["value"], speedup["ideal"]) for speedup in found)
    cells = [cell for cell in group["cells"] if cell["speedup"] or cell["parallel"] != "none"]

    def draw(canvas: _Canvas) -> None:
        axes = canvas.axes(left=106, top=2, right=92 if canvas.narrow else 150, bottom=42)
        for row, cell in enumerate(cells):
            speedup = cell["speedup"]
            if not speedup:
                _say(axes, most * 0.01, row, cell["status"] or "not known")
                continue
            value, ideal = speedup["value"], speedup["ideal"]
            (bar,) = axes.barh(row, value, 0.5, color=_ACCENT, alpha=0.75)
            bar.set_gid(canvas.tip(f"{cell['cell']}: ×{value:.2f}, ideal ×{ideal:.2f}"))
            axes.plot([ideal, ideal], [row - 0.42, row + 0.42], color=_INK, lw=2)
            share = f"{100 * value / ideal:.0f} %" if ideal else ""
            text = f"×{value:.2f}, {share}" if canvas.narrow else f"×{value:.2f}, {share} of ideal"
            _text(axes, max(value, ideal) + most * 0.02, row, text)
        axes.axvline(1, color=_MUTED, lw=1, ls=(0, (3, 3)), zorder=0)
        axes.set_xlim(0, most * 1.02)
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel("times as fast")
        _rows(axes, cells)

    return _picture(
        draw, lambda narrow: 24 * len(cells) + 44,
        "Bars of each cell's speed-up, with a mark at the ideal of the devices that it used.",
    )  # fmt: skip


def curves(group: Mapping[str, Any], over: int) -> Picture | None:
    """Accuracy of every run over epochs (`over` 0) or seconds (1), a panel for each cell."""
    found: dict[str, list[tuple[Any, list[tuple[float, float]]]]] = {}
    for curve in group["curves"]:
        line = [
            (point[over], point[2])
            for point in curve["points"] if point[over] is not None and point[2] is not None
        ]  # fmt: skip
        if line:
            found.setdefault(curve["cell"], []).append((curve["seed"], _thinned(line)))
    if not found:
        return None
    unit = ("epochs", "seconds of training")[over]
    xs = [x for lines in found.values() for _, line in lines for x, _ in line]
    ys = [y for lines in found.values() for _, line in lines for _, y in line]
    reference = _mean(found.get(PLAIN, []))
    cells = group["cells"]

    def columns(narrow: bool) -> int:
        return min(2, len(cells)) if narrow else max(1, min(len(group["amps"]), len(cells), 5))

    def draw(canvas: _Canvas) -> None:
        across = columns(canvas.narrow)
        down = -(-len(cells) // across)
        width, height = (72 * inches for inches in canvas.figure.get_size_inches())
        grid = canvas.figure.add_gridspec(
            down, across, left=46 / width, right=1 - 6 / width, top=1 - 22 / height,
            bottom=44 / height, wspace=0.07, hspace=0.26,
        )  # fmt: skip
        first: Axes | None = None
        for number, cell in enumerate(cells):
            row, column = divmod(number, across)
            axes = canvas.figure.add_subplot(grid[row, column], sharex=first, sharey=first)
            first = first or axes
            axes.set_title(_fitting(cell["cell"]), parse_math=False)
            axes.grid(axis="y")
            if reference and cell["cell"] in found and cell["cell"] != PLAIN:
                axes.plot(*zip(*reference, strict=True), color=_MUTED, lw=1.1, ls=(0, (3, 2)))
            for seed, line in found.get(cell["cell"], []):
                (drawn,) = axes.plot(
                    *zip(*line, strict=True), color=_ACCENT, lw=1.5, alpha=0.7,
                    marker="o" if len(line) == 1 else None, ms=4,
                )  # fmt: skip
                x, y = line[-1]
                drawn.set_gid(
                    canvas.tip(f"{cell['cell']}, seed {seed}: {y:.2f} % at {x:.4g} {unit}")
                )
            if cell["cell"] not in found:
                axes.text(
                    0.5, 0.5, one_line(cell["status"] or "no curve"), ha="center", va="center",
                    color=_MUTED, transform=axes.transAxes, parse_math=False,
                )  # fmt: skip
            below = number + across < len(cells)
            axes.tick_params(labelbottom=not below, labelleft=column == 0, length=3)
        assert first is not None  # there is a cell
        margin = 0.06 * (max(ys) - min(ys)) or 1.0
        first.set_ylim(min(ys) - margin, max(ys) + margin)
        first.set_xlim(*((min(xs) - 1, max(xs) + 1) if min(xs) == max(xs) else (0, max(xs) * 1.02)))
        first.locator_params(axis="x", nbins=4, integer=over == 0)
        first.locator_params(axis="y", nbins=4)
        canvas.figure.text(
            (46 + (width - 52) / 2) / width, 6 / height, unit, ha="center", color=_MUTED,
            fontsize=11.5,
        )  # fmt: skip

    def height(narrow: bool) -> int:
        across = columns(narrow)
        return -(-len(cells) // across) * (122 if narrow else 168) + 60

    return _picture(
        draw, height,
        f"Test accuracy in percent over {unit}, a panel for each cell and a line for each run; "
        "dashed: the mean of none-fp32.",
    )  # fmt: skip


def drift(group: Mapping[str, Any], limit: float | None) -> Picture | None:
    """How much slower the machine was in each round than at its best; None where none is known.

    limit: the share above which a round has drifted, None where there is none.
    """
    rounds = [found for found in group["rounds"] if found["drift"] is not None]
    if not rounds:
        return None
    percent = [100 * found["drift"] for found in rounds]
    allowed = None if limit is None or limit > 1 else 100 * limit
    low, high = min(0.0, *percent), max(5.0, allowed or 0.0, *percent)

    def draw(canvas: _Canvas) -> None:
        axes = canvas.axes(left=46, top=26, right=8, bottom=44)
        axes.grid(axis="y")
        axes.axhline(0, color=_MUTED, lw=1)
        if allowed is not None:
            axes.axhline(allowed, color=_WARN, lw=1, ls=(0, (3, 3)))
        apart = (canvas.width - 54) / (len(rounds) + 0.2)  # CSS pixels, from round to round
        labeled = -math.inf
        for place, (found, value) in enumerate(zip(rounds, percent, strict=True)):
            color = _WARN if found["drifted"] else _ACCENT
            axes.plot([place, place], [0, value], color=color, lw=2)
            (dot,) = axes.plot(
                [place], [value], marker="X" if found["drifted"] else "o", color=color, ms=8,
            )  # fmt: skip
            what = _outcome(found)
            named = f"round {round_number(found)}: {value:.1f} %"
            dot.set_gid(canvas.tip(f"{named}{what and ', ' + what}"))
            if what and (place - labeled) * apart > _LABEL:
                labeled = place
                axes.annotate(
                    what, (place, value), xytext=(0, 8), textcoords="offset points",
                    ha="center", fontsize=11, color=_WARN,
                )  # fmt: skip
        every = -(-len(rounds) // (8 if canvas.narrow else 24))
        names = [round_number(found) for found in rounds[::every]]
        axes.set_xticks(range(0, len(rounds), every), names)
        axes.set_xlim(-0.6, len(rounds) - 0.4)
        axes.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))
        axes.locator_params(axis="y", nbins=4)
        axes.tick_params(length=3)
        axes.set_xlabel("round (2.2: its second try)")

    return _picture(
        draw, lambda narrow: 170,
        "How much slower the machine was in each round than at its best, in percent: "
        + ", ".join(
            f"round {round_number(found)} {value:.1f}{(_outcome(found) and ' ')}{_outcome(found)}"
            for found, value in zip(rounds, percent, strict=True)
        )
        + ("." if allowed is None else f"; dashed: {allowed:g}, above which a round has drifted."),
    )  # fmt: skip


def _outcome(found: Mapping[str, Any]) -> str:
    if not found["drifted"]:
        return ""
    return "drifted, counted" if found["counted"] else "drifted, repeated"


def _thinned(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    step = -(-len(line) // _POINTS)
    return [*line[:-1:step], line[-1]]


def _mean(
    lines: Sequence[tuple[Any, Sequence[tuple[float, float]]]],
) -> list[tuple[float, float]]:
    """The mean of the curves point by point, as far as all of them go."""
    columns = zip(*(line for _, line in lines), strict=False)
    return [
        (sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points))
        for points in columns
    ]


def _rows(axes: Axes, cells: Sequence[Mapping[str, Any]]) -> None:
    """A row for each cell, the first on top, its name to the left."""
    axes.set_yticks(range(len(cells)), [""] * len(cells))
    for row, cell in enumerate(cells):
        axes.annotate(
            _fitting(cell["cell"]), (0, row), xycoords=("axes fraction", "data"),
            xytext=(-8, 0), textcoords="offset points", ha="right", va="center", parse_math=False,
        )  # fmt: skip
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=3)
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)


def _fitting(name: str) -> str:
    """A cell's name short enough for its place, with something left of both that it names."""
    name = one_line(name)
    if len(name) <= _LETTERS:
        return name
    parallel, dash, amp = name.partition("-")
    room = _LETTERS - len(dash)
    first = min(len(parallel), max(room // 2, room - len(amp)))
    return f"{_shortened(parallel, first)}{dash}{_shortened(amp, room - first)}"


def _shortened(word: str, most: int) -> str:
    """A word of at most so many letters, without its middle: names often begin or end alike."""
    head, tail = (most - 1) // 2, most // 2
    return word if len(word) <= most else f"{word[:head]}…{word[-tail:]}"


def _say(axes: Axes, x: float, y: float, words: str) -> None:
    _text(axes, x, y, words, color=_MUTED)


def _text(axes: Axes, x: float, y: float, words: str, **how: Any) -> None:
    axes.text(x, y, one_line(words), va="center", parse_math=False, **{"fontsize": 11, **how})


def _picture(draw: Callable[[_Canvas], None], height: Callable[[bool], int], about: str) -> Picture:
    import matplotlib as mpl  # here, because only this needs it
    from matplotlib.figure import Figure

    found = []
    for width in (WIDE, NARROW):
        with mpl.rc_context(_STYLE):
            size = (width / 72, height(width == NARROW) / 72)
            canvas = _Canvas(width, Figure(figsize=size, dpi=72))
            draw(canvas)
            text = io.StringIO()
            canvas.figure.savefig(
                text, format="svg", transparent=True,
                metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
            )  # fmt: skip
        found.append(adopt(text.getvalue(), _PROPERTIES, canvas.tips, about))
    return Picture(about, *found)
