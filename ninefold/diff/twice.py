"""What makes two starts of one command equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ninefold.bench.contestant import Command
from ninefold.diff.compare import Found, find
from ninefold.diff.starts import ALL, Asked, Training, record

SOURCES = {
    "torch": "torch.manual_seed(0), before the network is made",
    "numpy": "numpy.random.seed(0) first",
    "random": "random.seed(0) first",
    "default_rng": "a seed for each numpy.random.default_rng()",
    "hash": "PYTHONHASHSEED=0 in front of python (or sort what a set holds)",
    "deterministic": "CUBLAS_WORKSPACE_CONFIG=:4096:8 in front of python, and "
    "torch.use_deterministic_algorithms(True, warn_only=True)",
    "threads": "OMP_NUM_THREADS=1 in front of python",
}


def needed(
    command: Command, keep: Path, steps: int, says: Callable[[str], None]
) -> tuple[Found, Training, Training, list[str] | None]:
    """Compare two starts as they are; then fix one source of chance after another until they are
    equal, and leave out each that was not needed.

    Returns what was found of the first two, these, and the sources that make two starts equal;
    None: those that are known do not.
    """

    def pair(fixed: Sequence[str]) -> tuple[Found, Training, Training]:
        one, other = (record(command, keep, Asked(steps, fixed)) for _ in "AB")
        return find(one, other), one, other

    fixed, first = list[str](), pair(())
    last = first
    while last[0].inexact is not None:
        source = named(*last, fixed)
        if source is None:
            return *first, None
        fixed.append(source)
        says(f"two starts differ; now with {SOURCES[source]}")
        last = pair(fixed)
    for source in fixed[:-1]:
        others = [each for each in fixed if each != source]
        if pair(others)[0].inexact is None:
            fixed = others
    return *first, fixed


def named(found: Found, one: Training, other: Training, fixed: list[str]) -> str | None:
    """The next source of chance to fix: one that differs and is drawn from, else what is left."""
    left = [source for source in SOURCES if source not in fixed]
    for source in ("torch", "numpy", "random"):
        if source in left and differs(source, one, other):
            return source
    if "default_rng" in left and one.first["born"].get("default_rng"):
        return "default_rng"
    assert found.inexact is not None
    if "hash" in left and found.inexact[1].phase in ("start", "input"):
        return "hash"
    return next((source for source in left if source not in ALL), None)


def differs(source: str, one: Training, other: Training) -> bool:
    """Whether a random state differs before the first step, and is drawn from until the last."""
    a, b = (of.first["rng"].get(source) for of in (one, other))
    states = {one.first["born"].get(source), *(ranks[0]["after"][source] for ranks in one.steps)}
    return a != b and len({*states, a}) > 1
