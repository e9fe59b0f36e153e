"""Run a job in processes of torchrun or srun, one for each rank: rank 0 sends it to the others.

Until the run begins they are a gloo group. A rank that fails says so itself and exits with its own
code; the others are ended by torchrun or srun, or find that it is gone.
Imported late, because it imports torch: see ninefold.launch.run.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ninefold import machine, ranks, signals
from ninefold.config import data, fingerprint
from ninefold.config.spec import RunSpec
from ninefold.errors import ConfigError, DataError, Failure, PeerError
from ninefold.launch import worker
from ninefold.launch.failures import Raised, failure_of
from ninefold.types import MAX_TIME
from ninefold.words import key_and_value

LOOPBACK = Path("/sys/class/net/lo")


@dataclass(frozen=True)
class RankFacts:
    """A rank, as it says.

    node: the number of its host.
    facts: what must be the same on all ranks, such as versions, by name.
    machine: cpu, cores and gpus of its host.
    cpus: those of its host that it may use, which Slurm may have bound it to.
    """

    rank: int
    node: int
    host: str
    facts: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    cpus: list[int] = field(default_factory=list)


class _Group:
    """The gloo group of this process before the run.

    members: what each rank says of itself. waiting: whether the other ranks wait for rank 0's job.
    kept: the group once it is left: its connections stay open, as a peer may still read from them.
    """

    members: Sequence[RankFacts] = ()
    waiting = False
    kept: dist.ProcessGroup | None = None


def meet(argv: Sequence[str]) -> None:
    """Meet the other ranks and check that they run the same command with the same code.

    Raises ConfigError if they do not, PeerError.
    """
    signals.follow_parent()
    os.environ.update(ranks.variables(os.environ))
    me = ranks.found(os.environ)
    if me.world_size == me.local_world_size and LOOPBACK.exists():  # all peers are on this host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    timeout = timedelta(seconds=timeout_of(argv))
    require_resolved(os.environ.get("MASTER_ADDR", ""))
    with telling_peers():
        store, *_ = next(dist.rendezvous("env://", timeout=timeout))
        # torchrun keeps one store for ranks that it restarts.
        store = dist.PrefixStore(f"launch_{me.attempt}", store)
        dist.init_process_group(
            "gloo", store=store, rank=me.rank, world_size=me.world_size, timeout=timeout
        )
    _Group.members = members = gathered(facts_of(me, argv))
    require_equal(members, [member.facts for member in members])
    machine.share_cores(host_of(me.rank)["cores"])
    _Group.waiting = True


def require_resolved(host: str) -> None:
    """Raise PeerError if `host` has no address: torch would look it up until launch.timeout."""
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        wrong = f"it has no address ({error.strerror})"
        allowed = "the name or address of the host of rank 0"
        raise PeerError("MASTER_ADDR", host, wrong, allowed, "set it as torchrun does") from None


def timeout_of(argv: Sequence[str]) -> float:
    """The seconds of launch.timeout in a command's arguments, as nothing is composed yet."""
    given = dict(map(key_and_value, argv)).get("launch.timeout", "")
    try:
        return min(max(1.0, float(given)), MAX_TIME)
    except ValueError:
        return RunSpec.timeout


def facts_of(me: ranks.Ranks, argv: Sequence[str]) -> RankFacts:
    on_gpu = "device=cpu" not in argv and torch.cuda.is_available()
    facts = {
        "arguments": " ".join(sorted(argv)) or "none",
        "modules of ninefold": fingerprint.code(),
        "versions of python": platform.python_version(),
        **{
            f"versions of {package}": machine.installed(package) or "none"
            for package in ("torch", "torchvision")
        },
        "devices": "cuda" if on_gpu else "cpu",
    }
    cpus = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    return RankFacts(me.rank, me.node, me.host, facts, machine.this_host(), cpus)


def require_equal(members: Sequence[RankFacts], facts: Sequence[Mapping[str, str]]) -> None:
    """Raise the failure of the first rank some of whose `facts` are not those of rank 0."""
    for member, own in zip(members, facts, strict=True):
        for name, value in own.items():
            if value != (expected := facts[0].get(name, value)):
                shown = only_in(value, expected), only_in(expected, value)
                kind = DataError if name == "data" else ConfigError
                wrong = f"its {name} differ from {members[0].host}'s ({', '.join(shown)})"
                allowed = "all hosts run one command with the same code on the same data"
                raise kind("hosts", member.host, wrong, allowed, "make them equal")


