"""The style, the colors and the parts that all plots of a report share."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ninefold.errors import one_line
from ninefold.report.answer.tree import CellReport
from ninefold.report.data.cell import Cell
from ninefold.report.render.svg import adopt
from ninefold.result import PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, NARROW = 960, 352  # CSS pixels

# The colors of report.html are CSS custom properties, which dark mode and printing change. In a
# plot each stands as a color of its own, which `adopt` replaces by the property.
_PROPERTIES = {
    f"#0000{number:02}": name
    for number, name in enumerate(
        ["ink", "muted", "line", "accent", "warn", "hatch", *(f"phase-{name}" for name in PHASES)],
        start=1,
    )
}
ON_PAGE = {name: color for color, name in _PROPERTIES.items()}
# The colors of figure.png, by the same names: those of the page in light mode.
ON_PAPER = {
    "ink": "#1a1c20",
    "muted": "#585d66",
    "line": "#dcd9d2",
    "accent": "#0a5c80",
    "warn": "#9c3d10",
    "hatch": "#14182033",
    "phase-data": "#efc566",
    "phase-transfer": "#e79a8a",
    "phase-forward": "#b5d7e6",
    "phase-backward": "#83b4d2",
    "phase-optimizer": "#c9b8e2",
}
HATCHES = dict(zip(PHASES, ("//", "xxx", "", "\\\\", "|||"), strict=True))
_LETTERS = 13  # of a cell's name


def matplotlib() -> Any:
    """Import matplotlib without its messages, such as the one about a new font cache."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib as mpl  # only here: it takes long to import

    return mpl


def style(colors: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of matplotlib for all plots in these colors."""
    return {
        "font.family": "DejaVu Sans",  # a page measures with it and is shown in a narrower one
        "font.size": 12,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "axes.titlepad": 5,
        "axes.titley": 1.0,  # the default position, without searching for it at each drawing
        "axes.edgecolor": colors["line"],
        "axes.labelcolor": colors["muted"],
        "axes.labelsize": 11.5,
        "axes.linewidth": 1,
        "text.color": colors["ink"],
        "xtick.color": colors["line"],
        "ytick.color": colors["line"],
        "xtick.labelcolor": colors["muted"],
        "ytick.labelcolor": colors["muted"],
        "xtick.labelsize": 11,
        "ytick.labelsize": 11,
        "grid.color": colors["line"],
        "grid.linewidth": 0.8,
        "hatch.linewidth": 0.7,
        "lines.solid_capstyle": "round",
        "svg.fonttype": "none",
        "svg.hashsalt": "ninefold",
    }


@dataclass(frozen=True)
class Picture:
    """A plot of report.html as SVG for two widths of screen, and what it shows, in words."""

    about: str
    wide: str
    narrow: str


@dataclass
class Canvas:
    """A figure of a width in CSS pixels, and the tooltips of what is drawn on it."""

    width: int
    figure: Figure
    tips: dict[str, str] = field(default_factory=dict)

    @property
    def narrow(self) -> bool:
        return self.width < 500

    def axes(self, left: float, top: float, right: float, bottom: float) -> Axes:
        """Return axes with these margins, in CSS pixels."""
        width, height = (72 * inches for inches in self.figure.get_size_inches())
        return self.figure.add_axes(
            (
                left / width,
                bottom / height,
                (width - left - right) / width,
                (height - top - bottom) / height,
            )
        )

    def tip(self, text: str) -> str:
        """Return an id for an artist, which then shows this text when pointed at."""
        name = f"tip{len(self.tips)}"
        self.tips[name] = one_line(text)
        return name


def picture(draw: Callable[[Canvas], None], height: Callable[[bool], int], about: str) -> Picture:
    """Draw a plot for wide and for narrow screens. height: in CSS pixels, of narrow or not."""
    mpl = matplotlib()
    from matplotlib.figure import Figure

    found = []
    for width in (WIDE, NARROW):
        with mpl.rc_context(style(ON_PAGE)):
            size = (width / 72, height(width == NARROW) / 72)
            canvas = Canvas(width, Figure(figsize=size, dpi=72))
            draw(canvas)
            text = io.StringIO()
            canvas.figure.savefig(
                text,
                format="svg",
                transparent=True,
                metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
            )
        found.append(adopt(text.getvalue(), _PROPERTIES, canvas.tips, about))
    return Picture(about, *found)


def alone(drawn: str) -> str:
    """A picture of the page as an SVG file: with its own colors and font."""
    for name, color in ON_PAPER.items():
        drawn = drawn.replace(f"var(--{name})", color)
    head = '<svg xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif" '
    return drawn.replace("<svg ", head, 1)


def phase_bars(
    axes: Axes,
    cells: Sequence[CellReport],
    lengths: Mapping[Cell, float],
    colors: Mapping[str, str],
    least: float,
    tip: Callable[[str], str],
) -> None:
    """Draw a bar for each cell, split into the phases of a training step.

    lengths: of the bars, by cell.
    least: share of the longest bar from which on a phase's percentage stands in it.
    tip: makes an id from the text of a tooltip.
    """
    longest = max(lengths.values())
    for row, cell in enumerate(cells):
        if not cell.phases:
            say(axes, longest * 0.01, row, cell.status or "not known", colors)
            continue
        left = 0.0
        for phase in PHASES:
            share = cell.phases.get(phase) or 0.0
            length = share / 100 * lengths[cell.cell]
            (bar,) = axes.barh(
                row,
                length,
                0.74,
                left=left,
                color=colors[f"phase-{phase}"],
                hatch=HATCHES[phase],
                edgecolor=colors["hatch"],
                linewidth=0,
            )
            bar.set_gid(tip(f"{cell.cell}: {phase} {share:.1f} %"))
            if length / longest > least:
                text(axes, left + length / 2, row, f"{share:.0f} %", ha="center")
            left += length
    axes.set_xlim(0, longest * 1.01)
    name_rows(axes, [str(cell.cell) for cell in cells])


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Write names to the left of rows, the first on top."""
    axes.set_yticks(range(len(names)), [""] * len(names))
    for row, name in enumerate(names):
        axes.annotate(
            fitting(name),
            (0, row),
            xycoords=("axes fraction", "data"),
            xytext=(-8, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            parse_math=False,
        )
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=3)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)


def fitting(name: str) -> str:
    """Return a cell's name shortened to its place, with parts of both strategy and precision."""
    name = one_line(name)
    if len(name) <= _LETTERS:
        return name
    parallel, dash, amp = name.partition("-")
    room = _LETTERS - len(dash)
    first = min(len(parallel), max(room // 2, room - len(amp)))
    return f"{_shortened(parallel, first)}{dash}{_shortened(amp, room - first)}"


def _shortened(word: str, most: int) -> str:
    """Return a word without its middle: names often begin or end alike."""
    head, tail = (most - 1) // 2, most // 2
    return word if len(word) <= most else f"{word[:head]}…{word[-tail:]}"


def say(axes: Axes, x: float, y: float, words: str, colors: Mapping[str, str]) -> None:
    """Write where a value is missing."""
    text(axes, x, y, words, color=colors["muted"])


def text(axes: Axes, x: float, y: float, words: str, **how: Any) -> None:
    """Write text of any content; dollar signs in it are no mathematics."""
    axes.text(x, y, one_line(words), va="center", parse_math=False, **{"fontsize": 11, **how})
