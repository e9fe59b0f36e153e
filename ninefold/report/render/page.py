"""Writes report.html: one page that needs neither a network nor scripts."""

from __future__ import annotations

import base64
import hashlib
import json

from markupsafe import Markup

from ninefold.report.answer.tree import Report
from ninefold.report.render import sections
from ninefold.report.render.tables import GLYPHS
from ninefold.report.render.templates import FOLDER, render
from ninefold.report.render.text import parts
from ninefold.score import PHASES


def page(report: Report) -> str:
    """Return the text of report.html; the same report gives the same bytes."""
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    found = parts(report)
    # Overlays are whole configurations.
    environment = {key: value for key, value in report.environment.items() if key != "overlays"}
    return render(
        "report.html.j2",
        report=report,
        parts=found,
        study=sections.of_study(report, len(found)),
        environment=json.dumps(environment, indent=2, ensure_ascii=False, default=str),
        phases=PHASES,
        glyphs=GLYPHS,
        style=Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
