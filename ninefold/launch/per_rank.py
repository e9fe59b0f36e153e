"""Run a job in processes of torchrun or srun, one for each rank: rank 0 sends it to the others.

Imported late, because it imports torch: see ninefold.launch.run.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ninefold import ranks, signals
from ninefold.checkpoint.manifest import has_checkpoint
from ninefold.config import data, fingerprint
from ninefold.config.job import Settled
from ninefold.config.spec import RunSpec
from ninefold.errors import ConfigError, DataError, Failure
from ninefold.files import opener
from ninefold.launch import Launcher, worker
from ninefold.launch.failure_agreement import FailureAgreement
from ninefold.launch.meeting import Meeting, here
from ninefold.launch.rank_facts import RankFacts
from ninefold.launch.run_folder import log_file, record
from ninefold.machine import gpu_driver, installed, this_host


class PerRank(Launcher):
    """Launcher for processes that torchrun or srun started, on one host or several."""

    @staticmethod
    def applies(settings: Mapping[str, Any]) -> bool:
        return bool(ranks.started_by())

    def run(self, spec: RunSpec, processes: int) -> None:
        """On rank 0: send the job to the other ranks and run it here."""
        met = here()
        spec = replace(spec, hosts=met.hosts)
        if spec.command == "train":
            met.remember(str(spec.folder))
            assert met.agreement is not None
            met.agreement.on_remote_failure = lambda failure: record_end(spec, failure)
        met.hand_out(spec.plain())
        share_cache(spec, lambda: spec.cache)
        work(spec, met)

    def follow(self) -> int:
        """On any other rank: wait for the job and run it, or return the exit code to exit with."""
        met = here()
        message = met.expect("data", "order")
        if asked := message.get("data"):
            if met.ranks.rank in met.first_ranks:
                met.post(f"checked/{met.ranks.rank}", facts_of_data(**asked))
            message = met.expect("order")
        order = message["order"]
        if isinstance(order, int):
            return order
        spec = RunSpec.of_plain(order)
        work(replace(spec, cache=cache_of_this_host(spec)), met)
        return 0


def work(spec: RunSpec, met: Meeting) -> None:
    """Run `spec` here. Raises Failure."""
    agreement = met.agreement
    assert agreement is not None
    agreement.silence, agreement.grace = spec.timeout, spec.grace
    if ranks.started_by() == "srun":  # it sends signals to each rank, which none listens for yet
        signal.pthread_sigmask(signal.SIG_BLOCK, signals.SIGNALS)
    if met.ranks.rank != 0:
        agreement.on_remote_failure = lambda failure: log_end(spec, agreement, failure)
    try:
        worker.run(spec)
    except Failure as failure:
        if ranks.started_by() == "torchrun":
            signals.ignore()  # its agent may have found the same, and gives ranks 30 s to end in
        if met.ranks.rank != 0:
            agreement.tell(failure)
            log_end(spec, agreement, agreement.cause or failure)
        raise


def log_end(spec: RunSpec, agreement: FailureAgreement, failure: Failure) -> None:
    """On a rank other than 0: log why the run ends. If rank 0 is gone, record it in its place."""
    path = log_file(spec.folder, agreement.ranks.rank)
    with suppress(OSError), open(path, "a", opener=opener) as file:
        print(f"the run ends: {failure}", file=file)
    if agreement.without_rank_0 and agreement.reports_for_host and spec.command == "train":
        record_end(spec, failure)


def record_end(spec: RunSpec, failure: Failure) -> None:
    """Write the result.json of a run that another rank's failure ends."""
    job = yaml.safe_load(spec.job)
    record([failure], job.pop("choices"), job, spec.folder, spec.started)


def meet(argv: Sequence[str]) -> None:
    """Meet the other ranks and check that they run the same command with the same code.

    Raises ConfigError if they do not, PeerError.
    """
    signals.follow_parent()
    me, met = ranks.found(os.environ), here()
    facts = {
        "code": fingerprint.code(),
        "python": platform.python_version(),
        **{package: installed(package) or "none" for package in ("torch", "torchvision")},
    }
    cpus = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    met.agree(RankFacts(me.rank, me.node, me.host, facts, list(argv), this_host(), cpus))
    if me.world_size > 1 and (wrong := ranks.network_problem(me, os.environ, gpu_driver())):
        raise wrong


def of_restart(argv: Sequence[str]) -> list[str]:
    """On rank 0: the arguments with which ranks that were restarted go on in the same folder."""
    before = here().earlier_folder
    if before is None or any(argument.startswith("resume=") for argument in argv):
        return []
    quoted = before.replace("\\", "\\\\").replace("'", "\\'")
    if not has_checkpoint(Path(before)):
        return [f"hydra.run.dir='{quoted}'"]
    print(f"restarted by {ranks.started_by()}: resuming {before}", flush=True)
    return [f"resume='{quoted}'"]


def compare_data(job: Settled) -> None:
    """On rank 0, before anything is written: check that each host has the data of `job`.

    And the modules of the user's that it names. Raises Failure.
    """
    met = here()
    others = met.first_ranks[1:]
    if not others or job.resolved.get("dataset") is None:
        return
    asked: dict[str, Any] = {"text": job.text, "targets": job.targets}
    met.post("data", asked)
    mine = facts_of_data(**asked, check=False)  # it has just been checked here
    for rank in others:
        key = f"checked/{rank}"
        theirs, host = met.expect(key)[key], met.members[rank].host
        for name, value in mine.items():
            if theirs[name] != value:
                kind = DataError if name == "data" else ConfigError
                raise kind(
                    "hosts",
                    host,
                    f"its {name} differ from {met.members[0].host}'s "
                    f"({theirs[name][:8]}, {value[:8]})",
                    "all hosts train on the same examples with the same modules",
                    "copy them there",
                )


def facts_of_data(text: str, targets: Sequence[str], check: bool = True) -> dict[str, str]:
    """Hashes of what the frozen job `text` reads on this host, once it was checked if asked for.

    targets: the functions and classes that it names. Raises Failure.
    """
    return {"data": data.fingerprint_of(text, check), "modules": fingerprint.code(targets)}


def share_cache(spec: RunSpec, make: Callable[[], dict[str, str] | None]) -> dict[str, str] | None:
    """The cache of this host, which its first rank makes; returns when every host has its own.

    Raises Failure.
    """
    if spec.cache is None:
        return None
    met = here()
    first = met.host["ranks"][0]
    if met.ranks.rank == first:
        met.post(f"cache/{first}", {"files": make()})
    made = {key: files for r in met.first_ranks for key, files in met.expect(f"cache/{r}").items()}
    found: dict[str, str] | None = made[f"cache/{first}"]["files"]
    return found


def cache_of_this_host(spec: RunSpec) -> dict[str, str] | None:
    """On a rank other than 0: the cache that this host's processes share. Raises Failure."""
    return share_cache(spec, lambda: data.fill_cache_of(spec.job))


def settled(failure: Failure) -> Failure:
    """Tell the other ranks of `failure`; returns the one that the run ends with."""
    try:
        met = here()
    except Failure:
        return failure
    met.tell(failure)
    return met.cause or failure


def first_to_report(failure: Failure) -> bool:
    """Whether this rank prints `failure`, which all end with."""
    try:
        return here().tell(failure)
    except Failure:  # there is no store to agree through
        return True


def dismiss(code: int) -> None:
    """On rank 0, at its end: make ranks that still wait for a job exit with `code`."""
    here().dismiss(code)


def release_store(code: int) -> None:
    """Before this process exits with `code`."""
    here().release_store(code)
