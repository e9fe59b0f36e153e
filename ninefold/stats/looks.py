"""At which level each look at the verdicts of a study is (Lan and DeMets 1983).

What is looked at several times has several chances to be wrong. A look after a share s of the time
has spent s^2 of the level with those before it: early ones little, and none for looks that are not
made. A reserve is kept for a comparison that is resumed: of the level 1 - RESERVE is spent at the
end of the time, and 1 - RESERVE / s at s times that. Looks share the rounds before them, so what is
wrong at one is often wrong at the next, and costs once: looks are taken as values of one Brownian
motion after these shares of the time, of which each is computed from the one before (Armitage,
McPherson and Rowe 1969).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from scipy import special

from ninefold.stats.student import Array

POWER = 2.0
RESERVE = 0.3  # of the level: for looks after the time was up
CLOSE = 1e-3  # looks that are nearer to each other are taken as independent, which asks more
NODES = 100
FARTHEST = 12.0  # in standard deviations: no bound is beyond


def level_at(shares: Sequence[float], level: float) -> float:
    """Return the level of the last of some looks, with which all of them have `level` together.

    shares: of the time that had passed at each look; none: it is the only one. level: of one test.
    """
    return _levels(tuple(shares), level)[-1] if shares else level


def looks_until(looks: Mapping[int, float], rounds: int) -> Iterator[tuple[int, tuple[float, ...]]]:
    """Yield the looks that what is said after so many rounds rests on, the last one at these.

    Each is the rounds that were complete, and the shares of the time at the looks up to it. looks:
    the share of the time at each, by its rounds. What is said after other rounds, as of a
    comparison that was interrupted, is said as at its end.
    """
    known = {number: share for number, share in looks.items() if number <= rounds}
    known.setdefault(rounds, max([1.0, *known.values()]))
    shares = tuple(known[number] for number in sorted(known))
    for place, number in enumerate(sorted(known)):
        yield number, shares[: place + 1]


def _spent(share: float, level: float) -> float:
    """What the looks up to this share of the time have spent of the level."""
    return level * (1 - RESERVE) * share**POWER if share < 1 else level * (1 - RESERVE / share)


@lru_cache(maxsize=1000)
def _levels(shares: Sequence[float], level: float) -> Sequence[float]:
    """The level of each look."""
    found, at, spent = list[float](), 0.0, 0.0
    going, chance = np.zeros(1), np.ones(1)  # where the motion is, if no look was beyond its bound
    for now in shares:
        spends = max(_spent(now, level) - spent, 0.0)
        spent += spends
        if now - at < CLOSE or spends == 0:
            found.append(spends)
            continue
        step = math.sqrt(now - at)
        bound = _bound(going, chance, step, spends)
        found.append(float(2 * special.ndtr(-bound / math.sqrt(now))))
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        apart = (bound * nodes[:, None] - going) / step
        density = np.exp(-(apart**2) / 2) / (step * math.sqrt(2 * math.pi))
        going, chance, at = bound * nodes, bound * weights * (density @ chance), now
    return found


def _bound(going: Array, chance: Array, step: float, spends: float) -> float:
    """The bound that the motion passes, on either side, with the chance `spends`."""
    low, high = 0.0, FARTHEST
    for _ in range(50):
        bound = (low + high) / 2
        beyond = 2 * chance @ special.ndtr((going - bound) / step)
        low, high = (bound, high) if beyond > spends else (low, bound)
    return high
