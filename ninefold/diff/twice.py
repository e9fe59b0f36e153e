"""Two starts of one command: in what they differ, and what makes them equal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ninefold.bench.command import Command
from ninefold.diff.compare import Divergence, find
from ninefold.diff.kinds import answer, remarks, size, where
from ninefold.diff.starts import record

SOURCES = {
    "torch": "torch.manual_seed(0), before the network is made",
    "numpy": "numpy.random.seed(0) first",
    "random": "random.seed(0) first",
    "default_rng": "a seed for each numpy.random.default_rng(), SeedSequence() and seed()",
    "hash": "PYTHONHASHSEED=0 in front of python (or sort what a set holds)",
    "deterministic": "CUBLAS_WORKSPACE_CONFIG=:4096:8 in front of python, and "
    "torch.use_deterministic_algorithms(True, warn_only=True)",
    "threads": "OMP_NUM_THREADS=1 in front of python",
}
SMALL = 1e-5  # a difference below may be that of an order of additions


def two_starts(command: Command, keep: Path, steps: int, only: bool = False) -> dict[str, Any]:
    """Compare two starts as they are; then fix one source of chance after another until they are
    equal, and leave out each that was not needed. only: whether that is not looked for.
    """

    def pair(fixed: Sequence[str]) -> Divergence:
        one, other = (record(command, keep, steps, fixed=fixed) for _ in "AB")
        return find(one, other)

    parting = pair(())
    fixed, last = list[str](), parting
    for source in [] if only else possible(parting):
        if last.inexact is not None:
            print(f"two starts differ; now with {SOURCES[source]}", file=sys.stderr)
            fixed.append(source)
            last = pair(fixed)
    for source in [] if last.inexact else fixed[:-1]:
        others = [each for each in fixed if each != source]
        fixed = fixed if pair(others).inexact else others
    data = answer(parting, exact=True)
    data["needed"] = None if last.inexact else fixed
    said = [data["text"]]
    if parting.inexact:
        step, each = parting.inexact
        first = f"{where(parting, each)}, {size(each)}"
        said = [f"Two starts differ from step {step} on, first in {first}."]
        if last.inexact and not only:
            small = last.inexact[1].distance < SMALL
            why = "an order of additions that is not fixed" if small else "chance"
            said[0] += f" They still do with all of this fixed: {', '.join(fixed)}. It is {why}."
            data["kind"] = "not-fixed" if parting.beyond else data["kind"]
        elif not only:
            said[0] += " They are equal with:"
            said += [f"  {SOURCES[source]}" for source in fixed]
    said += dict.fromkeys(remarks(parting.one, parting.other))
    return {**data, "text": "\n".join(said)}


def possible(parting: Divergence) -> list[str]:
    """The sources of chance that may set two starts apart, the likely ones first."""
    evidence = {source: differs(source, parting) for source in ("numpy", "random")}
    evidence["torch"] = differs("torch", parting) or differs("cuda", parting)
    evidence["default_rng"] = "numpy" in parting.one.first["rng"]  # in workers no draw is seen
    return [source for source in SOURCES if evidence.get(source, True)]


def differs(source: str, parting: Divergence) -> bool:
    """Whether a random state differs before the first step, and is drawn from until the last."""
    one, other = parting.one, parting.other
    a, b = (of.first["rng"].get(source) for of in (one, other))
    later = {ranks[0]["after"].get(source) for ranks in one.steps}
    return a != b and len({a, one.first["born"].get(source), *later}) > 1
