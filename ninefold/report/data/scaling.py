"""Which runs of a study differ in their number of processes, and which had too few cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninefold.report.data.runs import finite
from ninefold.study_record import StudyRecord


def scaled(results: Sequence[Mapping[str, Any]], sweep: StudyRecord) -> list[dict[str, Any]]:
    """Return the results of a study with `scaling` and `oversubscribed`, see `Run`.

    They stay as they are where processes were not swept.
    """
    if (kind := sweep.scaling) is None:
        return [dict(result) for result in results]
    return [
        {**result, "scaling": kind, "oversubscribed": oversubscribed(result)}
        if isinstance(count := result.get("processes"), int) and count > 0
        else dict(result)
        for result in results
    ]


def oversubscribed(result: Mapping[str, Any]) -> bool | None:
    """Return whether a run had more processes than cores, or GPUs, on one of its hosts.

    On a CPU each thread needs a core. None: unknown.
    """
    devices, environment = result.get("devices"), result.get("environment")
    if not isinstance(devices, list) or not devices or not isinstance(environment, Mapping):
        return None
    on_cpu = set(devices) == {"cpu"}
    processes, threads = finite(result.get("processes")) or 1, finite(result.get("threads")) or 0
    each = max(1.0, threads / processes) if on_cpu else 1.0
    hosts = environment.get("hosts")
    there = [
        (_count(host.get("ranks")), _count(host.get("cores" if on_cpu else "gpus")))
        for host in (hosts if isinstance(hosts, list) else [])
        if isinstance(host, Mapping)
    ]
    if not there and on_cpu:
        there = [(processes, _count(environment.get("cores")))]
    known = [(ranks, places) for ranks, places in there if ranks and places]
    return any(ranks * each > places for ranks, places in known) if known else None


def _count(found: object) -> float | None:
    """A number of ranks, cores or GPUs, which may be given as a list of them."""
    return len(found) if isinstance(found, list) else finite(found)
