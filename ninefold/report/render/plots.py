"""The style, the colors and the parts that all plots of a report share."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from ninefold.errors import one_line
from ninefold.report.render.svg import STRUCK, adopt
from ninefold.score import PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, NARROW = 960, 352  # CSS pixels

# The colors of report.html are CSS custom properties, which dark mode and printing change. In a
# plot each stands as a color of its own, which `adopt` replaces by the property. On paper they are
# those of the page in light mode.
_ON_PAPER = {
    "paper": "#ffffff",
    "ink": "#1b1d22",
    "muted": "#5c616b",
    "line": "#dcdee3",
    "accent": "#0b6285",
    "warn": "#a3420f",
    "hatch": "#14182033",
    "phase-data": "#efc566",
    "phase-transfer": "#e79a8a",
    "phase-forward": "#b5d7e6",
    "phase-backward": "#83b4d2",
    "phase-optimizer": "#c9b8e2",
}
COLORS = {name: f"#0000{place:02}" for place, name in enumerate(_ON_PAPER, start=1)}
HATCHES = dict(zip(PHASES, ("//", "xxx", "", "\\\\", "|||"), strict=True))


@dataclass(frozen=True)
class Picture:
    """A plot of report.html for two widths of screen, which is drawn when it is asked for.

    about: what it shows, in words. draw: on a canvas. height: in CSS pixels, of narrow or not.
    """

    about: str
    draw: Callable[[Canvas], None]
    height: Callable[[bool], float]

    @property
    def wide(self) -> str:
        """Its SVG for wide screens."""
        return self._drawn(WIDE)

    @property
    def narrow(self) -> str:
        """Its SVG for narrow screens."""
        return self._drawn(NARROW)

    def _drawn(self, width: int) -> str:
        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of a new font cache
        import matplotlib as mpl  # only here: it takes long to import
        from matplotlib.figure import Figure

        with mpl.rc_context(_style()):
            size = (width / 72, self.height(width == NARROW) / 72)
            canvas, text = Canvas(width, Figure(figsize=size, dpi=72)), io.StringIO()
            self.draw(canvas)
            canvas.figure.savefig(
                text,
                format="svg",
                transparent=True,
                metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
            )
        names = {color: name for name, color in COLORS.items()}
        return adopt(text.getvalue(), names, canvas.tips, self.about)


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
        across, down = width - left - right, height - top - bottom
        return self.figure.add_axes((left / width, bottom / height, across / width, down / height))

    def tip(self, text: str, struck: bool = False) -> str:
        """Return an id for an artist, which then shows this text when pointed at.

        struck: whether the artist is text that is struck through.
        """
        name = f"{STRUCK if struck else 'tip'}{len(self.tips)}"
        self.tips[name] = one_line(text)
        return name


def alone(drawn: Picture, caption: str) -> str:
    """Return the wide version as an SVG file: on white, with colors, font and caption."""
    text = drawn.wide
    for name, color in _ON_PAPER.items():
        text = text.replace(f"var(--{name})", color)
    height = float(re.findall(r'viewBox="0 0 \d+ ([\d.]+)"', text)[0])
    whole = f'viewBox="-16 -16 {WIDE + 32} {height + 56:g}"'
    text = re.sub(r'viewBox="[^"]*" width="\d+" height="[\d.]+"', whole, text, count=1)
    paper = '<rect x="-16" y="-16" width="100%" height="100%" fill="#ffffff"/>'
    said = f'<text x="0" y="{height + 22:g}" font-size="12" fill="{_ON_PAPER["muted"]}">'
    head, _, rest = text.partition(">")
    font = 'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif"'
    rest = rest.removesuffix("</svg>")
    head = head.replace("<svg", f"<svg {font}", 1)
    return f"{head}>{paper}{rest}{said}{escape(caption)}</text></svg>\n"


def _style() -> Any:
    """The settings of matplotlib for all plots."""
    return {
        "font.family": "DejaVu Sans",  # a page measures with it and is shown in a narrower one
        "font.size": 13,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "axes.titlepad": 5,
        "axes.titley": 1.0,  # the default position, without searching for it at each drawing
        "axes.edgecolor": COLORS["line"],
        "axes.labelcolor": COLORS["muted"],
        "axes.labelsize": 12,
        "axes.linewidth": 1,
        "text.color": COLORS["ink"],
        "xtick.color": COLORS["line"],
        "ytick.color": COLORS["line"],
        "xtick.labelcolor": COLORS["muted"],
        "ytick.labelcolor": COLORS["muted"],
        "xtick.labelsize": 12,
        "ytick.labelsize": 12,
        "grid.color": COLORS["line"],
        "grid.linewidth": 0.8,
        "hatch.linewidth": 0.7,
        "lines.solid_capstyle": "round",
        "svg.fonttype": "none",
        "svg.hashsalt": "ninefold",
    }


def rows(axes: Axes, count: int) -> None:
    """Make axes of so many rows, the first on top, without a scale at the left."""
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylim(count - 0.5, -0.5)
    axes.tick_params(axis="x", length=3)


def beside(axes: Axes, row: float, words: str, at: int, shift: float, **how: Any) -> None:
    """Write from the left (`at` 0) or the right (1) end of a row, shifted by so many pixels."""
    axes.annotate(
        one_line(words),
        (at, row),
        xycoords=("axes fraction", "data"),
        xytext=(shift, how.pop("up", 0)),
        textcoords="offset points",
        annotation_clip=False,
        parse_math=False,  # dollar signs in a name are no mathematics
        va="center",
        **how,
    )


def fitting(name: str, letters: int) -> str:
    """Return a name shortened to so many letters, without its middle: ends often tell it apart."""
    name = one_line(name)
    head, tail = (letters - 1) // 2, letters // 2
    return name if len(name) <= letters else f"{name[:head]}…{name[-tail:]}"


def longest(names: Sequence[str]) -> int:
    """Return the letters of the longest name."""
    return max(map(len, names), default=0)
