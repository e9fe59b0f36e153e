"""Compares a study with the table that was published for it.

The published numbers come from a 2021-22 blog post, one RTX 2060 laptop.
"""

from __future__ import annotations

from collections.abc import Sequence

from ninefold.report.answer.tree import PublishedRow, PublishedTable
from ninefold.report.data.cells import Group
from ninefold.report.data.published import Published
from ninefold.report.stats.measures import SECONDS, of_score
from ninefold.report.stats.summaries import summarize
from ninefold.result import SCORE

SOURCE = "a 2021-22 blog post, one RTX 2060 laptop"
DATASET, MODEL, BATCH_SIZE, EPOCHS = "cifar10", "alexnet", 64, 20
LIMITS = (
    "Limits of the published numbers: there is one run per cell, so nothing says how much a repeat "
    "would differ; with one GPU dp and ddp replicate nothing, so their rows show overhead and no "
    "scaling; times are known in whole minutes only."
)


def applies(group: Group) -> bool:
    """Return whether the published table is of a group's dataset, model and score."""
    return (group.dataset, group.model, group.score) == (DATASET, MODEL, SCORE)


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
    accuracy = summarize(group, cell.parallel, cell.amp, of_score()).mean
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
