"""`ninefold.compare`: which configuration trains the caller's model and dataset the fastest."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

from ninefold.api import COMMAND, FILE, OPTIONS, capsule, child
from ninefold.api import show as shown
from ninefold.api.answer import Answer
from ninefold.api.objects import gather
from ninefold.api.session import check_number
from ninefold.compared import axes
from ninefold.errors import ConfigError, Failure, ResourceError, error_text, suggestion
from ninefold.files import read_json, read_text
from ninefold.ranks import started_by
from ninefold.study_record import FILE as STUDY
from ninefold.study_record import StudyRecord
from ninefold.types import MAX_TIME

LOG = "output.txt"  # in the folder: what the command prints, where nobody looks at it

F = TypeVar("F", bound=Callable[..., Any])


def suggesting(function: F) -> F:
    """`function`; of an argument that it does not have it says which one may be meant."""

    @wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        known = signature(function).parameters
        for name in sorted({*named} - {*known}):
            wrong = f"{function.__name__} has no such argument; {suggestion(name, known)}"
            raise ConfigError(name, named[name], f"{wrong}; correct its name")
        return function(*given, **named)

    return called  # type: ignore[return-value]


@suggesting
def compare(
    model: Any,
    dataset: Any,
    loss: Any,
    *,
    test: Any = None,
    metric: Callable[[Any, Any], Any] | None = None,
    forward: Callable[[Any, Any], Any] | None = None,
    batch_size: int | None = None,
    optimizer: str | Callable[[Any], Any] = "adamw",
    parallel: str | Sequence[str] | None = None,
    amp: str | Sequence[str] | None = None,
    minutes: float = 2.0,
    at_most: float | None = None,
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

    Everything runs in processes of its own: nothing of this one is changed, and CUDA may be in use.

    model: a function without arguments that returns the network, called with the run's seed set; or
        the network itself, on the CPU, whose weights all runs then start with.
    dataset, test: anything with __len__ and __getitem__ that gives (input, target); a pair of
        arrays or tensors; a DataLoader; a function that returns one. test is needed for accuracy.
    loss: loss(output, target) returns a scalar tensor, or a number for each example.
    metric: metric(output, target) returns a number for each example, more is better; else accuracy.
    forward: forward(model, batch) returns the loss; `loss` is then None, and items of any kind.
    batch_size: examples in a step, over all processes; None: the DataLoader's, or 64.
    optimizer: adamw, sgd, or a function of parameters that returns a torch optimizer.
    parallel, amp: strategies none, dp, ddp, fsdp; precisions fp32, tf32, bf16, autocast, scaler.
        None: what differs on this machine and is safe without a score. On a CPU none and ddp in
        fp32 and bf16; on a GPU fp32, tf32 and bf16, or fp32 and scaler where it has no bf16; ddp
        only on several.
    minutes: of timing, for all configurations together. A second repetition is made even if it ends
        up to half a minute later, as one alone has no error estimate.
    at_most: minutes after which everything is stopped, with the answer so far; None: no limit.
    ask: time, or time and accuracy, which trains each configuration once per seed. None: time, and
        accuracy where `test` is given.
    seeds, epochs: full training runs of each configuration, for accuracy, and their length; None:
        the epochs of conf/train.yaml.
    processes: of ddp and the like on a CPU; on GPUs there is one for each.
    threads: CPU threads of all processes together; None: all cores, or one where that is faster.
    device: auto, cpu, cuda.
    folder: a new one for all files of the comparison; None: outputs/compare/TIME.
    overrides: further keys, as on the command line (docs/reference/keys.md): "compile=true".
    show: whether to show the progress.

    Raises ConfigError, DataError or ResourceError for arguments that cannot be used, and if none
    could be run the first failure, of any class in ninefold.errors: one line, with your line
    of code as a note. If only some failed, `Answer.failed` says why. KeyboardInterrupt says
    how to resume.
    """
    _require_possible()
    if at_most is not None:
        check_number("at_most", at_most, MAX_TIME)
    if ask is None:
        ask = ["time"] if test is None else ["time", "accuracy"]
    ask = [ask] if isinstance(ask, str) else ask
    compared = axes(device)
    for axis, given in (("parallel", parallel), ("amp", amp)):
        if given is not None:
            compared[axis] = given if isinstance(given, str) else ",".join(given)
    objects = gather(model, dataset, loss, test, metric, forward, optimizer, ask)
    place = _new_folder(folder)
    try:
        options = objects.write(place)
    except OSError as error:
        raise ResourceError(
            "folder",
            place,
            f"it cannot be written to ({error.strerror}); a folder with room for the data is "
            "needed; set folder=",
        ) from error
    chosen = {
        **options,
        **compared,
        "scheduler": "none",
        "batch_size": 64,
        **objects.loader,
        "device": device,
        "launch.cpu_processes": processes,
        "study.ask": f"[{','.join(ask)}]",
        "study.time_budget": minutes,
        "study.control": "true",
        "hydra.sweep.dir": _value(str(place)),
    }
    if batch_size is not None:
        chosen["batch_size"] = batch_size
    chosen |= {k: n for k, n in (("epochs", epochs), ("threads", threads)) if n is not None}
    if isinstance(optimizer, str):
        chosen["optimizer"] = optimizer
    if "accuracy" in ask:
        chosen["seed"] = f"range(0,{seeds})"
    words = [*(f"{key}={value}" for key, value in chosen.items()), *overrides]
    command = ["--config-dir", str(place / OPTIONS), "-m", *words]
    with open(place / COMMAND, "w", encoding="utf-8", opener=capsule.private) as file:
        json.dump(command, file)
    return _run(command, place, at_most, show)


