"""The rank that all others wait for: what the ranks' own work in a step takes, without waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

LEAST_STEPS = 8  # that have to be seen
NEARLY_ALL = 0.9  # share of them in which the same rank takes the longest
LONGER = 1.1  # times as long as the others, from which on that is told


def own_seconds(answers: Sequence[Mapping[str, Any]]) -> Iterator[list[float]]:
    """Seconds of each rank's own work, of each step in which all have seen how long they waited.

    answers: of the ranks at the end of a turn.
    """
    for number, waited in enumerate(zip(*(answer["waited"] for answer in answers), strict=False)):
        if None not in waited:
            seconds = [answer["seconds"][number] for answer in answers]
            yield [each - wait for each, wait in zip(seconds, waited, strict=True)]


def slow_rank(steps: Sequence[Sequence[float]]) -> tuple[int, float] | None:
    """The rank that all others wait for, and how many times as long as theirs its steps take.

    steps: seconds of each rank's own work, of each step. None: there is none, or it is not clear.
    """
    longest = Counter(max(range(len(of)), key=of.__getitem__) for of in steps if len(of) > 1)
    rank, count = max(longest.items(), key=lambda each: each[1], default=(0, 0))
    if count < max(LEAST_STEPS, NEARLY_ALL * len(steps)):
        return None
    times = median(of[rank] / median([*of[:rank], *of[rank + 1 :]]) for of in steps)
    return (rank, times) if times > LONGER else None


def sentences(own_work: Mapping[str, Sequence[Sequence[float]]]) -> Iterator[str]:
    """One line for each rank that is slow, in one command or several. own_work: by command."""
    by_rank = defaultdict[int, dict[str, str]](dict)
    for name, steps in own_work.items():
        if slow := slow_rank(steps):
            by_rank[slow[0]][name] = f"{slow[1]:.2g}"
    for rank, times in by_rank.items():
        yield (
            f"In {' and '.join(times)} rank {rank} waits for nobody and all wait for it: without "
            f"waits its steps take {' and '.join(times.values())} times as long."
        )
