"""Sets a study's results beside the table that was published for it.

The published numbers come from a 2021-22 blog post, one RTX 2060 laptop.
"""

from __future__ import annotations

from collections.abc import Sequence

from ninefold.report.data.cells import Group
from ninefold.report.data.published import Published
from ninefold.report.numbers import MISSING, signed, spread
from ninefold.report.render.markdown import grid
from ninefold.report.stats.measures import ACCURACY, SECONDS
from ninefold.report.stats.summaries import summarize

SOURCE = "a 2021-22 blog post, one RTX 2060 laptop"
DATASET, MODEL, BATCH_SIZE, EPOCHS = "cifar10", "alexnet", 64, 20

NOT_GIVEN = "not given"
LIMITS = (
    "What the published numbers cannot tell: there is one run per cell, so nothing says how far a "
    "repeat would be off; with one GPU dp and ddp replicate nothing, so their rows show overhead "
    "and no scaling; and of each time only the whole minutes are known."
)


def compare(group: Group, published: Sequence[Published]) -> str:
    """Return the section that sets one group's cells beside the published ones."""
    heading = "### Beside the published table\n\n"
    if not applies(group):
        return heading + f"Not compared: the published table is {MODEL} on {DATASET} ({SOURCE})."
    header = (
        "cell", f"minutes for {EPOCHS} epochs, published", "ours", "difference",
        "accuracy %, published", "ours", "difference, points",
    )  # fmt: skip
    table = grid(header, [_row(group, cell) for cell in published])
    return f"{heading}{about(group)}\n\n{table}\n\n{LIMITS}"


def applies(group: Group) -> bool:
    """Whether the published table is of a group's dataset and model."""
    return (group.dataset, group.model) == (DATASET, MODEL)


def about(group: Group) -> str:
    """Return how the published table came about, how ours did, and how they are compared."""
    text = (
        f"Published: {SOURCE}; batch {BATCH_SIZE}, {EPOCHS} epochs. Ours: {group.size}; our "
        f"minutes are seconds per epoch (inner clock) times {EPOCHS}. A difference is ours minus "
        "published."
    )
    if group.epochs != EPOCHS:
        text += f" Accuracies after another number of epochs than {EPOCHS} are not subtracted."
    return text


def _row(group: Group, cell: Published) -> list[str]:
    seconds = summarize(group, cell.parallel, cell.amp, SECONDS)
    accuracy = summarize(group, cell.parallel, cell.amp, ACCURACY)
    scale = EPOCHS / 60
    minutes = None if seconds.mean is None else seconds.mean * scale
    minutes_sd = None if seconds.sd is None else seconds.sd * scale
    percent = None if cell.accuracy is None else 100 * cell.accuracy
    row = [f"{cell.parallel}-{cell.amp}"]
    row += [NOT_GIVEN if cell.minutes is None else f"{cell.minutes:g}"]
    row += [_ours(minutes, minutes_sd, 2, seconds.status), _difference(minutes, cell.minutes, 1)]
    row += [NOT_GIVEN if percent is None else f"{percent:.2f}"]
    row += [_ours(accuracy.mean, accuracy.sd, 2, accuracy.status)]
    comparable = percent if group.epochs == EPOCHS else None
    return [*row, _difference(accuracy.mean, comparable, 2)]


def _ours(mean: float | None, sd: float | None, decimals: int, status: str | None) -> str:
    if mean is None:
        return status or MISSING
    return spread(mean, sd, decimals)


def _difference(ours: float | None, published: float | None, decimals: int) -> str:
    if ours is None or published is None:
        return MISSING
    return signed(ours - published, decimals)
