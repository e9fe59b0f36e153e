"""Sorts runs into the cells of one table and reduces a cell to a mean over its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ninefold.report.data.runs import AMP, PARALLEL, Run, finite, position
from ninefold.report.stats.measures import Measure
from ninefold.result import PHASES

BASELINE = ("none", "fp32")
PLAIN = "-".join(BASELINE)  # the cell that the others are held against
MOST = 8  # groups that are drawn and set as tables: a search has one for each of its trials


@dataclass(frozen=True)
class Group:
    """The runs that may stand in one table: same dataset, model, batch size and epochs to train.

    `variant` says in which other settings they agree and the runs of other groups do not. `part`
    is above 0 for what a study was gone on with after its code or machine had changed.
    """

    dataset: str | None
    model: str | None
    batch_size: int | None
    epochs: float | None
    variant: str
    runs: tuple[Run, ...]
    part: int = 0

    @property
    def title(self) -> str:
        """The group's conditions as a heading."""
        variant = f", {self.variant}" if self.variant else ""
        variant += f", part {self.part + 1}" if self.part else ""
        return f"{self.model} on {self.dataset}, {self.size}{variant}"

    @property
    def size(self) -> str:
        """The batch size and the epochs, which runs that all failed may not know."""
        batch = self.batch_size or "unknown"
        epochs = "unknown" if self.epochs is None else f"{self.epochs:g}"
        return f"batch {batch}, {epochs} epoch{'' if self.epochs == 1 else 's'}"

    @property
    def parallels(self) -> list[str]:
        """The rows: every strategy that a run names, none, dp and ddp first."""
        names = {run.parallel for run in self.runs if run.parallel}
        return sorted(names, key=lambda name: position(name, PARALLEL))

    @property
    def amps(self) -> list[str]:
        """The columns: every precision that a run names, fp32, autocast and scaler first."""
        names = {run.amp for run in self.runs if run.amp}
        return sorted(names, key=lambda name: position(name, AMP))

    @property
    def ok(self) -> int:
        """How many of its runs ended well."""
        return sum(run.ok for run in self.runs)

    @property
    def accuracy(self) -> float:
        """The mean test accuracy of the runs that ended well, as a fraction; 0 of none."""
        known = [finite(run.accuracy) for run in self.runs if run.ok]
        return statistics.fmean([value for value in known if value is not None] or [0.0])

    def cell(self, parallel: str, amp: str) -> list[Run]:
        """Return the runs of one cell."""
        return [run for run in self.runs if (run.parallel, run.amp) == (parallel, amp)]


@dataclass(frozen=True)
class Summary:
    """A cell's values by seed, and what they come to.

    `sd` is None for one seed, `relative` (to none-fp32) where no seed has a partner. `status` is
    that of the first run that ended badly, or None; `seeds` counts all seeds that were tried.
    """

    by_seed: dict[int | None, float]
    seeds: int
    mean: float | None
    sd: float | None
    relative: float | None
    status: str | None


def groups(runs: Sequence[Run]) -> list[Group]:
    """Return the groups, ordered by their conditions; runs that name no cell are in none, nor are
    those that do not count.

    A run that ended early may not know all its conditions. It joins each group it does not
    contradict and whose cell has no successful run of its seed.
    """
    named = [run for run in runs if run.parallel and run.amp and run.counts]
    found: dict[_Key, list[Run]] = {}
    for run in named:
        if run.ok:
            key = (
                run.dataset, run.model, run.batch_size, run.to_train, run.settings, run.part or 0
            )  # fmt: skip
            found.setdefault(key, []).append(run)
    # Those that know most come first, so that those that know less find a group to join.
    bad = [run for run in named if not run.ok]
    for run in sorted(bad, key=lambda run: (run.dataset, run.model, run.batch_size).count(None)):
        fitting = [key for key in found if _fits(run, key)]
        for key in fitting:
            if not any((other.cell, other.seed) == (run.cell, run.seed) and other.ok
                       for other in found[key]):  # fmt: skip
                found[key].append(run)
        if not fitting:
            key = (run.dataset, run.model, run.batch_size, None, run.settings, run.part or 0)
            found[key] = [run]
    ordered = sorted(found.items(), key=lambda item: item[0][5])
    ordered.sort(key=lambda item: [value or 0 for value in item[0][2:4]])
    ordered.sort(key=lambda item: [value or "" for value in item[0][:2]])
    shared = set.intersection(*(set(key[4]) for key in found)) if found else set()
    return [
        Group(
            *key[:4],
            variant=", ".join(x for x in key[4] if x not in shared),
            runs=tuple(members),
            part=key[5],
        )
        for key, members in ordered
    ]


