"""`Answer`: what a study has shown, as values that the report, the console and `compare` render.

Field names and their order are keys of report.json.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ninefold.answer.cell import Cell
from ninefold.errors import one_line
from ninefold.numbers import between, number
from ninefold.progress import duration
from ninefold.stats.verdicts import Pair, Settings


@dataclass(frozen=True)
class NextStep:
    """What would make the answer surer. minutes: that it takes; None: not known."""

    command: str
    minutes: float | None
    text: str

    @property
    def takes(self) -> str:
        """How long it takes: `about 5 min`, empty where that is not known."""
        return "" if self.minutes is None else f"about {duration(60 * self.minutes)}"


@dataclass(frozen=True)
class AnswerTable:
    """A table that an answer rests on, as text; about: what it shows.

    whole: whether it has a row for each group, so that no group has a table or a picture of its
        own. best: what the row of the best is called; None where none is set apart.
    """

    title: str
    about: str
    columns: list[str]
    rows: list[list[str]]
    whole: bool = False
    best: str | None = None


@dataclass(frozen=True)
class LoopSettings:
    """A configuration in a PyTorch loop of one's own.

    run: a command. code: lines of Python. differs: what is not the same there.
    """

    run: str
    code: list[str]
    differs: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        said = [f"$ {self.run}", *self.code]
        return "\n".join([*said, *(f"# not the same: {each}" for each in self.differs)])


@dataclass(frozen=True)
class Answer:
    """The answer to the study's question.

    lead: the answer in at most 14 words.
    decided: whether `cell` is shown to be the one; of scores alone, whether none is open.
    cell: the configuration that the answer names; None where it names none.
    chance: the confidence that `cell` is within `same` of the fastest; None where none is told.
    reasons: what the lead rests on. caveats: what limits it.
    train: the command that trains `cell`; None where the answer is not decided.
    trains: sentences on what that command trains.
    settings: the same for a loop of one's own; None where it has no words for it.
    surer: None where more runs would change nothing.
    table: of what another question than that for the fastest cell is answered by.
    """

    lead: str
    decided: bool
    cell: Cell | str | None = None
    chance: float | None = None
    reasons: list[str] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)
    train: str | None = None
    trains: list[str] = field(default_factory=list)
    settings: LoopSettings | None = None
    surer: NextStep | None = None
    table: AnswerTable | None = None

    @property
    def next_command(self) -> str:
        """What the next command is for, how long it takes, and the command; empty without one."""
        if self.train:
            return f"train with it: {one_line(self.train)}"
        if (more := self.surer) is None:
            return ""
        return f"to be surer{more.takes and f' ({more.takes})'}: {one_line(more.command)}"

    @property
    def by_value(self) -> AnswerTable | None:
        """The table of a plain sweep, which stands for those of all its groups."""
        return self.table if self.table and self.table.whole else None


@dataclass(frozen=True)
class Compared:
    """How a configuration compares with the baseline: its speedup, or what its score is more.

    low, high: the interval of their pair. verdict: as of their pair, or of the safety of a score;
        "baseline" of itself.
    """

    value: float
    low: float | None
    high: float | None
    verdict: str

    @classmethod
    def of(cls, pair: Pair | None) -> Compared | None:
        """What a pair has shown; None where its speedup is not known."""
        if pair is None or pair.speedup is None:
            return None
        return cls(pair.speedup, pair.low, pair.high, pair.verdict)

    @property
    def interval(self) -> str:
        """The interval of a speedup as text: `1.20 to 1.27`, empty where it is not known."""
        return between(self.low, self.high, lambda end: number(end, 2), "")

    def sure(self, settings: Settings) -> str:
        """How sure a speedup is: `95 % interval 1.20 to 1.27`, or that it is not known yet."""
        known = f"{settings.confidence:.3g} % interval {self.interval}"
        return known if self.interval else "interval not known yet"
