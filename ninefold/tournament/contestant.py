"""What takes turns, and what makes it: the protocols of a tournament."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ninefold.errors import Failure
from ninefold.tournament.plan import Asked, Turn
from ninefold.tournament.taken import TakenTurn


class Taken(NamedTuple):
    """How a turn was taken. seconds: of a timed step, of the slowest process. The others are as of
    `TakenTurn`; None where they are not known.
    """

    seconds: float
    begin: float | None = None
    end: float | None = None
    others: float | None = None


class Pace(NamedTuple):
    """Seconds of a step after the warm-up.

    step: of one that counts. wall: of any, what does not count included. late: seconds of the
    warm-up that are not taken from the time, such as those of a compiler.
    """

    step: float
    wall: float
    late: float = 0.0


WarmUp = Generator[Turn, Taken, Pace]


class Contestant(Protocol):
    """A training that waits, and trains only in `turn`.

    name: what it is called. processes: ids of its processes. steps: taken so far by these; None if
    it starts none, so that all have taken as many. waits: whether a GPU waits for its host: it has
    done nearly all of a step by the time that this is queued.
    """

    @property
    def name(self) -> str: ...

    @property
    def processes(self) -> list[int]: ...

    @property
    def steps(self) -> int | None: ...

    @property
    def waits(self) -> bool: ...

    def asks(self, step: float) -> Asked:
        """What a turn of it asks for. step: seconds of a step."""

    def warm_up(self, known: Pace | None) -> WarmUp:
        """Yield turns that do not count. known: its pace in the round before, if there was one."""

    def turn(self, turn: Turn) -> float:
        """Train, and return the seconds of a timed step. Raises Failure, or Ended."""

    def end(self, turns: Sequence[TakenTurn], stretch: float | None) -> None:
        """Note its turns of this round, and the seconds of a step alone. Raises Failure."""

    def close(self) -> None:
        """End what it started."""


@dataclass(frozen=True)
class Look:
    """What is known after some rounds.

    decided: whether further rounds could not change the answer. named: the best one so far. left:
    those that are to be measured further, if it is not decided; None: all.
    """

    decided: bool
    named: str | None = None
    left: Sequence[str] | None = None


class Ended(Exception):
    """What trains has ended while it had a turn. code: its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Entries(ABC):
    """Who takes part, and what is made of it. What is not abstract does nothing here.

    done: complete rounds.
    """

    done: int

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """Those that take part in the rounds to come."""

    @abstractmethod
    def start(self, left: Sequence[str], number: int) -> Sequence[Contestant]:
        """Start as many of `left` as may be alive together, in this order."""

    @abstractmethod
    def round_ended(self, number: int) -> None:
        """Count a complete round."""

    def warm(
        self, alive: Sequence[Contestant], takes: Mapping[str, float], own: float
    ) -> Sequence[str]:
        """Return who takes no turns after all.

        takes: seconds of a turn of each. own: seconds of the round that are not turns.
        """
        return []

    def agree(self, turn: Turn, taken: Taken) -> Taken:
        """Note a turn; return it as it is to count."""
        return taken

    def shows(self, number: int, nth: int, left: float) -> None:  # noqa: B027
        """Show that the nth turn of a round begins. left: seconds of turns in the round."""

    def drop(self, name: str, failure: Failure) -> None:
        """Go on without one that has failed; or raise the failure."""
        raise failure
