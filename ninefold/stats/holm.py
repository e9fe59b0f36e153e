"""Holm's step-down correction (1979) for many tests."""

from __future__ import annotations

import numpy as np

from ninefold.stats.student import Array


def adjusted(p: Array, looks: float = 1) -> Array:
    """Return p adjusted over those that are not nan, times `looks`, of which each has an equal part
    of the level; at most 1, nan stays nan.
    """
    order = np.argsort(p)  # nan last
    found = np.empty_like(p)
    found[order] = np.maximum.accumulate(p[order] * _steps(p)) * looks
    return np.minimum(found, 1.0)


def divisors(p: Array, level: float) -> Array:
    """Return by what Holm divides the level for each p; after the first that fails, as for that.

    A bound at level / divisor lies beyond the tested value exactly where the adjusted p <= level.
    Equal p have equal divisors, as they have equal adjusted p.
    """
    order = np.argsort(p)
    steps = _steps(p)
    failed = ~(p[order] * steps <= level)
    if failed.any():
        steps[failed.argmax() :] = steps[failed.argmax()]
    found = np.empty_like(steps)
    found[order] = steps
    return np.array([found[p == one].max(initial=own) for one, own in zip(p, found, strict=True)])


def _steps(p: Array) -> Array:
    """The number of tests left at each step, at least 1: float64, of p's length."""
    left: Array = np.maximum(np.isfinite(p).sum() - np.arange(len(p)), 1).astype(np.float64)
    return left