def resume(folder: Path, minutes: float, show: bool) -> Answer:
    """Go on with the comparison in `folder` for so many minutes of timing; return its answer.

    Raises what `compare` does, and ConfigError if the folder holds none of this user.
    """
    try:
        command = json.loads(capsule.read(str(folder / COMMAND)))
        spent = StudyRecord.of(read_json(folder / STUDY)).timing_seconds / 60
    except (OSError, ValueError) as error:
        raise ConfigError(
            "folder",
            folder,
            f"no comparison of yours can be resumed there; {error_text(error)}; one that "
            "ninefold.compare began is needed; compare again",
        ) from error
    budget = f"study.time_budget={spent + minutes:g}"
    return _run(_resuming(command, folder, budget), folder, None, show)


def _resuming(command: Sequence[str], place: Path, *more: str) -> list[str]:
    """The arguments that resume the comparison that `command` began. more: in place of its own."""
    left_out = ("hydra.sweep.dir=", *(f"{word.partition('=')[0]}=" for word in more))
    words = [word for word in command if not word.startswith(left_out)]
    return [*words, *more, f"study.resume={_value(str(place))}"]


def _run(command: Sequence[str], place: Path, at_most: float | None, show: bool) -> Answer:
    """Run `train` with these arguments, which write to `place`, and return the answer."""
    notebook = shown.Notebook() if show and shown.in_notebook() else None
    if show and not notebook:  # it takes seconds until its processes have something to say
        print(f"ninefold.compare: starting, in {place}", file=sys.stderr, flush=True)
    try:
        ended = child.run(
            command,
            place / LOG,
            notebook.hear if notebook else lambda event: None,
            prints=show and not notebook,
            shows=notebook is not None,
            seconds=None if at_most is None else 60 * at_most,
        )
    except KeyboardInterrupt:
        known = "nothing is measured yet"
        if (place / STUDY).exists():
            known = f"ninefold.Answer({str(place)!r}) has what is known"
        raise KeyboardInterrupt(
            f"nothing of it runs any more; {known}; to resume in a shell: {_go_on(command, place)}"
        ) from None
    finally:
        if notebook:
            notebook.close()
    with suppress(ConfigError):  # no run has ended well: the failures say why
        answer = Answer(place, own=True)
        if not ended.failures or any(cell["status"] == "ok" for cell in answer.cells.values()):
            return answer
    if ended.late:
        raise ConfigError(
            "at_most",
            at_most,
            "no configuration has a time after so many minutes; two repetitions take longer; raise "
            f"it, or continue in a shell: {_go_on(command, place)}",
        )
    for failure in ended.failures:
        raise shown.explained(failure)
    raise Failure(
        "ninefold",
        ended.code,
        f"the comparison ended without an answer; {_last_line(place / LOG)}; see {place / LOG}",
    )


def _require_possible() -> None:
    if not sys.platform.startswith("linux"):
        raise ConfigError(
            "platform",
            sys.platform,
            "ninefold.compare starts its processes as only Linux can; Linux is needed; "
            "ninefold.time_steps runs anywhere",
        )
    if started_by():
        raise ConfigError(
            "launcher",
            started_by(),
            "ninefold.compare starts the processes by itself; one process is to call it; leave the "
            "launcher out",
        )


def _new_folder(folder: str | Path | None) -> Path:
    """A folder in which no comparison is. Raises ConfigError."""
    if folder is None:
        folder = Path("outputs") / "compare" / time.strftime("%Y-%m-%d_%H-%M-%S")
        while folder.exists():
            folder = folder.with_name(f"{folder.name}_")
    place = Path(folder)
    if (place / FILE).exists() or (place / STUDY).exists():
        raise ConfigError(
            "folder",
            place,
            "it holds a comparison already; a new folder is needed; name another, or read that "
            "one with ninefold.Answer(FOLDER)",
        )
    return place


def _go_on(command: Sequence[str], place: Path) -> str:
    """The command that resumes a comparison, or begins it if it was stopped before that."""
    if not (place / STUDY).exists():
        return shlex.join(["python", *child.TRAIN, *command])
    words = (
        command
        if any(word.startswith("study.resume=") for word in command)
        else _resuming(command, place)
    )
    return shlex.join(["python", *child.TRAIN, *words])


def _last_line(path: Path) -> str:
    with suppress(OSError, ValueError, IndexError):
        return read_text(path).strip().splitlines()[-1]
    return "it printed nothing"


def _value(text: str) -> str:
    """`text` as the value of an override."""
    if re.fullmatch(r"[\w./-]+", text):
        return text
    return "'" + text.replace("'", "\\'") + "'"
