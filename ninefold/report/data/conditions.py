"""Describes in phrases the conditions that the runs of a report were made under."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ninefold.answer.grouping import groups
from ninefold.answer.runs import Run, device_lists
from ninefold.errors import one_line
from ninefold.numbers import capitalized, counted, listed, plural, rounded_epochs
from ninefold.report.data.environment import values

Environment = Mapping[str, Any]  # the content of environment.json


def conditions(runs: Sequence[Run], environment: Environment) -> list[str]:
    """Return the conditions that all the runs were made under, a phrase each."""
    about = environment.get("environment") or {}
    named = (("dataset", "dataset"), ("model", "model"), ("batch_size", "batch size"))
    phrases = [
        f"{label} {listed(known)}"
        for name, label in named
        if (known := values(environment.get(name)))
    ]
    phrases += [*_counts(environment, "epochs", "epoch"), *_threads(environment)]
    workers = sorted({run.loader_workers for run in runs if run.loader_workers is not None})
    if any(workers):
        phrases.append(f"{listed(workers)} {plural(workers[-1], 'loader worker')} per process")
    phrases += [*_devices(environment, runs), *_torch(about), *_commit(about), *_date(about)]
    several = [run for run in runs if run.ok and (run.processes or 1) > 1 and not run.scaling]
    if several:
        counts, names = {run.processes for run in several}, {run.parallel for run in several}
        phrases.append(f"{listed(sorted(counts))} processes under {listed(sorted(names))}")
    training, timing = ([run for run in runs if run.timed is timed] for timed in (False, True))
    if timing:
        rounds = counted([*{run.round for run in timing if run.counts}], "round")
        phrases.append(f"{counted(timing, 'timing run')} in {rounds}, {_ok(timing)} ok")
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


def title(environment: Environment) -> str:
    """Return which model was trained on what, on which machine, and when."""
    about = environment.get("environment") or {}
    models, datasets = values(environment.get("model")), values(environment.get("dataset"))
    names = listed(list(dict.fromkeys(environment.get("devices") or [])))
    if names == "cpu":
        cores = listed(values(about.get("cores")))
        names = listed(values(about.get("cpu"))) or "a CPU"
        names += f" ({cores} cores)" if cores else ""
    trained = " on ".join(filter(None, (listed(models), listed(datasets))))
    return one_line(", ".join(filter(None, (trained, names, *_date(about))))) or "Runs"


def machine(runs: Sequence[Run], environment: Environment) -> str:
    """Return the conditions that are about the machine, as a sentence."""
    about = environment.get("environment") or {}
    known = [*_threads(environment), *_devices(environment, runs), *_torch(about)]
    text = one_line(", ".join(known))
    return f"{capitalized(text)}." if text else "The machine is not known."


# Each returns a phrase, or nothing where it is not known.


def _counts(environment: Environment, name: str, unit: str) -> list[str]:
    known = [
        rounded_epochs(value) if isinstance(value, float) else value
        for value in values(environment.get(name))
    ]
    return [f"{listed(known)} {unit if known == [1] else plural(0, unit)}"] if known else []


def _threads(environment: Environment) -> list[str]:
    return _counts(environment, "threads", "CPU thread")


def _torch(about: Environment) -> list[str]:
    known = values(about.get("torch"))
    return [f"torch {listed(known)}"] if known else []


def _devices(environment: Environment, runs: Sequence[Run]) -> list[str]:
    hosts = {number for run in runs if run.counts for number in run.on_hosts}
    about = environment.get("environment") or {}
    known = [str(model) for model in values(about.get("cpu"))]
    known += [f"{listed(cores)} cores" for cores in [values(about.get("cores"))] if cores]
    cpu = f"cpu ({', '.join(known)})" if known else "cpu"  # the processes of a CPU run share one
    most = Counter(environment.get("devices") or [])  # that one run had
    described = " or ".join(
        " and ".join(cpu if name == "cpu" else f"{most[name]} × {name}" for name in names)
        for names in device_lists(runs)
    )
    if described and len(hosts) > 1:
        each = f"each with {described}" if {*most} == {"cpu"} else f"with up to {described} a run"
        return [f"on {len(hosts)} hosts, {each}"]
    return [f"on {described}"] if described else []


def _commit(about: Environment) -> list[str]:
    commits = [str(commit)[:10] for commit in values(about.get("commit"))]
    dirty = values(about.get("dirty"))
    state = " with uncommitted changes" if True in dirty else " clean" if dirty else ""
    return [f"commit {listed(commits)}{state}"] if commits else []


def _date(about: Environment) -> list[str]:
    time = about.get("time")
    return [str(time["first"])[:10]] if isinstance(time, dict) and time.get("first") else []


def _ok(runs: Sequence[Run]) -> int:
    return sum(run.ok for run in runs)


def _seeds(runs: Sequence[Run]) -> str:
    """How many seeds each configuration has; nothing without one."""
    found = groups(runs)
    counts = {len({run.seed for run in group.of(cell)}) for group in found for cell in group.cells}
    if not counts:
        return ""
    least, most = min(counts), max(counts)
    return f"{least if least == most else f'{least} to {most}'} {plural(most, 'seed')}"
