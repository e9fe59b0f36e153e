"""Reduces the runs of a cell to a mean and standard deviation over its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ninefold.report.data.cells import BASELINE, Group
from ninefold.report.data.runs import Run, finite
from ninefold.report.stats.measures import Measure
from ninefold.result import PHASES


@dataclass(frozen=True)
class Summary:
    """The values of a cell.

    by_seed: the value of each seed with a run that completed; of timing runs, of each round.
    seeds: the number of all seeds, or timing rounds, that were tried.
    mean: over these, None without any.
    sd: standard deviation (n - 1), None for a single seed.
    relative: to none-fp32, paired by seed; None if no seed has a partner.
    status: of the first run that did not complete, or None.
    of: what `seeds` counts.
    apart: whether none-fp32 has the same seeds, but none of them on the same hosts.
    """

    by_seed: dict[int | None, float]
    seeds: int
    mean: float | None
    sd: float | None
    relative: float | None
    status: str | None
    of: str = "seeds"
    apart: bool = False


def by_seed(group: Group, parallel: str, amp: str, measure: Measure) -> dict[int | None, float]:
    """Return the value of each seed that completed; runs of the same seed are averaged.

    Of timing runs, it is the value of each round.
    """
    values: dict[int | None, list[float]] = {}
    for run in _runs(group, parallel, amp, measure):
        value = finite(measure.value(run))
        if run.ok and value is not None:
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


def summarize(group: Group, parallel: str, amp: str, measure: Measure) -> Summary:
    """Reduce one cell to its mean and standard deviation over seeds."""
    runs = _runs(group, parallel, amp, measure)
    values = by_seed(group, parallel, amp, measure)
    baseline = by_seed(group, *BASELINE, measure)
    both = [seed for seed in values if seed in baseline]
    if measure.depends_on_hosts:
        own, its = (
            hosts_by(found, lambda run: run.place)
            for found in (runs, _runs(group, *BASELINE, measure))
        )
        together = [seed for seed in both if own[seed] == its[seed]]
    else:
        together = both
    pairs = [measure.paired(values[seed], baseline[seed]) for seed in together]
    return Summary(
        by_seed=values,
        seeds=len({run.place for run in runs}),
        mean=statistics.fmean(values.values()) if values else None,
        sd=statistics.stdev(values.values()) if len(values) > 1 else None,
        relative=finite(measure.middle(pairs)) if pairs else None,
        status=next((run.status for run in runs if not run.ok), None),
        of="rounds" if any(run.timed for run in runs) else "seeds",
        apart=bool(both) and not together,
    )


def _runs(group: Group, parallel: str, amp: str, measure: Measure) -> list[Run]:
    """The runs of a cell that a measure is taken from."""
    return [run for run in measure.source(group) if (run.strategy, run.amp) == (parallel, amp)]


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
