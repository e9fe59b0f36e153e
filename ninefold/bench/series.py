"""The error rate of a series of judgements: at most 5 % of what is kept is noise, in the mean.

Each judgement is a test, at a level that the series can afford: alpha-investing (Foster and Stine
2008). It has a wealth, of which a test spends a part, the larger the sooner it comes after a change
that was kept; what is kept earns some back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ninefold.bench.command import Command
from ninefold.bench.score import KEEP, Judgement
from ninefold.errors import ConfigError
from ninefold.files import opener, read_text
from ninefold.waits import locked

ALPHA = 0.05  # of what is kept, the share that is noise in the mean
OPTION = "--series"


def level_of_next(kept: Sequence[bool]) -> float:
    """Return the level of the next test. kept: of each test before, whether its change was."""
    wealth, last = ALPHA * (1 - ALPHA), 0
    for number, was_kept in enumerate(kept, start=1):
        wealth += ALPHA if was_kept else -_spends(wealth, number - last)
        last = number if was_kept else last
    spends = _spends(wealth, len(kept) + 1 - last)
    return spends / (1 + spends)


def _spends(wealth: float, place: int) -> float:
    """What of its wealth a test spends. place: of the tests since a change was kept, from 1."""
    return wealth / (1 + place)


@dataclass
class Series:
    """The judgements of a file that is open. kept: of each, whether its change was."""

    file: IO[str]
    kept: list[bool]

    @property
    def level(self) -> float:
        """Of the next judgement."""
        return level_of_next(self.kept)

    def add(self, judgement: Judgement, commands: Sequence[Command]) -> str:
        """Add a judgement to the file; return what the series has come to."""
        made = {"verdict": judgement.verdict, "level": self.level, "seeds": judgement.seeds}
        line = json.dumps({**made, "commands": [command.text for command in commands]})
        self.file.write(f"{line}\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        self.kept.append(judgement.verdict == KEEP)
        kept, most = sum(self.kept), f"{ALPHA * sum(self.kept):.2g} at most"
        of = len(self.kept)
        return f"This series: {kept} of {of} kept, of which {most} are noise in the mean."


@contextmanager
def opened(path: Path | None) -> Iterator[Series | None]:
    """The series of a file, which is made where there is none, alone while the block runs.

    The level of a judgement follows from all before: so one bench at a time adds one. path: None:
    there is no series. Raises ConfigError.
    """
    if path is None:
        yield None
        return
    with open(path, "a", encoding="utf-8", opener=opener) as file:
        if not locked(file):
            wrong, do = "another bench adds a judgement to it", "start again when that has ended"
            raise ConfigError(OPTION, path, wrong, "one at a time may", do)
        try:
            text = read_text(path)
            lines = filter(str.strip, text.splitlines())
            series = Series(file, [json.loads(line)["verdict"] == KEEP for line in lines])
            if text and not text.endswith("\n"):  # as an editor may have left it
                file.write("\n")
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            wrong = f"it cannot be read, or a line of it is no judgement ({error})"
            raise ConfigError(OPTION, path, wrong, "JSON is expected", "name a new file") from None
        yield series
