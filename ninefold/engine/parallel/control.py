"""One process on one device once more: the A/A control of a comparison."""

from __future__ import annotations

from dataclasses import dataclass

from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.none import Single


@dataclass(frozen=True)
class Control(Single):
    """The same as none. What differs between the two is noise of the measurement."""

    def no_op(self, context: RankContext) -> bool:
        return True

    def notes(self, context: RankContext) -> list[str]:
        return ["parallel=control is a no-op: it repeats none, as a check of the measurement."]
