"""What looks on while training steps run (profile=python, profile=io), and what it tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

SHORT = 0.1  # share of a step from which on waiting for data is worth an effort; see the report


class Watch:
    """Looks on while training steps run; this one does not look.

    notes: sentences for result.json about what it costs.
    """

    notes: ClassVar[Sequence[str]] = ()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()  # a run that fails or is preempted has not stopped its clock

    def start(self) -> None:
        """Training steps begin: an epoch, or what is left of one."""

    def stop(self) -> None:
        """They end, or had ended already. What was seen so far is written to files."""

    def summary(self, phases: Mapping[str, float]) -> list[str]:
        """Lines to print at the end, the last of which names the bottleneck; phases: see Clock."""
        return []


def bottleneck(phases: Mapping[str, float]) -> str:
    """One sentence: what share of a training step waits for data; phases: see Clock."""
    whole = sum(phases.values())
    if not whole:
        return (
            "What share of a step waits for data is not known: no step's phases were timed "
            "(clock.sample, and at least half as many steps)."
        )
    share = (phases["data"] + phases["transfer"]) / whole
    said = f"A training step waits for data {share:.0%} of its time (reading, preparing, copying)"
    if share >= 0.5:
        return f"{said}: data is the bottleneck."
    if share >= SHORT:
        most = f"×{1 / (1 - share):.2f}"
        return (
            f"{said}: data is not the bottleneck, yet faster loading gains up to {most} in speed."
        )
    return f"{said}: data is not the bottleneck, and faster loading would gain little."
