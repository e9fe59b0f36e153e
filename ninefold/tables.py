"""Rows as an HTML table, and as a pandas.DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ninefold.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


def html_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return rows of any text below their header as an HTML table."""
    lines = [
        "".join(
            f"<{tag} style='text-align:left;padding:.1em .8em .1em 0'>{escape(str(text))}</{tag}>"
            for text in row
        )
        for tag, row in [("th", header), *(("td", row) for row in rows)]
    ]
    return f"<table style='color:inherit'>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def data_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a pandas.DataFrame. Raises ConfigError where pandas is not installed."""
    try:
        import pandas as pd
    except ImportError:
        raise ConfigError(
            "pandas", "missing", "to_frame() needs it", "rows() does not", "pip install pandas"
        ) from None
    return pd.DataFrame(rows)
