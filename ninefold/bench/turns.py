"""Which steps of a turn count, and what a step of it took."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

ORDINARY = 0.5  # share of a process's steps from which on what marks them is part of a step
SEEN = 8  # steps by which that is judged, at least
MARKS = (
    "an evaluation",
    "a new pass over a loader",
    "torch.save",
    "another optimizer",
    "a step that a GradScaler skipped",
)


class Marks:
    """Decides which steps are left out: those in which an event of one of MARKS happened.

    An event that is in most steps of a process is taken as a part of training: its steps count.

    marking: the events whose steps are left out. The caller's set, from which such an event is
        removed, so that processes of later rounds count its steps too.
    """

    def __init__(self, marking: set[str]) -> None:
        self.marking = marking
        self._steps, self._seen = 0, Counter[str]()

    def of(self, answers: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """What the steps contained that the ranks took, by their number.

        A step in which any rank did something else counts in none: the others waited for it.
        """
        marked = {int(n): what for answer in answers for n, what in answer["marks"].items()}
        self._steps += len(answers[0]["seconds"])
        self._seen.update(marked.values())
        if self._steps >= SEEN:
            most = ORDINARY * self._steps
            if sum(self._seen[what] for what in self.marking) > most:
                self.marking -= {what for what, n in self._seen.items() if n > most / 2}
        return {n: what for n, what in marked.items() if what in self.marking}


class Taken:
    """A turn, or as much of it as was taken so far.

    begin, end: when. steps: that count. marked: seconds of those that do not, by what they contain.
    """

    def __init__(self) -> None:
        self.begin = self.end = time.time()
        self.steps = 0
        self.marked = defaultdict[str, list[float]](list)
        self._seconds = defaultdict[int, float](float)  # by rank

    def add(self, answers: Sequence[Mapping[str, Any]], marks: Marks) -> None:
        """Count what the ranks took for an order."""
        marked = marks.of(answers)
        kept = [n for n in range(len(answers[0]["seconds"])) if n not in marked]
        for rank, answer in enumerate(answers):
            self._seconds[rank] += sum(answer["seconds"][n] for n in kept)
        for number, what in marked.items():
            self.marked[what].append(max(answer["seconds"][number] for answer in answers))
        self.steps += len(kept)

    @property
    def seconds(self) -> float:
        """Per step that counts, of the slowest rank."""
        return max(self._seconds.values()) / self.steps
