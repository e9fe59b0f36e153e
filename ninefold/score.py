"""Scores, further figures and throughputs with their units; phases of a training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SCORE = "accuracy"  # the score's name in results that name none
LOSS = "loss"  # the score's name where networks are told apart by their loss alone
# What keys of results, evaluations and checkpoints were called before they had a version.
FORMER_KEYS = {
    "score": "score_name",
    "accuracy": "score",
    **{f"{which}_accuracy": f"{which}_score" for which in ("best", "val", "test")},
    "images_per_second": "examples_per_second",
}
PHASES = ("data", "transfer", "forward", "backward", "optimizer")  # of a training step
SHARE = "share"  # the unit of a number from 0 to 1, which is shown in percent


@dataclass(frozen=True)
class Score:
    """Score that networks are told apart by: its name and unit, and whether more is better.

    name: a noun, which all output uses: `accuracy`, `RMSE`. One that begins with "within" (`within
        4 mm`) is reported as "share within 4 mm".
    unit: SHARE, empty for a plain number, or as it is written: m, nats, dB.
    better: more or less.
    margin: what a cell may lose of it against none-fp32 and still be safe, in its unit, of a share
        in percentage points. None: of a share 0.5; of another nothing, until report.margin is set.
    """

    name: str
    unit: str = SHARE
    better: str = "more"
    margin: float | None = None

    @property
    def mark(self) -> str:
        """Unit in a table: % for a share, which is shown in percent."""
        return "%" if self.unit == SHARE else self.unit

    @property
    def scale(self) -> float:
        """Factor of a value in a table: 100 for a share."""
        return 100.0 if self.unit == SHARE else 1.0

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.better == "more" else -1

    def beats(self, value: float, other: float) -> bool:
        """Return whether `value` is better than `other`."""
        return self.sign * value > self.sign * other

    def text(self, value: float) -> str:
        """A value as a line shows it: a share as a fraction, others with their unit."""
        if self.unit == SHARE:
            return f"{value:.4f}"
        return f"{value:.6g} {self.unit}".rstrip()


ACCURACY = Score(SCORE)


def by_present_keys(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return stored values under the keys of today, whichever version has written them."""
    former = any(key in stored for key in FORMER_KEYS if key != "score")
    if not former or "score_name" in stored or "version" in stored:
        return stored
    return {FORMER_KEYS.get(key, key): value for key, value in stored.items()}


@dataclass(frozen=True)
class Counted:
    """Unit of a throughput: images, rows, tokens, of which an example has so many."""

    name: str = "images"
    per_example: int = 1


IMAGES = Counted()


@dataclass(frozen=True)
class Figure:
    """A further figure of a task: name, value (None: undefined), unit and direction as a Score."""

    name: str
    value: float | None
    unit: str = SHARE
    better: str = "more"

    @property
    def key(self) -> str:
        """Name in files: with the unit, unless it is a share or a plain number."""
        return self.name if self.unit in ("", SHARE) else f"{self.name} {self.unit}"
