"""What a comparison has found: a sentence, a table, a picture, rows and a command."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

from ninefold import report as reports
from ninefold.answer.cell import PLAIN, Cell
from ninefold.answer.measures import SCORE_KEY
from ninefold.answer.rounds import STOPPED, is_unfinished
from ninefold.answer.runs import Run
from ninefold.answer.screen import ROWS, left_out, screen
from ninefold.answer.words import content
from ninefold.api import COMMAND, NOTES, running
from ninefold.api.show import in_arguments, source_line
from ninefold.errors import ConfigError, one_line
from ninefold.files import read_json
from ninefold.report.render.results import results, table_of_answer
from ninefold.report.render.tables import Table, lines
from ninefold.report.tree import CellReport
from ninefold.result import Result
from ninefold.study_record import was_repeated
from ninefold.types import MAX_TIME

Row = dict[str, Any]


class Answer:
    """The answer of a study in `folder`, or of a recording, as it is there now.

    best: the configuration that it names, also where it is not decided, with its `parallel` and
        `amp`; its text is such as ddp-bf16. None where it names none.
    decided: whether `best` is shown to be the one, so that more runs could not change the answer.
    chance: the confidence, 0 to 1, that `best` is within report.same (2 %) of the fastest; None
        where none is claimed.
    sentence: the answer, in at most 14 words. caveats: what limits it.
    failed: what went wrong, by configuration, or by run where values are compared.
    train: the command that trains with it, for a shell in this folder; None without one.
    cells: by the text of each configuration the seconds per epoch (mean, low, high: 95 % interval),
        their speedup over none-fp32 (above 1 is faster) and its verdict, the peak memory in bytes,
        the score.
    pairs: of each two configurations the speedup of the second over the first, its interval (low,
        high) and verdict, and the rounds that it is of.
    """

    def __init__(self, folder: str | Path, own: bool = False) -> None:
        """Raises ConfigError if the folder holds no study. own: whether this process made it."""
        self.folder, self._own = Path(folder), own
        self._notes: list[str] = []
        with suppress(OSError, ValueError, TypeError):  # only ninefold.compare writes them
            self._notes = [one_line(str(text)) for text in read_json(self.folder / NOTES)]
        self._read = reports.read(self.folder, "python -m ninefold train", own)
        report, answer = self._read.report, self._read.report.answer
        self.best = answer.cell if isinstance(answer.cell, Cell) else None
        self.chance = answer.chance
        self.decided = answer.decided
        self.sentence = answer.lead
        self.train = answer.train
        self._next = answer.next_command
        sweep = self._read.recording.sweep
        runs = [run for run in report.runs if not was_repeated(run.folder)]
        failed = [run for run in runs if run.status not in ("ok", *STOPPED)]
        by_value = answer.by_value
        self.failed = {run.folder if by_value else str(run.cell): self._why(run) for run in failed}
        stopped, self._open = any(run.status in STOPPED for run in runs), list[str]()
        if stopped and (sweep.timing_ended is None or is_unfinished(sweep, report.runs)):
            go_on = "resume()" if (self.folder / COMMAND).exists() else "study.resume=FOLDER"
            self._open = [f"It was interrupted, or still runs: {go_on} goes on with it."]
        group = report.groups[0] if report.groups else None
        self._table = results(group) if group else None
        if by_value:
            self._table = table_of_answer(by_value)
        self._control = group.control if group else []
        self.cells = {} if group is None else {str(c.cell): _cell(c) for c in group.cells}
        self.pairs = [] if group is None else [content(each) for each in group.comparison.seconds]

    def _why(self, run: Run) -> str:
        """Why a run failed, with the caller's line of code; a report has no folders in it."""
        said = one_line(run.error or run.status)
        with suppress(OSError, ValueError):  # a recording has no run folders
            said = Result.read(self.folder / run.folder).error or said
        line, said = source_line(said), in_arguments(said)
        return f"{said} ({line})" if line else said

    @property
    def caveats(self) -> list[str]:
        of_report = map(in_arguments, self._read.report.answer.caveats)
        return [*self._open, *of_report, *self._notes]

    def report(self) -> Path:
        """Write the report of the study and return its page, report.html, in a folder of its files.

        Raises ResourceError if it cannot be written.
        """
        reports.write(self.folder, self._own)
        return reports.place(self.folder)

    def resume(self, minutes: float = 2.0, show: bool = True) -> Answer:
        """Go on with the comparison for so many minutes more, and return its answer.

        Full training runs that are missing are made after that, within the `study.budget` that
        `compare` was given.

        show: whether to show the progress. Raises what `ninefold.compare` does, if nothing more
        could be measured its first failure, and ConfigError of a study that it did not begin.
        """
        from ninefold.api.session import check_number  # it imports torch

        check_number("minutes", minutes, MAX_TIME)
        command, known = running.resuming(self.folder, minutes), Answer(self.folder)
        return answered(command, self.folder, show, known._measured)

    def settings(self) -> str:
        """Return the answer's configuration for a PyTorch loop of your own, as text to paste: a
        command, lines of Python, and in what that differs from what was measured.

        Raises ConfigError where there are none: the answer is open, or a loop has no words for it.
        """
        found = self._read.report.answer.settings
        if found is None:
            wrong = f"there is nothing to set: {self.sentence}"
            allowed = "an answer that is decided for one device, dp or ddp has settings"
            do = "train with its command" if self.train else "go on with the study"
            raise ConfigError("folder", self.folder, wrong, allowed, do)
        return str(found)

    def rows(self) -> list[Row]:
        """One row for each turn of a timing run, and for each full training run.

        cell, parallel, amp, processes, status: of the run; cell is its configuration.
        round, order: its number, and the place in it. counted: whether the run enters figures.
        turn, left_out: the number of the turn, or None; why it does not count, empty if it does.
        seconds, steps: per step; of the turn, or of the run.
        """
        sweep = self._read.recording.sweep
        orders = {name: place for entry in sweep.timing for place, name in enumerate(entry.runs)}
        found = list[Row]()
        for run in self._read.recording.runs:
            shared = {
                "cell": str(run.cell),
                "parallel": run.parallel,
                "amp": run.amp,
                "processes": run.processes,
                "round": run.round,
                "order": orders.get(run.folder),
                "counted": run.counts,
                "status": run.status,
            }
            turns: list[Any] = [(t.turn, t.left_out or "", t.seconds, t.steps) for t in run.taken]
            found += [
                {**shared, "turn": turn, "left_out": why, "seconds": seconds, "steps": steps}
                for turn, why, seconds, steps in turns or [(None, "", run.step_seconds, run.steps)]
            ]
        return found

    def figure(self) -> str:
        """The speed of the configurations as SVG: figure.svg of the report.

        Raises ConfigError where there is nothing to draw.
        """
        if self._read.picture is None:
            allowed = "there is nothing to draw"
            raise ConfigError("folder", self.folder, "no time is known", allowed, "run it again")
        return self._read.picture

    @property
    def _measured(self) -> int:
        """How many turns and full runs have ended well."""
        return sum(row["status"] == "ok" for row in self.rows())

    def __repr__(self) -> str:
        table = self._table or Table("", [], [])
        rows = lines(table, ROWS, len(table.columns)) if table.rows else []
        notes = [f"failed: {cell}: {why}" for cell, why in self.failed.items()]
        notes += [*self._control, *self.caveats]
        more = left_out(notes, rows=len(table.rows) - ROWS)
        report = f"Report: {reports.place(self.folder)}{more}"
        return screen(self.sentence, rows, notes, report, self._next)

    def _repr_html_(self) -> str:
        """The picture, and what a console shows."""
        picture = ""
        if self._read.picture is not None:
            data = base64.b64encode(self._read.picture.encode()).decode()
            picture = (
                "<img alt='How many times as fast each configuration is' style='max-width:100%' "
                f"src='data:image/svg+xml;base64,{data}'>"
            )
        return (
            "<div style='background:#fff;color:#1b1d22;padding:.6em'>"
            f"{picture}<pre style='background:none;color:inherit'>{escape(repr(self))}</pre></div>"
        )


def answered(command: Sequence[str], place: Path, show: bool, measured: int = 0) -> Answer:
    """Run `train` with these arguments, which write to `place`, and return the answer.

    measured: turns and runs that there are already. Raises what `ninefold.compare` does.
    """
    ended = running.run(command, place, show)
    with suppress(ConfigError):  # no run has ended well: the failures say why
        answer = Answer(place, own=True)
        well = not ended.failures and ended.code == 0
        some = any(cell["status"] == "ok" for cell in answer.cells.values())
        if well or (some and answer._measured > measured):
            return answer
    raise running.failure(ended, place)


def _cell(cell: CellReport) -> Row:
    seconds, memory = cell.measures.get("seconds"), cell.measures.get("memory")
    score, speed = cell.measures.get(SCORE_KEY), cell.speedup
    return {
        "mean": seconds and seconds.mean,
        "low": seconds and seconds.low,
        "high": seconds and seconds.high,
        "speedup": speed and speed.value,
        "verdict": None if cell.cell == PLAIN else speed and speed.verdict,
        "memory": memory and memory.mean,
        "score": score and score.mean,
        "status": cell.status or "ok",
    }
