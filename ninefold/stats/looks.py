"""How much of the level of a study each look at its verdicts spends (Lan and DeMets 1983).

What is looked at several times has several chances to be wrong. A look after a share s of the time
has spent s^2 of the level with those before it: early ones little, and none for looks that are not
made. So intervals at the levels of their looks hold in all of them together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

POWER = 2.0
RESERVE = 0.05  # of the level: for looks after the time was up, as of a study that is given more


def spends(shares: Sequence[float]) -> float:
    """Return the share of the level that the last of some looks spends, 0 to 1.

    shares: of the time that had passed at each look.
    """
    before, late, spent = 0.0, 0, 0.0
    for share in shares:
        if before < 1:
            reached = max(min(share, 1.0), before)
            spent = (1 - RESERVE) * (reached**POWER - before**POWER)
            before = reached
        else:
            late += 1
            spent = RESERVE / 2**late
    return spent


def spends_of(looks: Mapping[int, float], rounds: int) -> float:
    """Return the share of the level of what is said after so many rounds.

    looks: the share of the time at each, by the rounds that were complete. What is said after other
    rounds, as of a comparison that was interrupted, is said as at its end.
    """
    shares = [looks[number] for number in sorted(looks) if number <= rounds]
    return spends(shares if rounds in looks else [*shares, 1.0])
