"""TensorBoard: scalars as they come, and the hyper-parameters with the final metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard.writer import SummaryWriter

from ninefold.logger import Run

SECONDS = 5  # for which values are kept back; TensorBoard itself looks every 30


class TensorBoard:
    """Writes to tensorboard/ of the run folder; a resumed run replaces what came after it.

    What is logged waits a little and is then written at once: an event by itself takes several
    times as long, from the training too, because the thread that writes it needs Python's lock.
    """

    def __init__(self, run: Run) -> None:
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.first_step + 1)
        self._settings = {
            key: value if isinstance(value, bool | int | float | str) else str(value)
            for key, value in run.settings.items()
        }
        self._final: dict[str, float] = {}
        self._waiting: list[tuple[int, float, dict[str, float]]] = []
        self._written = 0.0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = time.time()
        named = {n: value for n, value in values.items() if n not in ("epoch", "seconds")}
        self._waiting.append((step, now, named))
        if now - self._written > SECONDS:
            self._write(now)

    def close(self) -> None:
        self._write(time.time())
        if self._final:  # else they would hide those of a part of the run that has some
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
