"""`launch.dry=true`: what each process would hold and send, instead of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ninefold.config.job import TrainJob
from ninefold.config.spec import RunSpec
from ninefold.errors import ConfigError, Failure
from ninefold.files import read_json
from ninefold.launch.run import DRY, start
from ninefold.study.find import against_one_new_job

MEGA = 1e6
COLUMNS = ("processes", "examples", "parameters", "gradients", "optimizer", "buffers")
FURTHER = ("all of it", "sent a step", "messages")


def problems(config: DictConfig) -> list[Failure]:
    """What keeps this command from a dry run, if it asks for one."""
    if OmegaConf.select(config, "launch.dry") is not True:
        return []
    if (against := against_one_new_job(config, "processes")) is None:
        return []
    wrong, do = against
    return [ConfigError("launch.dry", "true", f"{wrong}; one process pretends to be all; {do}")]


def lines(job: TrainJob, folder: Path) -> list[str]:
    """What each process of a checked job would hold and send, as a table. Raises Failure."""
    spec = RunSpec(
        command=DRY,
        job=job.text(),
        folder=folder,
        started=time.time(),
        grace=job.values["launch"]["grace"],
        cache=job.cache,
        quiet=True,
    )
    start(spec, job)
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
