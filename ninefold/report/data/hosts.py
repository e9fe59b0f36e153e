"""On which hosts each run was made: numbers, in the order of their first use, and no names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninefold.report.numbers import listed_and, plural

COLUMN = "on_hosts"


def names_of(result: Mapping[str, Any]) -> list[str]:
    """Return the names of the hosts that a result.json says its run was made on, sorted."""
    environment = result.get("environment")
    if not isinstance(environment, Mapping):
        return []
    hosts = environment.get("hosts")
    said = [
        host.get("name") if isinstance(host, Mapping) else host
        for host in (hosts if isinstance(hosts, list) else [])
    ]
    return sorted({name for name in said if isinstance(name, str) and name})


def numbered(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the results with `on_hosts`, the numbers of their hosts, from 1.

    A report publishes these instead of names: which runs had the same hosts, and nothing else.
    """
    numbers: dict[str, int] = {}
    found = []
    for result in results:
        own = sorted(numbers.setdefault(name, len(numbers) + 1) for name in names_of(result))
        found.append({**result, COLUMN: own})
    return found


def listed_hosts(hosts: Sequence[int]) -> str:
    """Return numbers of hosts as a phrase: `host 1`, `hosts 1 and 2`."""
    if not hosts:
        return "an unknown host"
    return f"{plural(hosts, 'host')} {listed_and([str(number) for number in hosts])}"
