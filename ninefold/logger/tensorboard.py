"""TensorBoard: scalars as they come, and the hyper-parameters with the final metrics."""

from __future__ import annotations

from collections.abc import Mapping

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
        for name, value in values.items():
            if name == "epoch":
                continue
            group = "test" if name.startswith("test_") else "train"
            tag = f"{group}/{name.removeprefix('test_')}"
            self._writer.add_scalar(tag, value, step)
            self._final[f"final/{name}"] = value

    def close(self) -> None:
        self._writer.add_hparams(self._settings, self._final, run_name=".")
        self._writer.close()
