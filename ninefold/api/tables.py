"""Rows as text for a terminal, and as a pandas.DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ninefold.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with the columns below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def data_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a pandas.DataFrame. Raises ConfigError where pandas is not installed."""
    try:
        import pandas as pd
    except ImportError:
        raise ConfigError(
            "pandas", "missing", "to_frame() needs it; rows() does not; pip install pandas"
        ) from None
    return pd.DataFrame(rows)
