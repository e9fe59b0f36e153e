"""Draws figure.png: time, where it goes, score and memory of each cell, each seed a dot."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ninefold.errors import one_line
from ninefold.files import opener
from ninefold.report.answer.tree import Group, Report
from ninefold.report.data.cell import AMP
from ninefold.report.data.cells import MOST
from ninefold.report.render.plots import HATCHES, ON_PAPER, matplotlib, phase_bars, style
from ninefold.report.stats.measures import SCORE_KEY
from ninefold.result import PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

# Okabe and Ito's colors, which color-blind people can tell apart: first those of AMP.
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_OTHER = "#777777"
_INK, _MUTED = ON_PAPER["ink"], ON_PAPER["muted"]


def draw(path: Path, report: Report) -> None:
    """Draw four panels for each group that is shown; no file when there is none."""
    if not report.groups:
        return
    mpl = matplotlib()
    from matplotlib.figure import Figure

    shown = report.groups[:MOST]
    with mpl.rc_context({**style(ON_PAPER), "font.size": 10.5}):
        figure = Figure(figsize=(12, 8.8 * len(shown)), dpi=150)
        blocks = figure.subfigures(len(shown), 1, squeeze=False)[:, 0]
        for block, group in zip(blocks, shown, strict=True):
            _draw_group(block, group, report)
        with open(path, "wb", opener=opener) as file:
            figure.savefig(file, metadata={"Software": None})


def colors_of(amps: Sequence[str]) -> dict[str, str]:
    """Return the color of each precision: known ones have their own, others take what is left."""
    found = dict(zip(AMP, _COLORS, strict=False))
    left = iter(_COLORS[len(AMP) :])
    return {amp: found.get(amp) or next(left, _OTHER) for amp in amps}


def _draw_group(figure: SubFigure, group: Group, report: Report) -> None:
    top = _head(figure, group, report) - 0.1
    grid = figure.add_gridspec(
        2, 2, left=0.065, right=0.98, top=top, bottom=0.055, wspace=0.27, hspace=0.34
    )
    time, phases, score, memory = (
        figure.add_subplot(grid[row, column]) for row in (0, 1) for column in (0, 1)
    )
    _cells(time, group, "seconds")
    time.set_title("Training time: seconds per epoch")
    _phases(phases, group)
    phases.set_title("Where the time goes: % of a training step", pad=24)
    _cells(score, group, SCORE_KEY)
    unit = f"{group.unit}, the" if group.unit else "the"
    score.set_title(f"Test {group.score}: {unit} line is the mean", parse_math=False)
    _cells(memory, group, "memory", unit=2**20)
    memory.set_title("Peak memory: MiB, all devices together")


def _head(figure: SubFigure, group: Group, report: Report) -> float:
    """Write title, conditions and legend; returns where the legend begins, from 0 to 1."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    title = one_line(group.title if report.title == "Runs" else f"{report.title}: {group.title}")
    subtitle = textwrap.fill("; ".join(report.conditions), 165)
    # Without parse_math an override with two dollar signs would be drawn as mathematics.
    figure.text(0.012, 0.975, title, va="top", fontsize=16, fontweight="bold", parse_math=False)
    figure.text(
        0.012,
        0.932,
        subtitle,
        va="top",
        fontsize=9.5,
        color=_MUTED,
        linespacing=1.4,
        parse_math=False,
    )
    dot = "one timing round or seed" if group.timing_rounds else "one seed"
    legend = [
        *(Patch(color=color, label=amp) for amp, color in colors_of(group.amps).items()),
        Line2D([], [], marker="o", color=_INK, ls="", ms=5, label=dot),
    ]
    if _has_ratios(group):
        label = "ratio to none-fp32"
        legend.append(Line2D([], [], marker="$×$", color=_INK, ls="", ms=7, label=label))
    below = 0.89 - 0.021 * max(0, subtitle.count("\n") - 1)
    figure.legend(
        handles=legend,
        loc="upper left",
        bbox_to_anchor=(0.005, below),
        ncols=len(legend),
        frameon=False,
        fontsize=10.5,
    )
    return below


def _cells(axes: Axes, group: Group, key: str, unit: float = 1.0) -> None:
    """Draw a measure by strategy and precision: the mean as a bar or a line, each seed a dot.

    Scores are drawn as lines: a bar from 0 would hide their differences.
    """
    bars = key != SCORE_KEY
    width = 0.84 / len(group.amps)
    cells = {(cell.parallel, cell.amp): cell for cell in group.cells}
    colors = colors_of(group.amps)
    for row, parallel in enumerate(group.parallels):
        for column, amp in enumerate(group.amps):
            center = row - 0.42 + width * (column + 0.5)
            color = colors[amp]
            cell = cells.get((parallel, amp))
            found = cell.measures.get(key) if cell else None
            if found is None or found.mean is None:
                why = "not run" if cell is None else cell.status or "not known"
                _no_value(axes, center, why)
                continue
            mean = found.mean / unit
            if bars:
                axes.bar(center, mean, width * 0.9, color=color, alpha=0.75)
            else:
                axes.hlines(mean, center - width * 0.4, center + width * 0.4, color, lw=2.5)
            seeds = [value / unit for value in found.values.values()]
            # The dots of a cell are side by side, so that equal values can be counted.
            step = width * 0.6 / max(1, len(seeds) - 1)
            axes.scatter(
                [center + step * (place - (len(seeds) - 1) / 2) for place in range(len(seeds))],
                seeds,
                s=22,
                zorder=3,
                linewidths=0.8,
                color=_INK if bars else color,
                edgecolors="white",
            )
            if bars and found.relative is not None and _has_ratios(group):
                axes.annotate(
                    f"×{found.relative:.2f}",
                    (center, max(*seeds, mean)),
                    xytext=(0, 6),
                    textcoords="offset points",
                    ha="center",
                    fontsize=9,
                )
    axes.set_xticks(range(len(group.parallels)), group.parallels)
    axes.set_xlim(-0.5, len(group.parallels) - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.margins(y=0.12)


def _phases(axes: Axes, group: Group) -> None:
    from matplotlib.patches import Patch

    phase_bars(axes, group.cells, {c.cell: 100.0 for c in group.cells}, ON_PAPER, 0.07, str)
    axes.legend(
        handles=[
            Patch(
                facecolor=ON_PAPER[f"phase-{name}"],
                hatch=HATCHES[name],
                edgecolor=ON_PAPER["hatch"],
                linewidth=0,
                label=name,
            )
            for name in PHASES
        ],
        loc="lower left",
        bbox_to_anchor=(-0.02, 0.985),
        ncols=len(PHASES),
        frameon=False,
        fontsize=9.5,
        handlelength=1.0,
        columnspacing=1.2,
        borderpad=0.2,
    )


def _has_ratios(group: Group) -> bool:
    return len(group.amps) <= 3  # narrower bars leave no room for a number


def _no_value(axes: Axes, center: float, why: str) -> None:
    axes.text(
        center,
        0.03,
        why,
        rotation=90,
        ha="center",
        va="bottom",
        fontsize=9,
        color=_MUTED,
        transform=axes.get_xaxis_transform(),
        parse_math=False,
    )
