"""Weights & Biases: settings, and the metrics of metrics.jsonl under the same names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ninefold import secrets
from ninefold.extensions.trackers.tracking import Point, Tracked
from ninefold.logger import Run

EXTRA = "wandb"
OFFLINE = ("offline", "dryrun")
KEY = "WANDB_API_KEY"


def logger(
    run: Run, project: str, entity: str | None, group: str | None, mode: str | None, wait: float
) -> Tracked:
    """The logger of a run.

    project, entity, group: see W&B. mode: online or offline; None: WANDB_MODE, else online.
    wait: seconds after the end of the run for what the server has not taken.
    """
    if value := os.environ.get(KEY):
        secrets.note(KEY, value)
    mode = mode or os.environ.get("WANDB_MODE") or "online"
    where = {"project": project, "entity": entity, "group": group, "mode": mode}
    local = mode in OFFLINE
    return Tracked(run, EXTRA, lambda about, wait: Client(about, where, wait), wait, local)


class Client:
    """What talks to W&B, through the process that its library starts."""

    def __init__(
        self, about: Mapping[str, Any], where: Mapping[str, str | None], wait: float
    ) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        self._wandb, self._about, self._where, self._wait = wandb, about, where, wait

    def start(self) -> str | None:
        about, wandb = self._about, self._wandb
        offline = self._where["mode"] in OFFLINE
        self._run = wandb.init(
            **self._where,
            id=about["id"],
            name=about["name"],
            dir=about["folder"],
            config=about["settings"],
            resume=None if offline else "allow",
            reinit="create_new",  # beside runs of the user's, and of other jobs of this process
            settings=wandb.Settings(
                console="off",
                disable_git=True,
                save_code=False,
                finish_timeout=self._wait,
                finish_timeout_raises=True,
            ),
        )
        if offline and about["resumes"]:
            return (
                "W&B cannot resume offline: wandb/ has a second offline run with the same id; "
                "sync them in their order"
            )
        return None

    def log(self, points: Sequence[Point]) -> None:
        for step, _, values in points:
            self._run.log(dict(values), step=step)

    def finish(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "ok" else 1)

    def abandon(self) -> None:
        """End W&B's process, for which this one would wait at its end, however long."""
        with suppress(Exception):  # of W&B's own parts, which another version may name otherwise
            connection = self._wandb.setup()._connection
            connection._cleanup()
            connection._proc._process.kill()