def largest_first(found: Sequence[Group]) -> list[Group]:
    """Return the groups, that with most successful runs first: an answer is of it.

    Of groups with as many, that with the best mean accuracy comes first.
    """
    return sorted(found, key=lambda group: (-group.ok, -group.accuracy))


def shown(found: Sequence[Group]) -> list[Group]:
    """Return the groups that are drawn and set as tables: all of a few, the first MOST of many."""
    return list(found) if len(found) <= MOST else largest_first(found)[:MOST]


_Key = tuple[str | None, str | None, int | None, float | None, tuple[str, ...], int]


def _fits(run: Run, key: _Key) -> bool:
    # Not by epochs: a run that ended early may record the epochs it got to.
    known = (run.dataset, run.model, run.batch_size)
    same = all(mine in (None, theirs) for mine, theirs in zip(known, key[:3], strict=True))
    alike = run.settings == key[4] if run.overrides else set(run.settings) <= set(key[4])
    return same and alike and (run.part or 0) == key[5]


def parts(cell: str) -> tuple[str, str]:
    """Return the strategy and the precision that a cell is named after."""
    parallel, _, amp = cell.partition("-")
    return parallel, amp


def plainness(cell: str) -> tuple[Any, ...]:
    """Return a sort key of cells: the simplest first."""
    parallel, amp = parts(cell)
    return position(parallel, PARALLEL), position(amp, AMP)


def by_seed(group: Group, parallel: str, amp: str, measure: Measure) -> dict[int | None, float]:
    """Return the value of each seed that succeeded; runs of the same seed are averaged."""
    values: dict[int | None, list[float]] = {}
    for run in group.cell(parallel, amp):
        value = finite(measure.value(run))
        if run.ok and value is not None:
            values.setdefault(run.seed, []).append(value)
    return {seed: statistics.fmean(found) for seed, found in values.items()}


def summarize(group: Group, parallel: str, amp: str, measure: Measure) -> Summary:
    """Reduce one cell to its mean and standard deviation (n - 1) over seeds."""
    runs = group.cell(parallel, amp)
    values = by_seed(group, parallel, amp, measure)
    baseline = by_seed(group, *BASELINE, measure)
    pairs = [measure.paired(values[seed], baseline[seed]) for seed in values if seed in baseline]
    bad = [run.status for run in runs if not run.ok]
    return Summary(
        by_seed=values,
        seeds=len({run.seed for run in runs}),
        mean=statistics.fmean(values.values()) if values else None,
        sd=statistics.stdev(values.values()) if len(values) > 1 else None,
        relative=finite(measure.middle(pairs)) if pairs else None,
        status=bad[0] if bad else None,
    )


def phase_shares(group: Group, parallel: str, amp: str) -> dict[str, float] | None:
    """Return each phase's percentage of the sampled steps, the mean over successful runs."""
    shares: list[list[float]] = []
    for run in group.cell(parallel, amp):
        seconds = [run.phase(name) or 0.0 for name in PHASES]
        if run.ok and sum(seconds) > 0:
            shares.append([100 * part / sum(seconds) for part in seconds])
    if not shares:
        return None
    means = [statistics.fmean(column) for column in zip(*shares, strict=True)]
    return dict(zip(PHASES, means, strict=True))
