"""Fills the templates of a report: report.html, report.md and figure.svg."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from ninefold.numbers import capitalized, typeset
from ninefold.report.render import sections
from ninefold.report.render.figures import plot
from ninefold.report.render.matrix import markdown_matrix, matrix
from ninefold.report.render.tables import markdown
from ninefold.report.tree import MAX_SHOWN, Report
from ninefold.score import PHASES
from ninefold.tables import code, plain

FOLDER = Path(__file__).parent / "templates"


def page(report: Report) -> str:
    """Return the text of report.html; the same report gives the same bytes."""
    left_out = ("overlays", "sweep", "words")  # which are long, and whole in environment.json
    environment = {key: value for key, value in report.environment.items() if key not in left_out}
    return _render(
        "report.html.j2",
        **_shown(report, json.dumps(environment, indent=2, ensure_ascii=False, default=str)),
        phases=PHASES,
        style=Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
    )


def report_text(report: Report) -> str:
    """Return the text of report.md; the same report gives the same bytes."""
    shown = _shown(report)
    text = _render("report.md.j2", **shown, markdown=markdown, markdown_matrix=markdown_matrix)
    return re.sub(r"\n{3,}", "\n\n", f"{text.strip()}\n")


def figure(report: Report) -> str | None:
    """Return figure.svg: the plot of the first group; None where there is nothing to draw."""
    drawn = plot(report.groups[0]) if report.groups else None
    if drawn is None or report.answer.by_value:
        return None
    text = _render("figure.svg.j2", plot=drawn, title=report.title)
    return re.sub(r"var\(--\w+, (#\w+)\)", r"\1", text)  # not all programs know CSS variables


def _shown(report: Report, environment: str = "") -> dict[str, Any]:
    """What report.html and report.md show: sections in their order, and other groups as parts.

    First is the group of the answer, then those with the most runs, sorted by their conditions.
    A table of an answer by value stands for those of all groups. environment: as JSON; empty where
    it is not shown.
    """
    by_value = sections.answer_table(report.answer) if report.answer.by_value else None
    rest = sorted(report.groups[1:MAX_SHOWN], key=lambda group: group.order)
    groups = [] if by_value else [*report.groups[:1], *rest]
    found = [sections.of_group(group, report) for group in groups]
    drawn = [matrix(group) for group in groups]
    first = found[0] if found else []
    answer = [*first[:1], *sections.of_answer(report), *first[1:]]
    shown = len(report.groups if by_value else groups)
    return {
        "report": report,
        "by_value": by_value,
        "matrix": drawn[0] if drawn else None,
        "sections": sections.of_next(report) + answer,
        "parts": list(zip(groups, drawn, found, strict=True))[1:],
        "study": sections.of_study(report, shown, environment),
    }


def _render(name: str, **values: Any) -> str:
    """The text of a template with these values; in HTML and SVG all of them are escaped."""
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=select_autoescape(["html.j2", "svg.j2"], default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(capitalized=capitalized, code=code, plain=plain, typeset=typeset)
    return found