def only_in(text: str, other: str) -> str:
    """The words of `text` that `other` lacks; of a hash its beginning."""
    words = [word for word in text.split() if word not in other.split()] or ["none"]
    return " ".join(word[:8] if len(word) == 64 else word for word in words)


def hosts_of(members: Sequence[RankFacts]) -> list[dict[str, Any]]:
    """name, cpu, cores, gpus and ranks of each host."""
    nodes: dict[int, list[RankFacts]] = {}
    for member in members:
        nodes.setdefault(member.node, []).append(member)
    return [
        {
            "name": here[0].host,
            **here[0].machine,
            "cores": cores_of(here),
            "ranks": [member.rank for member in here],
        }
        for here in nodes.values()
    ]


def cores_of(here: Sequence[RankFacts]) -> int | None:
    """The CPUs that the ranks of a host may use together: all of theirs, within a quota of time."""
    cpus = set[int]().union(*(member.cpus for member in here))
    quotas = [own for member in here if (own := member.machine["cores"] or 0) < len(member.cpus)]
    return min([len(cpus), *quotas]) if cpus else here[0].machine["cores"]


def host_of(rank: int) -> dict[str, Any]:
    return next(host for host in hosts_of(_Group.members) if rank in host["ranks"])


def lead(spec: RunSpec) -> None:
    """On rank 0: send the job to the other ranks and run it here. Raises Failure."""
    spec = replace(spec, hosts=hosts_of(_Group.members))
    broadcast(spec)
    work(spec)


def follow() -> int:
    """On any other rank: wait for the job and run it, or return the exit code to exit with."""
    job: RunSpec | int = broadcast()
    if isinstance(job, int):
        return job
    work(job)
    return 0


def release(code: int) -> None:
    """On rank 0, at its end: make ranks that still wait for a job exit with `code`."""
    if _Group.waiting and dist.get_rank() == 0:
        broadcast(code)


def work(spec: RunSpec) -> None:
    """Run `spec` here. Raises Failure."""
    # Of signals to each rank, as srun sends them, none is lost before the rank listens.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals.SIGNALS)
    try:
        if spec.cache is not None:
            spec = replace(spec, cache=shared_cache(spec))
        worker.run_spec(spec, begin=lambda: begin(spec))
    except Failure:
        signals.ignore()  # torchrun's agent may have found the same; it gives ranks 30 s to end in
        raise


def shared_cache(spec: RunSpec) -> dict[str, str] | None:
    """The cache of this host, which its first rank makes, where rank 0 has not. Raises Failure."""
    rank = dist.get_rank()
    first = host_of(rank)["ranks"][0]
    made = spec.cache if rank == 0 else data.fill_cache_of(spec.job_yaml) if rank == first else None
    found: dict[str, str] | None = gathered(made)[first]
    return found


def begin(spec: RunSpec) -> None:
    """Compare what all ranks read, once each can begin, and leave the group. Raises Failure.

    In the group of the training, which is not formed yet, a rank that has failed before would be
    waited for as long as launch.timeout.
    """
    rank = dist.get_rank()
    needed = len(spec.hosts) > 1 and rank == host_of(rank)["ranks"][0]
    facts = data.facts_of(spec.job_yaml, check=rank != 0) if needed else {}
    require_equal(_Group.members, gathered(facts))
    _Group.kept = dist.group.WORLD
    dist.destroy_process_group()


def gathered(mine: Any) -> list[Any]:
    """What each rank gives, by rank. Every rank must call it. Raises PeerError."""
    found = [None] * dist.get_world_size()
    with telling_peers():
        dist.all_gather_object(found, mine)
    return found


def broadcast(job: RunSpec | int = 0) -> Any:
    """Rank 0's `job`, or the code that all exit with. Every rank must call it. Raises PeerError."""
    _Group.waiting, sent = False, [job]
    with telling_peers():
        dist.broadcast_object_list(sent)
    return sent[0]


@contextmanager
def telling_peers() -> Iterator[None]:
    """Raise what torch finds in the block as a Failure, most often that a peer is gone."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise failure_of(Raised(error, rank=ranks.found(os.environ).rank)) from error
