"""What each rank of a run says of itself, and how two of them differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ninefold.errors import ConfigError, Failure, FailureReport


@dataclass(frozen=True)
class RankFacts:
    """A rank, as it says.

    node: the number of its host.
    facts: what must be the same on all ranks, such as versions, by name.
    arguments: those of its command.
    machine: cpu, cores and gpus of its host.
    cpus: those of its host that it may use, which Slurm may have bound it to.
    problem: the FailureReport of what keeps it from any run; empty if there is nothing.
    """

    rank: int
    node: int
    host: str
    facts: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    cpus: list[int] = field(default_factory=list)
    problem: str = ""


def hosts_of(members: Sequence[RankFacts]) -> list[dict[str, Any]]:
    """name, cpu, cores, gpus and ranks of each host."""
    found: dict[int, list[RankFacts]] = {}
    for member in members:
        found.setdefault(member.node, []).append(member)
    return [
        {
            "name": here[0].host,
            **here[0].machine,
            **({"cores": len(cpus)} if (cpus := set[int]().union(*(m.cpus for m in here))) else {}),
            "ranks": [member.rank for member in here],
        }
        for here in found.values()
    ]


def difference(first: RankFacts, other: RankFacts) -> Failure | None:
    """What `other` has that `first` has not, and must have; None if they agree."""
    if other.problem:
        return FailureReport.read(other.problem).failure
    for name, value in first.facts.items():
        if (theirs := other.facts.get(name, "none")) == value:
            continue
        if name == "code":
            wrong = f"its ninefold is another than {first.host}'s ({theirs[:8]}, {value[:8]})"
            return _differs(other, wrong, "all hosts run the same code", "copy it there")
        wrong = f"{name} {theirs}, {first.host} has {value}"
        return _differs(other, wrong, "one version is allowed", "install it there")
    if sorted(first.arguments) == sorted(other.arguments):
        return None
    more = [argument for argument in other.arguments if argument not in first.arguments]
    less = [argument for argument in first.arguments if argument not in other.arguments]
    if more:
        wrong = f"it was started with {' '.join(more)}, {first.host} without"
    else:
        wrong = f"it was started without {' '.join(less)}, which {first.host} has"
    return _differs(other, wrong, "all hosts are given one command", "repeat it there")


def _differs(other: RankFacts, wrong: str, allowed: str, do: str) -> ConfigError:
    return ConfigError("hosts", other.host, f"{wrong}; {allowed}; {do}")
