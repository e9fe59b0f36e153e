"""TensorBoard: scalars, and at the end the hyper-parameters with the final metrics."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import hparams

from ninefold.files import opener
from ninefold.logger import Run
from ninefold.result import Result


class TensorBoard:
    """Writes to tensorboard/ in the run folder; a resumed run replaces what its checkpoint lacks.

    The score stands under the task's name for it, such as test/mean_IoU. No thread writes: that of
    torch's SummaryWriter takes Python's lock from the training, and prints a traceback if it fails.
    """

    def __init__(self, run: Run) -> None:
        folder = run.folder / "tensorboard"
        folder.mkdir(exist_ok=True)
        path = folder / f"events.out.tfevents.{time.time_ns()}"
        self._records = RecordWriter(open(path, "ab", opener=opener))  # noqa: SIM115
        self._write(file_version="brain.Event:2")
        # TensorBoard leaves out what earlier files have of this step and later ones.
        self._write(step=run.first_step + 1, session_log=SessionLog(status=SessionLog.START))
        self._settings = {
            key: value if isinstance(value, bool | int | float | str) else str(value)
            for key, value in run.settings.items()
        }
        score = re.sub(r"[^\w.-]", "_", run.score)  # TensorBoard allows no blanks in a tag
        self._scores = {f"{split}_score": f"{split}_{score}" for split in ("test", "val")}
        self._final: dict[str, float] = {}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        named = {
            self._scores.get(n, n): value
            for n, value in values.items()
            if n not in ("epoch", "seconds")
        }
        self._write(step=step, summary=_scalars({_tag(n): value for n, value in named.items()}))
        self._final |= {f"final/{name}": value for name, value in named.items()}

    def close(self, result: Result | None) -> None:
        try:
            if self._final:  # without metrics it would hide those of an earlier segment
                for summary in (*hparams(self._settings, self._final), _scalars(self._final)):
                    self._write(summary=summary)
        finally:
            self._records.close()

    def _write(self, **event: Any) -> None:
        self._records.write(Event(wall_time=time.time(), **event).SerializeToString())
        self._records.flush()


def _scalars(values: Mapping[str, float]) -> Summary:
    return Summary(value=[Summary.Value(tag=n, simple_value=v) for n, v in values.items()])


def _tag(name: str) -> str:
    split, _, value = name.partition("_")
    return f"{split}/{value}" if split in ("test", "val") else f"train/{name}"
