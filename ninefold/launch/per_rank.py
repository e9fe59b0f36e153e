"""Run a job in processes of torchrun or srun, one for each rank: rank 0 sends it to the others.

Imported late, because it imports torch: see ninefold.launch.run.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

from ninefold import machine, ranks, signals
from ninefold.config import data, fingerprint
from ninefold.config.spec import RunSpec
from ninefold.errors import Failure
from ninefold.launch import worker
from ninefold.launch.rendezvous import RankFacts, Rendezvous, here, require_equal


def run(spec: RunSpec) -> None:
    """On rank 0: send the job to the other ranks and run it here. Raises Failure."""
    met = here()
    spec = replace(spec, hosts=met.hosts)
    met.broadcast_job(spec.plain())
    work(spec, met)


def follow() -> int:
    """On any other rank: wait for the job and run it, or return the exit code to exit with."""
    met = here()
    job = met.get("job")
    if isinstance(job, int):
        return job
    work(RunSpec.of_plain(job), met)
    return 0


def work(spec: RunSpec, met: Rendezvous) -> None:
    """Run `spec` here. Raises Failure."""
    if ranks.started_by() == "srun":  # it sends signals to each rank, which none listens for yet
        signal.pthread_sigmask(signal.SIG_BLOCK, signals.SIGNALS)
    try:
        if spec.cache is not None:
            spec = replace(spec, cache=shared_cache(spec, met))
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
    needed = met.hosts[1:] and met.ranks.rank == met.host["ranks"][0]
    facts = data.facts_of(spec.job_yaml, check=met.ranks.rank != 0) if needed else {}
    if ready := met.all_ready(facts, spec.timeout):
        require_equal(met.members, ready)
        met.put("go", True)


def shared_cache(spec: RunSpec, met: Rendezvous) -> dict[str, str] | None:
    """The cache of this host, which its first rank makes, where rank 0 has not. Raises Failure."""
    key, made = f"cache/{met.ranks.node}", spec.cache if met.ranks.rank == 0 else None
    if met.ranks.rank == met.host["ranks"][0]:
        met.put(key, made or data.fill_cache_of(spec.job_yaml))
    found: dict[str, str] | None = met.get(key)
    return found


def meet(argv: Sequence[str]) -> None:
    """Meet the other ranks and check that they run the same command with the same code.

    Raises ConfigError if they do not, PeerError.
    """
    signals.follow_parent()
    os.environ.update(ranks.variables(os.environ))
    met = here()
    me = met.ranks
    facts = {
        "arguments": " ".join(sorted(argv)) or "none",
        "modules of ninefold": fingerprint.code(),
        "versions of python": platform.python_version(),
        **{
            f"versions of {package}": machine.installed(package) or "none"
            for package in ("torch", "torchvision")
        },
    }
    cpus = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    this_host = machine.this_host()
    met.agree(RankFacts(me.rank, me.node, me.host, facts, this_host, cpus))
    machine.share_cores(met.host["cores"])
