"""Which runs of a study differ in their number of processes, and which had too few cores."""

from __future__ import annotations

from collections.abc import Mapping

from ninefold.report.data.runs import Run, finite


def oversubscribed(run: Run) -> bool | None:
    """Return whether a run had more processes than cores, or GPUs, on one of its hosts.

    On a CPU each thread needs a core. None: unknown.
    """
    if not run.devices:
        return None
    on_cpu = set(run.devices) == {"cpu"}
    processes = run.processes or 1
    each = max(1.0, (run.threads or 0) / processes) if on_cpu else 1.0
    hosts = run.environment.get("hosts")
    there = [
        (_count(host.get("ranks")), _count(host.get("cores" if on_cpu else "gpus")))
        for host in (hosts if isinstance(hosts, list) else [])
        if isinstance(host, Mapping)
    ]
    if not there and on_cpu:
        there = [(processes, _count(run.environment.get("cores")))]
    known = [(ranks, places) for ranks, places in there if ranks and places]
    return any(ranks * each > places for ranks, places in known) if known else None


def _count(found: object) -> float | None:
    """A number of ranks, cores or GPUs, which may be given as a list of them."""
    return len(found) if isinstance(found, list) else finite(found)
