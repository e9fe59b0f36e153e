"""The templates of a report's texts, and the filters that they share."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from ninefold.report.numbers import capitalized, typeset
from ninefold.report.render.markdown import code, plain

FOLDER = Path(__file__).parent / "templates"


def render(name: str, **values: Any) -> str:
    """Return the text of a template with these values; in HTML all of them are escaped."""
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=select_autoescape(["html.j2"], default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(capitalized=capitalized, code=code, plain=plain, typeset=typeset)
    return found
