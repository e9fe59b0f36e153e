"""TensorBoard: scalars, and at the end the hyper-parameters with the final metrics."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard.writer import SummaryWriter

from ninefold.logger import Run
from ninefold.result import Result

SECONDS = 5  # values are written this often; TensorBoard reads every 30 s


class TensorBoard:
    """Writes to tensorboard/ in the run folder; a resumed run replaces what its checkpoint lacks.

    The score stands under the task's name for it, such as test/mean_IoU.

    Values are collected and written together: single events take several times as long, and slow
    the training, because the thread that writes them needs Python's lock.
    """

    def __init__(self, run: Run) -> None:
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.first_step + 1)
        self._settings = {
            key: value if isinstance(value, bool | int | float | str) else str(value)
            for key, value in run.settings.items()
        }
        score = re.sub(r"[^\w.-]", "_", run.score)  # TensorBoard allows no blanks in a tag
        self._scores = {f"{split}_score": f"{split}_{score}" for split in ("test", "val")}
        self._final: dict[str, float] = {}
        self._waiting: list[tuple[int, float, dict[str, float]]] = []
        self._written = 0.0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = time.time()
        named = {
            self._scores.get(n, n): value
            for n, value in values.items()
            if n not in ("epoch", "seconds")
        }
        self._waiting.append((step, now, named))
        if now - self._written > SECONDS:
            self._write(now)

    def close(self, result: Result | None) -> None:
        self._write(time.time())
        if self._final:  # without metrics it would hide those of an earlier segment
            self._writer.add_hparams(self._settings, self._final, run_name=".")
        self._writer.close()

    def _write(self, now: float) -> None:
        file = self._writer._get_file_writer()
        for step, when, named in self._waiting:
            scalars = [Summary.Value(tag=_tag(n), simple_value=v) for n, v in named.items()]
            file.add_summary(Summary(value=scalars), step, when)
            self._final |= {f"final/{name}": value for name, value in named.items()}
        self._waiting.clear()
        self._written = now


def _tag(name: str) -> str:
    return f"test/{name.removeprefix('test_')}" if name.startswith("test_") else f"train/{name}"
