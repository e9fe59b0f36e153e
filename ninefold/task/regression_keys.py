"""The keys of task=regression alone."""

from typing import Literal

from ninefold.types import Positive, Section, String


class RegressionKeys(Section, kw_only=True):
    metric: Literal["rmse", "mae", "r2"]
    """What task=regression scores by."""
    unit: String | None
    """Unit of the targets of task=regression, such as m; null: none."""
    margin: Positive | None
    """What may be lost of task=regression's score, in its unit; null: of R2 0.01, of an error
    nothing, until report.margin is set."""
