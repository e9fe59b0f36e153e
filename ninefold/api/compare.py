"""`ninefold.compare`: which configuration trains the caller's model and dataset the fastest."""

from __future__ import annotations

import json
import operator
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ninefold.api import COMMAND, FILE, OPTIONS, capsule
from ninefold.api.answer import Answer, answered
from ninefold.api.objects import gather, held_on_gpus, needing_room
from ninefold.default_axes import axes, left_out
from ninefold.errors import ConfigError
from ninefold.ranks import started_by
from ninefold.study_record import FILE as STUDY
from ninefold.words import as_value


def compare(
    model: Any,
    dataset: Any,
    loss: Any = None,
    *,
    test: Any = None,
    metric: Callable[[Any, Any], Any] | None = None,
    forward: Callable[[Any, Any], Any] | None = None,
    batch_size: int | None = None,
    optimizer: str | Callable[[Any], Any] = "adamw",
    parallel: str | Sequence[str] | None = None,
    amp: str | Sequence[str] | None = None,
    minutes: float = 2.0,
    ask: str | Sequence[str] | None = None,
    seeds: int = 3,
    epochs: int | None = None,
    processes: int = 2,
    threads: int | None = None,
    device: str = "auto",
    folder: str | Path | None = None,
    overrides: Sequence[str] = (),
    show: bool = True,
) -> Answer:
    """Measure which parallel strategy and precision trains your model the fastest.

    It runs in new processes and leaves this one as it is, which may be using CUDA.

    model: a function without arguments that returns the network, called with the run's seed set; or
        the network itself, on the CPU, whose weights all runs then start with.
    dataset, test: anything with __len__ and __getitem__ that gives (input, target); a pair of
        arrays or tensors; a DataLoader, whose collate_fn makes batches; a function that returns a
        dataset. Else default_collate makes them, whose float64 becomes float32. test is needed for
        accuracy.
    loss: loss(output, target) returns a scalar tensor, or a tensor [n] with one for each example.
        One that is a module is in the network's mode, unless it was in evaluation mode.
    metric: metric(output, target) returns a tensor [n], more is better (else return its negative);
        None: accuracy, of outputs [n, classes] and targets [n].
    forward: forward(model, batch) returns the loss; `loss` is then None, and items of any kind.
    batch_size: examples in a step, over all processes; None: the DataLoader's, or 64.
    optimizer: adamw, sgd, or a function of parameters that returns a torch optimizer.
    parallel, amp: strategies and precisions, such as none, ddp and fp32, bf16; `ninefold conf amp`
        lists all. None: on a CPU none and ddp in fp32, and in bf16 if it has instructions for it;
        on a GPU fp32, tf32 and bf16, or fp32 and scaler where it has no bf16; ddp only on several.
    minutes: of timing, for all configurations together. The turns of the first three rounds, which
        an answer takes, may take half as long again. Full training runs are not part of it:
        overrides="study.budget=60" limits them.
    ask: time, or time and score, which trains each configuration once per seed. None: time, and
        score where `test` is given.
    seeds, epochs: full training runs of each configuration, for accuracy, and their length; None:
        10.
    processes: of ddp and the like on a CPU; on GPUs there is one for each.
    threads: CPU threads of all processes together; None: all cores. A tiny network may be faster
        with 1, which another comparison tells.
    device: auto, cpu, cuda, or one GPU, as cuda:1.
    folder: a new one for all files of the comparison; None: outputs/compare/TIME.
    overrides: further keys, as on the command line (docs/reference/keys.md): "compile=true".
    show: whether to show the progress.

    Returns an `Answer`: `best` is the configuration that is named, `settings()` says it for your
    loop. Raises ConfigError, DataError or ResourceError for arguments that cannot be used. If no
    configuration could be run it raises the first one's failure, any class of ninefold.errors: one
    line, with your line of code as a note. If only some failed, `Answer.failed` says why.
    KeyboardInterrupt says how to resume; `ninefold.Answer(folder)` is what is known then.
    """
    _require_possible()
    try:
        range(operator.index(seeds))[0]
    except (TypeError, IndexError) as error:
        wrong, allowed = "it is no number of runs", "a whole number from 1 is allowed"
        raise ConfigError("seeds", repr(seeds), wrong, allowed, "correct it") from error
    if ask is None:
        ask = ["time"] if test is None else ["time", "score"]
    ask = [part.strip() for word in listed(ask) for part in word.split(",")]
    compared = asked_axes(device, parallel, amp)
    objects = gather(model, dataset, loss, test, metric, forward, optimizer, ask)
    objects.notes.extend([*held_on_gpus(), *(left_out(compared) if amp is None else ())])
    place = new_folder(folder)
    seeded = f"range(0,{operator.index(seeds)})" if "score" in ask else None
    named = {"batch_size": batch_size, "epochs": epochs, "threads": threads, "seed": seeded}
    try:
        chosen = {
            **objects.write(place),
            **compared,
            "scheduler": "none",
            "batch_size": 64,
            **objects.keys,
            "device": device,
            "launch.cpu_processes": processes,
            "study.ask": f"[{','.join(ask)}]",
            "study.time_budget": minutes,
            "study.control": "true",
            "hydra.sweep.dir": as_value(str(place)),
        }
        words = as_words(chosen, named, overrides)
        command = ["--config-dir", str(place / OPTIONS), "-m", *words]
        with (
            needing_room(place),
            open(place / COMMAND, "w", encoding="utf-8", opener=capsule.private) as file,
        ):
            json.dump(command, file)
        return answered(command, place, show)
    finally:
        if not (place / STUDY).exists():  # nothing can go on with the data
            shutil.rmtree(place / FILE.parent, ignore_errors=True)
            with suppress(OSError):  # the command has written to it
                place.rmdir()


