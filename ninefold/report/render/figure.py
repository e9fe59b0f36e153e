"""Draws figure.png: time, where it goes, accuracy and memory of each cell, each seed a dot."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ninefold.errors import one_line
from ninefold.report.answer.conditions import conditions
from ninefold.report.data.cells import Group, groups, shown
from ninefold.report.data.environment import values
from ninefold.report.data.runs import AMP, Run
from ninefold.report.stats.measures import ACCURACY, MEMORY, SECONDS, Measure
from ninefold.report.stats.summaries import phase_shares, summarize
from ninefold.result import PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

# Okabe and Ito's colors for precisions, Paul Tol's for phases: both stay apart for the color-blind.
_AMP_COLORS = dict(zip(AMP, ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"), strict=True))
_PHASE_COLORS = dict(
    zip(PHASES, ("#DDCC77", "#CC6677", "#88CCEE", "#332288", "#AA4499"), strict=True)
)
_OTHER = "#555555"
_INK = "#333333"
# Any: the stubs of some matplotlib releases list every key they know.
_STYLE: Any = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 12,
    "axes.edgecolor": "#999999",
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def draw(path: Path, runs: Sequence[Run], environment: Mapping[str, Any]) -> None:
    """Draw four panels for each group that is shown; no file when there is none."""
    import matplotlib as mpl  # here, because only this needs it
    from matplotlib.figure import Figure

    found = shown(groups(runs))
    if not found:
        return
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(12, 8.8 * len(found)), dpi=150)
        blocks = figure.subfigures(len(found), 1, squeeze=False)[:, 0]
        for block, group in zip(blocks, found, strict=True):
            _draw_group(block, group, runs, environment)
        figure.savefig(path, metadata={"Software": None})


def _draw_group(
    figure: SubFigure, group: Group, runs: Sequence[Run], environment: Mapping[str, Any]
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    studies = ", ".join(str(study) for study in values(environment.get("study")))
    title = one_line(f"{studies}: {group.title}" if studies else group.title)
    subtitle = textwrap.fill(one_line("; ".join(conditions(runs, environment))), 165)
    # Nobody means mathematics: an override may hold two dollars.
    figure.text(0.012, 0.975, title, va="top", fontsize=16, fontweight="bold", parse_math=False)
    figure.text(
        0.012, 0.932, subtitle, va="top", fontsize=9.5, color="#666666", linespacing=1.4,
        parse_math=False,
    )  # fmt: skip
    legend = [
        *(Patch(color=_AMP_COLORS.get(amp, _OTHER), label=amp) for amp in group.amps),
        Line2D([], [], marker="o", color=_INK, ls="", ms=5, label="one seed"),
    ]
    if _has_ratios(group):
        legend.append(
            Line2D([], [], marker="$×$", color=_INK, ls="", ms=7, label="ratio to none-fp32")
        )
    figure.legend(
        handles=legend,
        loc="upper left", bbox_to_anchor=(0.005, 0.885), ncols=len(legend), frameon=False,
        fontsize=10.5,
    )  # fmt: skip
    grid = figure.add_gridspec(
        2, 2, left=0.065, right=0.98, top=0.8, bottom=0.055, wspace=0.27, hspace=0.34
    )
    time, phases = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    accuracy, memory = figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[1, 1])
    _cells(time, group, SECONDS, bars=True)
    time.set_title("Training time: seconds per epoch")
    _phases(phases, group)
    phases.set_title("Where the time goes: % of a training step", pad=24)
    _cells(accuracy, group, ACCURACY, bars=False)
    accuracy.set_title("Test accuracy: %, the line is the mean")
    _cells(memory, group, MEMORY, bars=True)
    memory.set_title("Peak memory: MiB, all devices together")


def _cells(axes: Axes, group: Group, measure: Measure, bars: bool) -> None:
    """Draw a measure by strategy and precision: the mean as a bar or a line, each seed a dot."""
    width = 0.84 / len(group.amps)
    for row, parallel in enumerate(group.parallels):
        for column, amp in enumerate(group.amps):
            center = row - 0.42 + width * (column + 0.5)
            color = _AMP_COLORS.get(amp, _OTHER)
            cell = summarize(group, parallel, amp, measure)
            if cell.mean is None:
                _no_value(axes, center, cell.status or ("not known" if cell.seeds else "not run"))
                continue
            if bars:
                axes.bar(center, cell.mean, width * 0.9, color=color, alpha=0.75)
            else:
                axes.hlines(cell.mean, center - width * 0.4, center + width * 0.4, color, lw=2.5)
            seeds = list(cell.by_seed.values())
            # Dots of one cell stand side by side, so that equal values can be counted.
            step = width * 0.6 / max(1, len(seeds) - 1)
            across = [center + step * (place - (len(seeds) - 1) / 2) for place in range(len(seeds))]
            axes.scatter(
                across, seeds, s=22, zorder=3, linewidths=0.8,
                color=_INK if bars else color, edgecolors="white",
            )  # fmt: skip
            if bars and cell.relative is not None and _has_ratios(group):
                axes.annotate(
                    measure.pair_text(cell.relative), (center, max(*seeds, cell.mean)),
                    xytext=(0, 6), textcoords="offset points", ha="center", fontsize=9,
                )  # fmt: skip
    axes.set_xticks(range(len(group.parallels)), group.parallels)
    axes.set_xlim(-0.5, len(group.parallels) - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.margins(y=0.12)


def _phases(axes: Axes, group: Group) -> None:
    """Draw what share of a step each phase takes, a bar per cell."""
    from matplotlib.patches import Patch

    cells = [(parallel, amp) for parallel in group.parallels for amp in group.amps]
    for row, (parallel, amp) in enumerate(cells):
        shares = phase_shares(group, parallel, amp)
        if shares is None:
            axes.text(1, row, "no phases", va="center", fontsize=9, color="#666666")
            continue
        left = 0.0
        for name, share in shares.items():
            axes.barh(row, share, 0.78, left=left, color=_PHASE_COLORS[name])
            left += share
    axes.set_yticks(range(len(cells)), [f"{parallel}-{amp}" for parallel, amp in cells])
    axes.tick_params(axis="y", length=0, labelsize=9.5)
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.spines["left"].set_visible(False)
    axes.legend(
        handles=[Patch(color=color, label=name) for name, color in _PHASE_COLORS.items()],
        loc="lower left", bbox_to_anchor=(-0.02, 0.985), ncols=len(PHASES), frameon=False,
        fontsize=9.5, handlelength=1.0, columnspacing=1.2, borderpad=0.2,
    )  # fmt: skip


def _has_ratios(group: Group) -> bool:
    return len(group.amps) <= 3  # narrower bars leave no room for a number


def _no_value(axes: Axes, center: float, why: str) -> None:
    axes.text(
        center, 0.03, why, rotation=90, ha="center", va="bottom", fontsize=9,
        color="#999999", transform=axes.get_xaxis_transform(),
    )  # fmt: skip
