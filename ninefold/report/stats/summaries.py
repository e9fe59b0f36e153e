"""Reduces the runs of a cell to a mean and standard deviation over its seeds."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from ninefold.report.data.cells import BASELINE, Group
from ninefold.report.data.runs import finite
from ninefold.report.stats.measures import Measure
from ninefold.result import PHASES


@dataclass(frozen=True)
class Summary:
    """The values of a cell.

    by_seed: the value of each seed with a run that completed.
    seeds: the number of all seeds that were tried.
    mean: over the seeds, None without any.
    sd: standard deviation (n - 1), None for a single seed.
    relative: to none-fp32, paired by seed; None if no seed has a partner.
    status: of the first run that did not complete, or None.
    """

    by_seed: dict[int | None, float]
    seeds: int
    mean: float | None
    sd: float | None
    relative: float | None
    status: str | None


def by_seed(group: Group, parallel: str, amp: str, measure: Measure) -> dict[int | None, float]:
    """Return the value of each seed that completed; runs of the same seed are averaged."""
    values: dict[int | None, list[float]] = {}
    for run in group.cell(parallel, amp):
        value = finite(measure.value(run))
        if run.ok and value is not None:
            values.setdefault(run.seed, []).append(value)
    return {seed: statistics.fmean(found) for seed, found in values.items()}


def summarize(group: Group, parallel: str, amp: str, measure: Measure) -> Summary:
    """Reduce one cell to its mean and standard deviation over seeds."""
    runs = group.cell(parallel, amp)
    values = by_seed(group, parallel, amp, measure)
    baseline = by_seed(group, *BASELINE, measure)
    pairs = [measure.paired(values[seed], baseline[seed]) for seed in values if seed in baseline]
    return Summary(
        by_seed=values,
        seeds=len({run.seed for run in runs}),
        mean=statistics.fmean(values.values()) if values else None,
        sd=statistics.stdev(values.values()) if len(values) > 1 else None,
        relative=finite(measure.middle(pairs)) if pairs else None,
        status=next((run.status for run in runs if not run.ok), None),
    )


def phase_shares(group: Group, parallel: str, amp: str) -> dict[str, float] | None:
    """Return each phase's percentage of the sampled steps, the mean over runs that completed."""
    shares: list[list[float]] = []
    for run in group.cell(parallel, amp):
        seconds = [run.phase(name) or 0.0 for name in PHASES]
        if run.ok and sum(seconds) > 0:
            shares.append([100 * phase / sum(seconds) for phase in seconds])
    if not shares:
        return None
    means = [statistics.fmean(column) for column in zip(*shares, strict=True)]
    return dict(zip(PHASES, means, strict=True))
