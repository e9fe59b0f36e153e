"""How the time of a comparison is divided: rounds, their turns, looks.

Everything here is a function of what is known. benchmarks/log/turns.md has what the constants were
measured by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ninefold.tournament.plan import MIN_TURNS
from ninefold.types import LEAST_ROUNDS, MAX_TURNS

LOOKS = (LEAST_ROUNDS, 4, 6, 8, 12, 20)  # complete rounds after which it is seen what is known
MAX_ROUNDS = LOOKS[-1]
MOST_ROUNDS = 12  # of a study, which starts new processes in each
FEWEST = 6  # rounds that the time is divided into, though starts take much of each
MIN_BLOCKS = 24  # if fewer fit into the time, each is a round
LATE = 1.5  # times its seconds that a comparison may take for its first rounds
CUT = 4 / 3  # times its seconds after which a round has MIN_TURNS turns


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The time of a comparison, and how it is divided.

    seconds: of all. rounds: at most. usual: rounds that the time is divided into, if starts leave
        time for it.
    turns: of each contestant in a round; None: as many as there is time for. turns_at_least: then,
        if FEWEST rounds of them fit.
    one_process: whether all rounds are of one process, which starts nothing: all have as many
        turns.
    with_starts: whether starts are a part of what the first rounds may take.
    longest: seconds that a round is planned to take at most.
    """

    seconds: float
    rounds: int = MAX_ROUNDS
    usual: int = MAX_ROUNDS
    turns: int | None = None
    turns_at_least: int = MIN_TURNS
    one_process: bool = False
    with_starts: bool = False
    longest: float = math.inf

    def planned(self, overhead: float, share: float = 1.0) -> float:
        """Return the seconds of a round, before what is left is divided into whole rounds.

        `usual` rounds fill the time. Where that leaves little of it for turns, they take as long as
        the rest of a round, unless fewer than FEWEST rounds would fit: few rounds decide little. A
        round of fewer contestants is as much shorter.

        overhead: seconds of the round that are not turns. share: of the contestants that are left.
        """
        usual = max(share * self.seconds / self.usual, 2 * overhead)
        most = max(self.seconds / FEWEST, 1.25 * overhead)
        return max(min(usual, most, self.longest), 1e-9)

    def round_seconds(self, done: int, left: float, overhead: float, share: float = 1.0) -> float:
        """Return the seconds of a round, after so many, with so many seconds left."""
        planned = self.planned(overhead, share)
        return max(left, 0.0) / max(1, min(round(left / planned), self.rounds - done))

    def fits(
        self, done: int, elapsed: float, trained: float, overhead: float, least: float, share: float
    ) -> bool:
        """Return whether there is time for another round.

        The first LEAST_ROUNDS, which an answer takes, may end late, if all of them do so in time.

        elapsed: seconds; trained: those in turns. overhead: seconds of a round that are not turns.
        least: those of the shortest round, in one process of the one before. share: as of
        `planned`.
        """
        left = self.seconds - elapsed
        if done == 0 or self.one_process:
            return left >= least or done == 0
        if done < LEAST_ROUNDS:
            spent, each = (elapsed, least) if self.with_starts else (trained, least - overhead)
            return spent + (LEAST_ROUNDS - done) * each <= LATE * self.seconds
        return left >= max(least, self.planned(overhead, share) / 2)

    def count(self, takes: Mapping[str, float], training: float, left: float, before: int) -> int:
        """Return how many turns each contestant has in a round.

        takes: seconds of a turn. training: seconds of all turns of the round. left: of the time.
        before: turns of each in the round before; 0: there was none.
        """
        together = sum(takes.values())
        if self.turns is not None:
            return self.turns
        if self.one_process:
            return before or blocks_of_round(int(left / together))
        pairs = min(round(training / (2 * together)), MAX_TURNS // 2)
        fit = int(self.seconds / FEWEST / together)
        return max(2 * pairs, min(self.turns_at_least, fit - fit % 2), MIN_TURNS)


def blocks_of_round(fit: int) -> int:
    """How many blocks a round has if so many fit into the time: 1, or even, for 10 to 20 rounds."""
    return 1 if fit < MIN_BLOCKS else min(2 * math.ceil(fit / (2 * MAX_ROUNDS)), MAX_TURNS)


def shortest(overhead: float, takes: Mapping[str, float]) -> float:
    """Seconds of the shortest round. takes: seconds of a turn of each contestant."""
    return overhead + MIN_TURNS * sum(takes.values())
