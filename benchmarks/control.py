"""Draws the A/A test of every recorded study: docs/images/control.svg.

    python -m benchmarks.control

On one device dp does the work of none, so the difference of their times is the measurement's.

The other picture, docs/images/report.png, is the page of a recording, as a browser draws it:

    python -m ninefold.report experiments/nine_way/2*
    chromium --headless --hide-scrollbars --force-device-scale-factor=1.5 --window-size=1000,700 \\
        --screenshot=docs/images/report.png experiments/nine_way/2*/report.html
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import NamedTuple

from ninefold import report

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "control.svg"
FOUND = re.compile(
    r"A/A test (passed|failed|inconclusive).*is ([\d.]+) times as fast "
    r"\(95 % interval ([\d.]+) to ([\d.]+)\)"
)
COLORS = {"passed": "#2e7d32", "failed": "#b3400b", "inconclusive": "#50566a"}
LEFT, WIDTH, ROW, TOP = 150, 440, 36, 34
LIMIT, SAME = 10, 2  # percent: the ends of the axis, and what counts as equal
STYLE = """text { font: 13px system-ui, sans-serif; fill: #1b1d22 }
.small { font-size: 11px; fill: #50566a } .middle { text-anchor: middle }"""


class Check(NamedTuple):
    """By how many percent dp is faster, with its 95 % interval."""

    study: str
    state: str
    middle: float
    low: float
    high: float


def checks() -> list[Check]:
    found = []
    for folder in sorted(ROOT.glob("experiments/*/20*")):
        said = report.read(folder, typed="").report.groups[0].control
        if check := FOUND.match("".join(said)):
            state, *speedups = check.groups()
            shares = (100 * (float(each) - 1) for each in speedups)
            found.append(Check(folder.parent.name, state, *shares))
    return found


def place(percent: float) -> float:
    return round(LEFT + WIDTH * (percent + LIMIT) / (2 * LIMIT), 1)


def written(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>'


def line(x: tuple[float, float], y: tuple[float, float], color: str, width: int = 1) -> str:
    ends = f'x1="{x[0]}" x2="{x[1]}" y1="{y[0]}" y2="{y[1]}"'
    return f'<line {ends} stroke="{color}" stroke-width="{width}"/>'


def drawn(rows: list[Check]) -> str:
    """The picture as SVG."""
    bottom, zero, band = TOP + ROW * len(rows), place(0), place(SAME) - place(-SAME)
    parts = [
        f'<rect x="{place(-SAME)}" y="{TOP}" width="{band}" height="{bottom - TOP}" '
        'fill="#e8eaef"/>',
        line((zero, zero), (TOP, bottom), "#9aa2b1"),
        written(zero, 20, "dp is faster than none by, %", "small middle"),
    ]
    for percent in (-LIMIT, -5, -SAME, 0, SAME, 5, LIMIT):
        number = f"{percent:+d}" if percent else "0"
        parts.append(written(place(percent), bottom + 18, number, "small middle"))
    for row_number, row in enumerate(rows):
        y, color = TOP + ROW * row_number + ROW // 2, COLORS[row.state]
        parts += [
            written(12, y, row.study),
            written(12, y + 13, row.state, "small"),
            line((place(row.low), place(row.high)), (y, y), color, 2),
            f'<circle cx="{place(row.middle)}" cy="{y}" r="5" fill="{color}"/>',
        ]
    told = "; ".join(f"{r.study} {r.middle:+.1f} % ({r.low:+.1f} to {r.high:+.1f})" for r in rows)
    size = f'viewBox="0 0 {LEFT + WIDTH + 20} {bottom + 32}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(told)}</title><style>{STYLE}</style>",
            '<rect width="100%" height="100%" fill="#fff"/>',
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawn(checks()), encoding="utf-8")
