"""Student's t distribution, of scipy.special: importing scipy.stats takes half a second."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]


def above(t: npt.ArrayLike, freedom: npt.ArrayLike) -> Array:
    """The probability of a value above `t`, with so many degrees of freedom; NaN for a NaN."""
    return np.asarray(special.stdtr(freedom, np.negative(t)))


def quantile(level: npt.ArrayLike, freedom: npt.ArrayLike) -> Array:
    """The t with a probability of `level`, over 0, above it; NaN for a NaN."""
    return np.asarray(-special.stdtrit(freedom, level))
