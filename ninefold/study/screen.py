"""What a study tells while it runs: lines that stay, and on a terminal one that changes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence

from ninefold import progress
from ninefold.numbers import counted, score_text, three_digits, with_unit
from ninefold.result import Result

SILENCE = 60.0  # seconds without a line, after which there is one of what begins, in a pipe or file
NAMED = 9  # configurations that the first line names


class Screen:
    """Lines of a study and its runs. The study calls it between runs and turns, never during one.

    announces: whether runs print their own progress: each then has a line before it, and none
        after it.
    """

    def __init__(self, announces: bool = False) -> None:
        self._announces, self._told = announces, time.monotonic()
        self._bar = progress.bar(bar_format="{desc}", disable=announces or None)

    def begin(self, cells: Sequence[str]) -> None:
        """The first run or timing round may take minutes: say at once that there is something."""
        more = f" and {len(cells) - NAMED} more" if len(cells) > NAMED else ""
        self.note(f"{counted(cells, 'configuration')}: {', '.join(cells[:NAMED])}{more}")

    def running(self, what: str, left: float | None = None) -> None:
        """Something begins: `run 5 of 27  round 2  ddp-fp32 seed 1`, a turn.

        left: seconds that the study is expected to take from here.
        """
        line = _line(what, left)
        self._bar.set_description_str(line[: shutil.get_terminal_size().columns - 1])
        silent = self._bar.disable and time.monotonic() - self._told >= SILENCE
        if self._announces or silent:
            self.note(line)

    def ended(self, what: str, how: str = "", left: float | None = None) -> None:
        """What `running` announced has ended. how: see `how_ended`; left: as in `running`."""
        if not self._announces:
            self.note(_line("  ".join(filter(None, [what, how])), left))

    def note(self, text: str) -> None:
        """Print a line that stays."""
        with progress.bars_hidden():
            print(text, flush=True)
        self._told = time.monotonic()

    def close(self) -> None:
        """The study has ended, and its report follows; or it was interrupted."""
        self._bar.close()


def how_ended(result: Result | None) -> str:
    """How a run ended: `accuracy 98.50 %  1.23 s/epoch`, or its status; None: it left no result."""
    if result is None or result.status != "ok":
        return "failed" if result is None else result.status
    words, score = list[str](), result.scoring
    if result.score is not None:
        shown = with_unit(score_text(score.scale * result.score, score.mark), score.mark)
        words.append(f"{score.name} {shown}")
    if result.train_seconds is not None and result.epochs:
        words.append(f"{three_digits(result.train_seconds / result.epochs)} s/epoch")
    return "  ".join(words)


def _line(what: str, left: float | None) -> str:
    return f"{what}  |  about {progress.duration(left)} left" if left else what
