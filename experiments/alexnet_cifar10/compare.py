"""Print a recording of this study beside the published table: minutes and accuracy of each cell.

    python experiments/alexnet_cifar10/compare.py RECORDING

RECORDING has a runs.csv, as outputs/.../report has. Minutes are seconds per epoch of the inner
clock times 20; a difference is ours minus published.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from ninefold.answer.cell import Cell, plainness  # noqa: E402
from ninefold.answer.gather import gather  # noqa: E402
from ninefold.answer.grouping import groups, largest_first  # noqa: E402
from ninefold.answer.measures import SECONDS  # noqa: E402
from ninefold.answer.rounds import turns_of  # noqa: E402
from ninefold.answer.study_facts import StudyFacts  # noqa: E402
from ninefold.numbers import MISSING, number  # noqa: E402
from ninefold.report.data.runs import read_csv  # noqa: E402
from ninefold.stats.statistics import estimate  # noqa: E402
from ninefold.study_record import StudyRecord  # noqa: E402
from ninefold.tables import grid  # noqa: E402

EPOCHS = 20  # of the published runs
HEADER = (
    *("cell", f"minutes for {EPOCHS} epochs, published", "ours", "difference"),
    *("accuracy %, published", "ours", "difference, points"),
)
LIMITS = (
    "Published: a 2021-22 blog post, one RTX 2060 laptop, one run per cell, so that nothing says "
    "how much a repeat would differ; with one GPU dp and ddp replicate nothing; times are known in "
    "whole minutes only."
)


def main(arguments: list[str]) -> int:
    """Print the table; accuracies after another number of epochs are not subtracted."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    group = largest_first(groups(read_csv(Path(arguments[0]) / "runs.csv")))[0]
    evidence = gather(group, StudyRecord(), turns_of(group.runs, StudyRecord()))
    lines = (HERE / "published.csv").read_text().splitlines()[1:]
    table = {Cell(each["parallel"], each["amp"]): each for each in csv.DictReader(lines)}
    rows = [_row(evidence, cell, table[cell]) for cell in sorted(table, key=plainness)]
    print(grid(HEADER, rows))
    print(f"\nOurs: {group.title}.\n{LIMITS}")
    return 0


def _row(evidence: StudyFacts, cell: Cell, published: dict[str, str]) -> list[str]:
    seconds = estimate(SECONDS.values(evidence.group).get(cell, {})).mean
    ours = None if seconds is None else seconds * EPOCHS / 60
    score = estimate(evidence.scores.get(cell, {})).mean
    minutes, accuracy = (
        float(text) if (text := published[name]) else None for name in ("minutes", "accuracy")
    )
    percent = None if accuracy is None else 100 * accuracy
    points = None
    if score is not None and percent is not None and evidence.group.epochs == EPOCHS:
        points = score - percent
    return [
        str(cell),
        "not given" if minutes is None else f"{minutes:g}",
        MISSING if ours is None else f"{ours:.2f}",
        MISSING if ours is None or minutes is None else number(ours - minutes, 1, sign=True),
        "not given" if percent is None else f"{percent:.2f}",
        MISSING if score is None else f"{score:.2f}",
        MISSING if points is None else number(points, 2, sign=True),
    ]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
