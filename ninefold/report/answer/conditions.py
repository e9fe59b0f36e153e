"""Describes in phrases the conditions that the runs of a report were made under."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ninefold.errors import one_line
from ninefold.numbers import capitalized, counted, listed, plural
from ninefold.report.data.cells import groups
from ninefold.report.data.environment import values
from ninefold.report.data.runs import Run

_THREADS = "threads", "CPU thread"


def conditions(runs: Sequence[Run], environment: Mapping[str, Any]) -> list[str]:
    """Return the conditions that all the runs were made under, a phrase each."""
    about = environment.get("environment") or {}
    phrases = []
    for name, label in (("dataset", "dataset"), ("model", "model"), ("batch_size", "batch size")):
        if known := values(environment.get(name)):
            phrases.append(f"{label} {listed(known)}")
    phrases += [*_counts(environment, "epochs", "epoch"), *_counts(environment, *_THREADS)]
    if any(
        workers := sorted({run.loader_workers for run in runs if run.loader_workers is not None})
    ):
        phrases.append(f"{listed(workers)} {plural(workers[-1], 'loader worker')} per process")
    phrases += [*_devices(environment, runs), *_torch(about)]
    phrases += [phrase for phrase in (_commit(about), _date(about)) if phrase]
    several = [run for run in runs if run.ok and (run.processes or 1) > 1 and not run.scaling]
    if several:
        counts, names = (
            {getattr(run, key) for run in several} for key in ("processes", "parallel")
        )
        phrases.append(f"{listed(sorted(counts))} processes under {listed(sorted(names))}")
    training, timing = ([run for run in runs if run.timed is timed] for timed in (False, True))
    if timing:
        rounds = {run.round for run in timing if run.counts}
        of_rounds = f"in {counted(len(rounds), 'round')}"
        phrases.append(f"{counted(timing, 'timing run')} {of_rounds}, {_ok(timing)} ok")
        phrases.append(
            "times estimate the mean step of a long run on this host as it is most of the time"
        )
    if training or not timing:
        phrases.append(f"{counted(training, 'run')}, {_ok(training)} ok")
    if left := sum(not run.counts for run in runs):
        phrases.append(f"{left} not counted")
    if seeds := _seeds(training):
        phrases.append(f"{seeds} per configuration")
    return phrases


def title(environment: Mapping[str, Any]) -> str:
    """Return which model was trained on what, on which machine, and when."""
    about = environment.get("environment") or {}
    models, datasets = values(environment.get("model")), values(environment.get("dataset"))
    names = listed(list(dict.fromkeys(environment.get("devices") or [])))
    if names == "cpu":
        cores = listed(values(about.get("cores")))
        names = listed(values(about.get("cpu"))) or "a CPU"
        names += f" ({cores} cores)" if cores else ""
    trained = " on ".join(filter(None, (listed(models), listed(datasets))))
    return one_line(", ".join(filter(None, (trained, names, _date(about))))) or "Runs"


def machine(runs: Sequence[Run], environment: Mapping[str, Any]) -> str:
    """Return the conditions that are about the machine, as a sentence."""
    about = environment.get("environment") or {}
    known = [*_counts(environment, *_THREADS), *_devices(environment, runs), *_torch(about)]
    text = one_line(", ".join(known))
    return f"{capitalized(text)}." if text else "The machine is not known."


def _counts(environment: Mapping[str, Any], name: str, unit: str) -> list[str]:
    known = [
        round(value, 1) if isinstance(value, float) else value
        for value in values(environment.get(name))
    ]
    return [f"{listed(known)} {unit if known == [1] else plural(0, unit)}"] if known else []


def _torch(about: Mapping[str, Any]) -> list[str]:
    known = values(about.get("torch"))
    return [f"torch {listed(known)}"] if known else []


def _ok(runs: Sequence[Run]) -> int:
    return sum(run.ok for run in runs)


def _seeds(runs: Sequence[Run]) -> str:
    counts = sorted(
        {
            len({run.seed for run in group.of(cell)})
            for group in groups(runs)
            for cell in group.cells
        }
    )
    if not counts:
        return ""
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{span} {plural(counts[-1], 'seed')}"


def _devices(environment: Mapping[str, Any], runs: Sequence[Run]) -> list[str]:
    hosts = {number for run in runs if run.counts for number in run.on_hosts}
    each = f"{len(hosts)} hosts, each with " if len(hosts) > 1 else ""
    about = environment.get("environment") or {}
    cpu = [str(model) for model in values(about.get("cpu"))]
    cores = [f"{listed(known)} cores" for known in [values(about.get("cores"))] if known]
    described = []
    for name, count in Counter(environment.get("devices") or []).items():
        if name == "cpu":  # the processes of a CPU run share one
            details = ", ".join([*cpu, *cores])
            described.append(f"cpu ({details})" if details else "cpu")
        else:
            described.append(f"{count} × {name}")
    return [f"on {each}{' and '.join(described)}"] if described else []


def _commit(about: Mapping[str, Any]) -> str:
    commits = [str(commit)[:10] for commit in values(about.get("commit"))]
    if not commits:
        return ""
    dirty = values(about.get("dirty"))
    state = " with uncommitted changes" if True in dirty else " clean" if dirty else ""
    return f"commit {listed(commits)}{state}"


def _date(about: Mapping[str, Any]) -> str:
    time = about.get("time")
    return str(time["first"])[:10] if isinstance(time, dict) and time.get("first") else ""
