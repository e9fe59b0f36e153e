"""Whether two starts of a command are identical; if not, from where on, and what makes them so."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ninefold.bench.contestant import LOOK_SECONDS, Command, Contestant
from ninefold.bench.same import apart
from ninefold.tournament.contestant import Ended
from ninefold.waits import poll_until

LEAST = 2  # steps whose weights are compared
LAST = 114  # the last step that is compared: 64 show which optimizer ends a step, then come 50
MORE = 8  # steps after the first difference, in which each source of chance would show itself
SHOWN = 3  # files
SECONDS = 20.0  # that the steps of two starts may take, if they are as far as they have to be


class Source(NamedTuple):
    """A source of chance.

    line: what fixes it. hook: what the hook fixes for that. variables: of the environment.
    """

    name: str
    line: str
    hook: str = ""
    variables: tuple[tuple[str, str], ...] = ()


SOURCES = (
    Source("torch", "torch.manual_seed(0), before the network is made", "torch"),
    Source("numpy", "numpy.random.seed(0) first, and a seed for each default_rng()", "numpy"),
    Source("random", "random.seed(0) first", "random"),
    Source(
        "hash", "PYTHONHASHSEED=0 in front of python (or sort what a set holds)",
        variables=(("PYTHONHASHSEED", "0"),),
    ),
    Source("workers", "num_workers=0 in the DataLoader", "workers"),
    Source(
        "threads", "OMP_NUM_THREADS=1 in front of python", variables=(("OMP_NUM_THREADS", "1"),)
    ),
    Source(
        "deterministic",
        "CUBLAS_WORKSPACE_CONFIG=:4096:8 in front of python, and "
        "torch.use_deterministic_algorithms(True, warn_only=True)",
        "deterministic", (("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),),
    ),
)  # fmt: skip


class Pair(NamedTuple):
    """Two starts.

    steps: the last step that was compared. first: the first one after which weights differ; None:
    they are equal. begin: the first that is known. inputs: whether they got the same until then;
    None: not known. optimizers: that were seen.
    """

    steps: int
    first: int | None
    begin: int
    inputs: bool | None
    optimizers: int


@dataclass(frozen=True)
class Twice:
    """What was found. needed: what makes two starts equal; None: nothing that is known does.

    written: files in the working folder that the starts have written.
    """

    found: Pair
    needed: Sequence[Source] | None = ()
    written: Sequence[str] = ()

    def __str__(self) -> str:
        pair = self.found
        if pair.first is None:
            return f"Two starts are identical: equal weights, bit for bit, up to step {pair.steps}."
        since = "the first steps" if pair.first == pair.begin else f"step {pair.first}"
        seen = {True: ", from equal inputs", False: ", and so do their inputs", None: ""}
        lines = [f"Two starts differ from {since} on{seen[pair.inputs]}."]
        if self.needed is None:
            names = ", ".join(source.name for source in SOURCES)
            lines.append(
                f"They still do with all of this fixed: {names}. Other causes: generators with a "
                "seed of their own, cudnn.benchmark, the time, the order of files, memory that was "
                "never written."
            )
            if self.written:
                lines.append(
                    f"Both starts write to {', '.join(self.written)}: if they read it as well, "
                    "give each its own by {out} in the command."
                )
        else:
            lines += ["They are equal with:", *(f"  {source.line}" for source in self.needed)]
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """The same as JSON."""
        needed = None if self.needed is None else [source.name for source in self.needed]
        return {
            "version": 1,
            "equal": self.found.first is None,
            **self.found._asdict(),
            "needed": needed,
            "written": [*self.written],
        }


def twice(command: Command, keep: Path, says: Callable[[str], None]) -> Twice:
    """Start a command twice, and where that differs, find a smallest set of fixes that helps.

    says: tells what is found meanwhile. Raises ConfigError where a command takes no steps.
    """
    began = time.time()
    found = two_starts(command, keep, ())
    if found.first is None:
        return Twice(found)
    says("two starts differ; now with all fixed that is known")
    one, until = found.optimizers == 1, found.first + MORE
    needed = list(SOURCES)
    if two_starts(command, keep, needed, one, until).first is not None:
        return Twice(found, None, written_since(began, command.folder))
    for source in SOURCES:
        others = [each for each in needed if each is not source]
        if two_starts(command, keep, others, one, until).first is None:
            needed = others
        else:
            says(f"{source.name} is needed")
    enough = two_starts(command, keep, needed, one, until, LAST).first is None
    return Twice(found, needed if enough else SOURCES)


def written_since(began: float, folder: Path) -> list[str]:
    """The first files in `folder` itself that were written after `began`, SHOWN at most."""
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with suppress(OSError):  # it is gone
            found += [path.name] * (path.is_file() and path.stat().st_mtime >= began)
    return found[:SHOWN]


def two_starts(
    command: Command,
    keep: Path,
    fixed: Sequence[Source],
    one: bool = False,
    least: int = 0,
    last: int | None = None,
) -> Pair:
    """Start a command twice with some sources of chance fixed, and compare step by step.

    one: whether it is known to have one optimizer. least: the step up to which they are compared in
    any case, last: if there is time; None: `least`, or LAST.
    """
    variables = {**command.variables, **dict(pair for each in fixed for pair in each.variables)}
    hooks = ",".join(each.hook for each in fixed if each.hook) or "none"
    name = "-".join(["fixed", *(each.name for each in fixed)]) if fixed else "as it is"
    changed = replace(command, variables=variables, fixed=hooks)
    both = list[Contestant]()
    try:
        for number in "12":
            this = replace(changed, name=f"{name} {number}")
            both.append(Contestant(this, 0, keep, set(), True, one))
        for each in both:
            poll_until(each.arrived, interval=LOOK_SECONDS)
        return compared(both, command, least, last or least or LAST)
    finally:
        for each in both:
            each.close()


def compared(both: Sequence[Contestant], command: Command, least: int, last: int) -> Pair:
    """Take step by step with two starts, until they differ. least, last: as in `two_starts`."""
    one, other = both
    began, inputs = time.monotonic(), None
    while one.steps < last:
        try:
            for each in both:
                each.turn(0, 1, weights=True)
        except Ended as ended:
            if ended.code:
                wrong = f"it ended with code {ended.code} after {each.steps} steps"
                said, do = each.last_words, each.correction
                raise command.ended(ended.code, wrong, said, do) from None
            break
        if not one.weights or not other.weights:
            raise command.failure(
                "its weights cannot be read", "an optimizer of PyTorch's kind has them", "use one"
            )
        known = None not in (one.said["inputs"], other.said["inputs"])
        inputs = one.said["inputs"] == other.said["inputs"] if known else None
        found = apart(one.weights, other.weights)
        if found is not None and found.first is not None:
            return Pair(found.last, found.first, min(one.weights), inputs, one.optimizers)
        late = time.monotonic() - began > SECONDS
        if late and one.steps >= least and len(one.weights) >= LEAST:
            break
    if not (one.weights and other.weights):
        wrong = "it ends before weights can be compared"
        raise command.failure(wrong, "66 steps are enough", "let it train longer")
    if apart(one.weights, other.weights) is None:
        if all(np.isfinite(shown).all() for shown in one.weights.values()):
            raise command.failure(
                "no weights changed in the steps that it took",
                "66 steps are enough",
                "let it train longer",
            )
        raise command.failure(
            "its weights are no finite numbers", "those of two starts are compared", "see its loss"
        )
    return Pair(max(one.weights), None, min(one.weights), inputs, one.optimizers)
