"""Reduces the runs of a cell to one value of each seed, host or phase."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

from ninefold.report.data.cell import Cell
from ninefold.report.data.cells import Group
from ninefold.report.data.runs import Run, finite
from ninefold.report.stats.measures import Measure
from ninefold.result import PHASES


def by_seed(group: Group, cell: Cell, measure: Measure) -> dict[int | None, float]:
    """Return the value of each seed that completed; runs of the same seed are averaged.

    Of timing runs, it is the value of each round.
    """
    values: dict[int | None, list[float]] = {}
    for run in measure.source(group):
        value = finite(measure.value(run))
        if run.cell == cell and run.ok and value is not None:
            values.setdefault(run.place, []).append(value)
    return {seed: statistics.fmean(found) for seed, found in values.items()}


def hosts_by(
    runs: Iterable[Run], key: Callable[[Run], int | None]
) -> dict[int | None, tuple[int, ...]]:
    """Return the numbers of the hosts that the runs of each key which completed were made on."""
    found: dict[int | None, set[int]] = {}
    for run in runs:
        if run.ok:
            found.setdefault(key(run), set()).update(run.on_hosts)
    return {each: tuple(sorted(hosts)) for each, hosts in found.items()}


def phase_shares(group: Group, cell: Cell) -> dict[str, float] | None:
    """Return each phase's percentage of the sampled steps, the mean over runs that completed."""
    shares: list[list[float]] = []
    for run in group.of(cell):
        seconds = [run.phase(name) or 0.0 for name in PHASES]
        if run.ok and sum(seconds) > 0:
            shares.append([100 * phase / sum(seconds) for phase in seconds])
    if not shares:
        return None
    means = [statistics.fmean(column) for column in zip(*shares, strict=True)]
    return dict(zip(PHASES, means, strict=True))
