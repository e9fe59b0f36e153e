"""`launch.dry=true`: what each process would hold and send, instead of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ninefold.config.job import Settled
from ninefold.files import read_json
from ninefold.launch.run import DRY, spec_of, start

MEGA = 1e6
COLUMNS = ("processes", "examples", "parameters", "gradients", "optimizer", "buffers")
FURTHER = ("all of it", "sent a step", "messages")


def lines(job: Settled, folder: Path) -> list[str]:
    """What each process of a job would hold and send, as a table. Raises Failure."""
    start(spec_of(job, folder, command=DRY, quiet=True), job)
    shares = read_json(folder / "dry.json")["shares"]
    head = f"parallel={job.choices['parallel']}: MB of each process, without activations"
    return [head, *_table([[*COLUMNS, *FURTHER], *map(_row, shares)])]


def _row(share: Mapping[str, Any]) -> list[str]:
    memory = share["memory"]
    sizes = [*(memory[kind] for kind in COLUMNS[2:]), sum(memory.values()), share["sent"]]
    return [
        str(share["processes"]),
        str(share["examples"]),
        *(f"{size / MEGA:.3f}" for size in sizes),
        str(share["messages"]),
    ]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
