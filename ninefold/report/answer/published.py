"""Compares a study with a table that was published for it, experiments/STUDY/published.csv.

The published numbers come from a 2021-22 blog post, one RTX 2060 laptop.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninefold.errors import ConfigError
from ninefold.report.answer.tree import PublishedRow, PublishedTable
from ninefold.report.data.cells import Group, summarize
from ninefold.report.stats.measures import ACCURACY, SECONDS

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
SOURCE = "a 2021-22 blog post, one RTX 2060 laptop"
DATASET, MODEL, BATCH_SIZE, EPOCHS = "cifar10", "alexnet", 64, 20
LIMITS = (
    "Limits of the published numbers: there is one run per cell, so nothing says how much a repeat "
    "would differ; with one GPU dp and ddp replicate nothing, so their rows show overhead and no "
    "scaling; times are known in whole minutes only."
)


@dataclass(frozen=True)
class Published:
    """One published cell: minutes for all epochs, accuracy as a fraction; None if not given."""

    parallel: str
    amp: str
    minutes: float | None
    accuracy: float | None


def read_published(environment: Mapping[str, Any]) -> list[Published]:
    """Return the published table of the environment's study, empty where there is none."""
    study = environment.get("study")
    path = EXPERIMENTS / str(study) / "published.csv"
    if not isinstance(study, str) or not path.is_file():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [
                Published(
                    row["parallel"],
                    row["amp"],
                    float(row["minutes"]) if row["minutes"] else None,
                    float(row["accuracy"]) if row["accuracy"] else None,
                )
                for row in csv.DictReader(file)
            ]
    except (KeyError, TypeError, ValueError) as problem:
        raise ConfigError(
            "published.csv",
            study,
            f"cannot be read ({problem})",
            "columns parallel, amp, minutes, accuracy",
            "restore it from version control",
        ) from None


def applies(group: Group) -> bool:
    """Return whether the published table is of a group's dataset and model."""
    return (group.dataset, group.model) == (DATASET, MODEL)


def compare(group: Group, published: Sequence[Published]) -> PublishedTable | None:
    """Return a group's cells next to the published ones, None where they do not apply."""
    if not published or not applies(group):
        return None
    return PublishedTable(_about(group), LIMITS, [_row(group, cell) for cell in published])


def _about(group: Group) -> str:
    """Return how the published table was made, how ours was, and how they are compared."""
    text = (
        f"Published: {SOURCE}; batch {BATCH_SIZE}, {EPOCHS} epochs. Ours: {group.size}; our "
        f"minutes are seconds per epoch (inner clock) times {EPOCHS}. A difference is ours minus "
        "published."
    )
    if group.epochs != EPOCHS:
        text += f" Accuracies after another number of epochs than {EPOCHS} are not subtracted."
    return text


def _row(group: Group, cell: Published) -> PublishedRow:
    seconds = summarize(group, cell.parallel, cell.amp, SECONDS).mean
    accuracy = summarize(group, cell.parallel, cell.amp, ACCURACY).mean
    theirs = None if cell.accuracy is None else 100 * cell.accuracy
    points = None
    if group.epochs == EPOCHS and accuracy is not None and theirs is not None:
        points = accuracy - theirs
    return PublishedRow(
        cell=f"{cell.parallel}-{cell.amp}",
        minutes_published=cell.minutes,
        minutes=None if seconds is None else seconds * EPOCHS / 60,
        accuracy_published=theirs,
        accuracy=accuracy,
        points=points,
    )
