"""What is shown while commands train: on a terminal a line that changes, elsewhere one line."""

from __future__ import annotations

import math
import shutil
import sys
import time

from ninefold import progress
from ninefold.numbers import counted


class ProgressLine:
    """A line on stderr with what is under way, and how much of the time is up."""

    def __init__(self, budget: float) -> None:
        """budget: seconds."""
        self._began, self._budget = time.monotonic(), budget
        self._shown = "commands start"
        size = shutil.get_terminal_size()  # of a terminal that does not know it 80 by 24
        self._bar = progress.bar(
            desc=self._shown,
            total=math.ceil(budget),
            bar_format="{desc}; {n_fmt} of {total_fmt} s",
            ncols=size.columns - 1,
            nrows=size.lines,
        )

    def shows(self, what: str) -> None:
        """Show on a terminal what is under way."""
        if what != self._shown:
            self._shown = what
            self._bar.set_description_str(what)

    def tick(self) -> None:
        """Show on a terminal how much of the time is up."""
        elapsed = min(time.monotonic() - self._began, self._budget)
        self._bar.update(int(elapsed) - self._bar.n)

    def says(self, line: str) -> None:
        """Print a line that stays."""
        self._bar.write(line, file=sys.stderr)
        sys.stderr.flush()

    def starts(self, commands: int) -> None:
        """Say at once how many commands start, which may take minutes; a terminal shows it."""
        if self._bar.disable:
            self.says(f"{counted(commands, 'command')} start{'s' * (commands == 1)}")

    def trains(self, who: str, seconds: float) -> None:
        """Say that the starts are over, and that the first round lasts so many seconds."""
        until = time.strftime("%H:%M", time.localtime(time.time() + seconds))
        line = f"{who}; first round until {until}"
        self.shows(line)
        if self._bar.disable:
            self.says(line)

    def close(self) -> None:
        self._bar.close()
