"""How the time of a comparison is divided: rounds, their turns, long stretches, looks.

Everything here is a function of what is known. benchmarks/LOG.md has what the constants were
measured by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ninefold.tournament.plan import MIN_TURNS, Turn, stretch_steps, turn_counts
from ninefold.types import MAX_TURNS

LOOKS = (3, 4, 6, 8, 12, 20)  # complete rounds after which it is seen whether the answer is known
MAX_ROUNDS = LOOKS[-1]
MOST_ROUNDS = 12  # of a study, which starts new processes in each
LEAST_ROUNDS = LOOKS[0]  # that an answer takes, where there is time for more
MIN_BLOCKS = 24  # if fewer fit into the time, each is a round


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The time of a comparison, and how it is divided.

    seconds: of all. rounds: at most. usual: rounds that the time is divided into, if starts leave
        time for it. least: rounds that it makes room for.
    late: seconds by which a round before the `least`th may end late; late_share: the same, as a
        share of the round before. room: share of a planned round that has to be left for another
        one; room_of_last: the same, of the round before. whole: whether what is left is divided
        into whole rounds.
    turns: of each contestant in a round; None: as many as there is time for, and
        `turns_at_least`. equal: all have as many, which fit into the time `usual`
        times.
    alike: those whose steps differ by this factor at most have equal numbers of them in a turn.
    cut: seconds after which a contestant takes no more turns in a round once it has `least_turns`;
        None: the round is left, and does not count.
    stretch_share: of the time so far that long stretches may take; infinite: all have one, beside
        the seconds of the round. stretch_rounds: one round of so many has them.
    early: whether it is looked after each round where there is time for few.
    extends: share of the time that a further round may take for those whose turns were disturbed.
    """

    seconds: float
    rounds: int = MAX_ROUNDS
    usual: int = MAX_ROUNDS
    least: int = LEAST_ROUNDS
    late: float = 0.0
    late_share: float = 0.0
    room: float = 0.0
    room_of_last: float = 0.0
    whole: bool = False
    turns: int | None = None
    turns_at_least: int = 0
    equal: bool = False
    alike: float = 1.25
    cut: float = math.inf
    least_turns: int | None = 1
    stretch_share: float = 0.0
    stretch_rounds: int = 1
    early: bool = False
    extends: float = 0.0

    def planned(self, overhead: float, share: float = 1.0) -> float:
        """Return the seconds of a round, before what is left is divided into whole rounds.

        `usual` rounds fill the time. Where that leaves little of it for turns, they take as long as
        the rest of a round, unless fewer than `least` rounds would fit. A round of fewer
        contestants is as much shorter: one that is out gives the others rounds, which decide more
        than longer ones.

        overhead: seconds of the round that are not turns. share: of the contestants that are left.
        """
        usual = max(share * self.seconds / self.usual, 2 * overhead)
        return max(min(usual, self.seconds / self.least), 1e-9)

    def step_to_plan(self, name: str, steps: Mapping[str, float]) -> float:
        """Return the seconds of a step by which a turn is planned: of those about as fast, of the
        fastest, so that their turns have equal numbers of steps.
        """
        return min(each for each in steps.values() if self.alike * each >= steps[name])

    def round_seconds(self, done: int, left: float, overhead: float, share: float = 1.0) -> float:
        """Return the seconds of a round, after so many, with so many seconds left."""
        planned = self.planned(overhead, share)
        if not self.whole:
            return planned
        return left / max(1, min(round(left / planned), self.rounds - done))

    def fits(
        self, done: int, left: float, last: float, least: float | None, planned: float
    ) -> bool:
        """Return whether there is time for another round.

        Before the `least`th it may end late: few rounds decide little.

        left: seconds. last: those of the round before. least: those of the shortest round; None:
        not known, or its turns are given. planned: as of `planned`.
        """
        if done == 0 or self.equal:  # a round that is cut short does not count
            return left > 0 or done == 0
        early = done < self.least
        left += (self.late + self.late_share * last) if early else 0.0
        room = 0.0 if early or least is None else self.room * planned
        if self.room_of_last:
            return left >= self.room_of_last * last
        return left >= room and left >= (last if least is None else least)

    def looks_early(self, done: int, last: float) -> bool:
        """Return whether it is looked after few rounds, as there is time for few."""
        return self.early and done < LEAST_ROUNDS and last > self.seconds / (LEAST_ROUNDS + 1)

    def counts(
        self, takes: Mapping[str, float], training: float, left: float, before: int
    ) -> dict[str, int]:
        """Return how many turns each contestant has in a round.

        They are set before it: that one has fewer because some took long would make its mean too
        large. takes: seconds of a turn. training: seconds of all turns of the round. left: of the
        time. before: turns of each in the round before; 0: there was none.
        """
        if self.equal:
            return dict.fromkeys(takes, before or blocks_of_round(int(left / sum(takes.values()))))
        if self.turns is not None:
            return dict.fromkeys(takes, self.turns)
        found = turn_counts(takes, max(training, 1e-9))
        return {name: max(count, self.turns_at_least) for name, count in found.items()}

    def stretches(
        self,
        wanted: Sequence[str],
        takes: Mapping[str, float],
        number: int,
        spent: float,
        elapsed: float,
        always: str | None,
    ) -> tuple[list[str], float]:
        """Return who of `wanted` trains a long stretch in a round, and the seconds that they take.

        As many as make stretches a share of the time so far, in this order. takes: seconds of each.
        spent: in stretches so far. elapsed: seconds with this round. always: who has one anyway.
        """
        if not self.stretch_share or number % self.stretch_rounds:
            return [], 0.0
        if self.stretch_share == math.inf:
            return list(wanted), 0.0
        chosen, long = list[str](), 0.0
        for name in wanted:
            if spent + long + takes[name] > self.stretch_share * elapsed and name != always:
                break  # it is the next in a later round
            chosen.append(name)
            long += takes[name]
        return chosen, long


def blocks_of_round(fit: int) -> int:
    """How many blocks a round has if so many fit into the time: 1, or even, for 10 to 20 rounds."""
    return 1 if fit < MIN_BLOCKS else min(2 * math.ceil(fit / (2 * MAX_ROUNDS)), MAX_TURNS)


def stretch_seconds(turn: Turn, step: float) -> float:
    """Seconds of a long stretch with its lead. step: of a step."""
    return step * (turn.lead + stretch_steps(step))


def shortest(overhead: float, takes: Mapping[str, float]) -> float:
    """Seconds of the shortest round. takes: seconds of a turn of each contestant."""
    return overhead + MIN_TURNS * sum(takes.values())
