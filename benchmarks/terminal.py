"""Records commands as a terminal would show them, in one SVG without fonts or scripts of others.

    python -m benchmarks.terminal docs/images/terminal.svg \\
        "ninefold compare parallel=none,ddp amp=fp32,bf16 study.time_budget=1"

Each command runs in a shell, in the folder where this does. Its lines appear in the picture in the
order and rhythm in which they were printed, so many times as fast that all takes PLAYED seconds.
Where a viewer shows no animation, or its reader wants none, all lines are there at once.

docs/images/report.png is the page of a recording, as a browser draws it:

    python -m ninefold.report experiments/nine_way/2*
    chromium --headless --hide-scrollbars --force-device-scale-factor=1.5 --window-size=1000,700 \\
        --screenshot=docs/images/report.png experiments/nine_way/2*/report.html
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from html import escape
from pathlib import Path

PLAYED, COLUMNS = 10.0, 112  # seconds, characters of a line
WIDTH, HEIGHT, EDGE, BAR = 7.83, 18, 16, 34  # of a character and a line of 13 px, margin, title
STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
       fill: #d5d9e0; white-space: pre }
.typed { fill: #7ee2a8 } .said { fill: #fff; font-weight: 700 } .title { fill: #9aa2b1 }
@media (prefers-reduced-motion: no-preference) { .line { animation: appear 1ms both } }
@keyframes appear { from { visibility: hidden } to { visibility: visible } }
"""
SAID = re.compile(r"(answer: )?(Use |Not decided|Too few|In this process)")  # an answer begins


def recorded(commands: list[str]) -> list[tuple[float, str, str]]:
    """The lines that the commands print: seconds from the start, class, text."""
    start, lines = time.monotonic(), list[tuple[float, str, str]]()
    for command in commands:
        lines.append((time.monotonic() - start, "typed", f"$ {command}"))
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        for text in process.stdout:
            kind, text = "said" if SAID.match(text) else "", text.rstrip().expandtabs()
            text = text.replace(f"{Path.cwd()}/", "")
            for at in range(0, max(1, len(text)), COLUMNS):
                lines.append((time.monotonic() - start, kind, text[at : at + COLUMNS]))
        if process.wait() != 0:
            raise SystemExit(f"{command} ended with {process.returncode}: {lines[-1][2]}")
    return lines


def drawn(lines: list[tuple[float, str, str]]) -> str:
    """The lines as SVG."""
    width = round(2 * EDGE + WIDTH * max(len(text) for _, _, text in lines))
    height = BAR + EDGE + HEIGHT * len(lines)
    took = max(lines[-1][0], 1e-9)
    title = f"{took:.0f} s, played {took / PLAYED:.0f} times as fast" if took > PLAYED else ""
    rows = "\n".join(
        f'<text class="line {kind}" x="{EDGE}" y="{BAR + HEIGHT * (number + 1) - 5}" '
        f'style="animation-delay:{min(1, PLAYED / took) * seconds:.2f}s">{escape(text)}</text>'
        for number, (seconds, kind, text) in enumerate(lines)
    )
    dots = "".join(
        f'<circle cx="{EDGE + 6 + 18 * n}" cy="17" r="5.5" fill="#4b515e"/>' for n in range(3)
    )
    said = escape(" ".join(text for _, kind, text in lines if kind == "said"))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"
 width="{width}" role="img" xml:space="preserve"><title>A terminal: {said}</title>
<style>{STYLE}</style>
<rect width="{width}" height="{height}" rx="8" fill="#1b1d22"/>{dots}
<text class="title" x="{width - EDGE}" y="21" text-anchor="end">{title}</text>
{rows}
</svg>
"""


def main(path: str, *commands: str) -> None:
    Path(path).write_text(drawn(recorded([*commands])), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
