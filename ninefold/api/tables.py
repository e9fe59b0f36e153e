"""Rows as a pandas.DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ninefold.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


def data_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a pandas.DataFrame. Raises ConfigError where pandas is not installed."""
    try:
        import pandas as pd
    except ImportError:
        raise ConfigError(
            "pandas", "missing", "to_frame() needs it; rows() does not; pip install pandas"
        ) from None
    return pd.DataFrame(rows)
