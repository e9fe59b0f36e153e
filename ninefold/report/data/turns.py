"""Which turns of timing runs count, and how the machine was meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ninefold.report.data.runs import Run
from ninefold.stats.turns import Counted, TakenTurn, counted

SWAMPED = 0.5  # share of the CPU time in the median turn


@dataclass(frozen=True)
class MachineState:
    """How the machine was while the turns of a study were taken.

    left_out: the share of turns that do not count, by the reason.
    busy: whether most turns were disturbed, so that all count.
    others: the share of the CPU time that other programs used in the median turn; None: not known.
    """

    left_out: Mapping[str, float]
    busy: bool
    others: float | None

    @property
    def swamped(self) -> bool:
        """Whether other programs used so much that times say little about the machine alone."""
        return self.others is not None and self.others > SWAMPED


def count_turns(runs: Sequence[Run]) -> None:
    """Mark the turns of timing runs that do not count."""
    timed, found = _counted(runs)
    left_out: dict[tuple[str, int], list[str]] = {}
    for turn, each in zip(found.turns, found.left_out, strict=True):
        left_out.setdefault((turn.name, turn.round), []).append(each or "")
    for run in timed:
        why = left_out[_name(run), run.round or 0]
        run.turn_left_out = why if any(why) else []


def machine_state(runs: Sequence[Run]) -> MachineState:
    """Return how the machine was during the turns of these timing runs."""
    timed, found = _counted(runs)
    reasons = Counter(why for why in found.left_out if why is not None)
    others = [share for run in timed for share in run.turn_others]
    return MachineState(
        left_out={why: count / len(found.turns) for why, count in reasons.most_common()},
        busy=found.busy,
        others=median(others) if others else None,
    )


def _counted(runs: Sequence[Run]) -> tuple[list[Run], Counted]:
    """Timing runs with turns, and which of their turns count."""
    timed = [run for run in runs if run.ok and run.counts and run.turn_seconds]
    timed = [run for run in timed if all(seconds > 0 for seconds in run.turn_seconds)]
    placed = [placed for run in timed for placed in _placed(run)]
    placed.sort(key=lambda each: each[0])
    return timed, counted([turn for _, turn in placed])


def _placed(run: Run) -> list[tuple[tuple[int, float, str], TakenTurn]]:
    """The turns of a run, each with what they are sorted by: the round, and when it began.

    Turns of an older recording, whose begin is not known, were spread evenly over their round.
    """
    count, name, number = len(run.turn_seconds), _name(run), run.round or 0
    begins = run.turn_begins if len(run.turn_begins) == count else None
    ends = run.turn_ends if len(run.turn_ends) == count else None
    others = run.turn_others if len(run.turn_others) == count else None
    found = []
    for turn, seconds in enumerate(run.turn_seconds):
        taken = TakenTurn(
            name=name,
            round=number,
            turn=turn,
            order=turn,
            seconds=seconds,
            steps=(run.steps or 0) // count,
            begin=begins[turn] if begins else None,
            end=ends[turn] if ends else None,
            others=others[turn] if others else None,
        )
        at = begins[turn] if begins else (turn + 0.5) / count
        found.append(((number, float(at), name), taken))
    return found


def _name(run: Run) -> str:
    """What tells the cell of a timing run from others: the name of its folder."""
    return Path(run.folder).name or str(run.cell)
