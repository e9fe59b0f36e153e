"""How many rounds, or seeds, would decide what is open, if its mean and noise stay as they are."""

from __future__ import annotations

import math

CLEAR = 0.95  # half of an interval over the distance, from which on more decide, in nine of ten
OF_SEEDS = 0.75  # the same of few seeds, whose spread is hardly known
OF_BEST = 0.45  # the same of the best of several, where each of the others has to be decided


def number_needed(
    now: int,
    half: float,
    distance: float,
    most: int,
    clear: float = CLEAR,
    made: int | None = None,
) -> int | None:
    """Return the number in all at which an interval no longer reaches as far as `distance`.

    Returns None where that is more than `most`.

    now: rounds or seeds that the interval rests on. half: half of it, which shrinks with the root
    of their number. distance: from the mean to what it is held against. clear: half over distance,
    from which on more decide. made: rounds or seeds so far, also those that the interval lacks,
    which are added; None: it lacks none.
    """
    if not (math.isfinite(half) and distance > 0):
        return None
    made = now if made is None else made
    found = made - now + now * (half / (clear * distance)) ** 2
    return max(math.floor(found), made) + 1 if found < most else None