def as_words(chosen: Mapping[str, Any], named: Mapping[str, Any], overrides: object) -> list[str]:
    """The words of a command that chooses these values. named: those of arguments; None: not so."""
    given = {**chosen, **{key: value for key, value in named.items() if value is not None}}
    return [*(f"{key}={value}" for key, value in given.items()), *listed(overrides)]


def listed(words: object) -> list[str]:
    """Words as a list, of which one may be given alone, or none as None."""
    if words is None:
        return []
    if isinstance(words, str) or not isinstance(words, Iterable):
        return [str(words)]
    return [*map(str, words)]


def asked_axes(device: object, parallel: object, amp: object) -> dict[str, str]:
    """Return the strategies and the precisions as overrides have them; None: what differs here."""
    found = axes(str(device))
    for axis, given in (("parallel", parallel), ("amp", amp)):
        if given is not None:
            found[axis] = ",".join(listed(given))
    return found


def _require_possible() -> None:
    if not sys.platform.startswith("linux"):
        wrong = "ninefold.compare starts its processes as only Linux can"
        do = "ninefold.time_steps runs anywhere"
        raise ConfigError("platform", sys.platform, wrong, "Linux is needed", do)
    if launcher := started_by():
        wrong = "ninefold.compare starts the processes by itself"
        allowed = "one process is to call it"
        raise ConfigError("launcher", launcher, wrong, allowed, "leave the launcher out")


def new_folder(folder: str | Path | None) -> Path:
    """A folder in which no comparison is, taken for this one. Raises ConfigError, ResourceError."""
    if folder is None:
        place = Path("outputs") / "compare" / time.strftime("%Y-%m-%d_%H-%M-%S")
        while not _take(place):
            place = place.with_name(f"{place.name}_")
        return place
    place = Path(folder)
    if (place / STUDY).exists() or not _take(place):
        wrong = "it holds a comparison already"
        do = "name another, or read that one with ninefold.Answer(FOLDER)"
        raise ConfigError("folder", place, wrong, "a new folder is needed", do)
    return place


def _take(place: Path) -> bool:
    """Make the folder of objects, which only one comparison can; return whether this one did."""
    with needing_room(place):
        place.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (place / FILE.parent).mkdir(mode=0o700)
            return True
    return False
