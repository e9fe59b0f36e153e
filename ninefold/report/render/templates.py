"""The templates of a report's texts, and the filters that they share."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from ninefold.errors import one_line
from ninefold.report.numbers import (
    MISSING,
    capitalized,
    counted,
    in_words,
    number,
    score_text,
    signed,
    small,
    times,
    typeset,
    with_article,
)
from ninefold.report.render.markdown import aligned, code, grid, lowered, plain

FOLDER = Path(__file__).parent / "templates"
_FILTERS: tuple[Any, ...] = (
    *(aligned, capitalized, code, counted, in_words, lowered, number, one_line, plain),
    *(score_text, signed, small, times, typeset, with_article),
)


def render(name: str, **values: Any) -> str:
    """Return the text of a template with these values; in HTML all of them are escaped."""
    return _environment().get_template(name).render(missing=MISSING, grid=grid, **values)


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=select_autoescape(["html.j2"], default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update({each.__name__: each for each in _FILTERS})
    return found
