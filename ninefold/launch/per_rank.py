"""Run a job in processes of torchrun or srun, one for each rank: rank 0 sends it to the others.

Imported late, because it imports torch: see ninefold.launch.run.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ninefold import machine, ranks, signals
from ninefold.config import data, fingerprint
from ninefold.config.spec import RunSpec
from ninefold.errors import ConfigError, DataError, Failure, FailureReport
from ninefold.launch import rendezvous, worker
from ninefold.launch.rank_facts import RankFacts
from ninefold.launch.rendezvous import Rendezvous


def run(spec: RunSpec) -> None:
    """On rank 0: send the job to the other ranks and run it here. Raises Failure."""
    met = here()
    spec = replace(spec, hosts=met.hosts)
    met.order(spec.plain())
    work(spec, met, made=spec.cache)


def follow() -> int:
    """On any other rank: wait for the job and run it, or return the exit code to exit with."""
    met = here()
    order = met.get("order")
    if isinstance(order, int):
        return order
    work(RunSpec.of_plain(order), met)
    return 0


def work(spec: RunSpec, met: Rendezvous, made: dict[str, str] | None = None) -> None:
    """Run `spec` here. made: the cache of the first host, on rank 0. Raises Failure."""
    if ranks.started_by() == "srun":  # it sends signals to each rank, which none listens for yet
        signal.pthread_sigmask(signal.SIG_BLOCK, signals.SIGNALS)
    try:
        if spec.cache is not None:
            spec = replace(spec, cache=shared_cache(spec, met, made))
        worker.run(spec, begin=lambda: begin(spec, met))
    except Failure as failure:
        if ranks.started_by() == "torchrun":
            signals.ignore()  # its agent may have found the same, and gives ranks 30 s to end in
        met.tell(failure)
        raise


def begin(spec: RunSpec, met: Rendezvous) -> None:
    """Wait until all ranks can begin, and compare what they read. Raises Failure.

    Ranks that wait in a collective for one that has failed before it would wait launch.timeout.
    """
    first = met.ranks.rank == met.host["ranks"][0]
    facts = data.facts_of(spec.job, check=met.ranks.rank != 0) if first and met.hosts[1:] else {}
    found = met.all_ready(facts, spec.timeout)
    for member, theirs in zip(met.members, found, strict=False):
        for name, value in theirs.items():
            if facts[name] != value:
                kind = DataError if name == "data" else ConfigError
                raise kind(
                    "hosts",
                    member.host,
                    f"its {name} differ from {met.members[0].host}'s "
                    f"({value[:8]}, {facts[name][:8]})",
                    "all hosts train on the same examples with the same modules",
                    "copy them there",
                )
    if found:
        met.put("go", True)


def shared_cache(
    spec: RunSpec, met: Rendezvous, made: dict[str, str] | None
) -> dict[str, str] | None:
    """The cache of this host, which its first rank makes, or has `made`. Raises Failure."""
    key = f"cache/{met.ranks.node}"
    if met.ranks.rank == met.host["ranks"][0]:
        met.put(key, made or data.fill_cache_of(spec.job))
    found: dict[str, str] | None = met.get(key)
    return found


def meet(argv: Sequence[str]) -> None:
    """Meet the other ranks and check that they run the same command with the same code.

    Raises ConfigError if they do not, PeerError.
    """
    signals.follow_parent()
    os.environ.update(ranks.variables(os.environ))
    me, met = ranks.found(os.environ), here()
    facts = {
        "code": fingerprint.code(),
        "python": platform.python_version(),
        **{package: machine.installed(package) or "none" for package in ("torch", "torchvision")},
    }
    cpus = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    wrong = ranks.network_problem(me, os.environ, machine.gpu_driver())
    problem = "" if wrong is None else FailureReport.of(wrong, me.rank).text
    this_host = machine.this_host()
    met.agree(RankFacts(me.rank, me.node, me.host, facts, list(argv), this_host, cpus, problem))
    machine.share_cores(met.host["cores"])


def here() -> Rendezvous:
    """The rendezvous of this process. Raises PeerError if there is no store."""
    return rendezvous.here(ranks.found(os.environ))


def settled(failure: Failure) -> Failure:
    """Tell the other ranks of `failure`; returns the one that the run ends with."""
    with suppress(Failure):
        met = here()
        met.tell(failure)
        return met.cause or failure
    return failure


def first_to_report(failure: Failure) -> bool:
    """Whether this rank prints `failure`, which all end with."""
    try:
        return here().tell(failure)
    except Failure:  # there is no store to agree through
        return True


def dismiss(code: int) -> None:
    """On rank 0, at its end: make ranks that still wait for a job exit with `code`."""
    here().order(code)


def leave(code: int) -> None:
    """Before this process exits with `code`."""
    here().leave(code)
