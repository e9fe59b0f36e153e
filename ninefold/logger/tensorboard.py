"""TensorBoard: scalars as they come, and the hyper-parameters with the final metrics."""

from __future__ import annotations

from collections.abc import Mapping

from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard.writer import SummaryWriter

from ninefold.logger import Run


class TensorBoard:
    """Writes to tensorboard/ of the run folder; a resumed run replaces what came after it."""

    def __init__(self, run: Run) -> None:
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.first_step + 1)
        self._settings = {
            key: value if isinstance(value, bool | int | float | str) else str(value)
            for key, value in run.settings.items()
        }
        self._final: dict[str, float] = {}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        tags = {name: _tag(name) for name in values if name != "epoch"}
        # One event for all: add_scalar makes one for each, and wakes the writing thread for it.
        scalars = [Summary.Value(tag=tag, simple_value=values[name]) for name, tag in tags.items()]
        self._writer._get_file_writer().add_summary(Summary(value=scalars), step)
        self._final |= {f"final/{name}": values[name] for name in tags}

    def close(self) -> None:
        self._writer.add_hparams(self._settings, self._final, run_name=".")
        self._writer.close()


def _tag(name: str) -> str:
    return f"test/{name.removeprefix('test_')}" if name.startswith("test_") else f"train/{name}"
