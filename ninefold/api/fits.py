"""`ninefold.fits`: the memory that a training step of the caller's model takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ninefold.api import OPTIONS, child, running
from ninefold.api.compare import as_words, asked_axes
from ninefold.api.objects import gather, held_on_gpus
from ninefold.api.show import explained
from ninefold.progress import aligned
from ninefold.tables import html_table
from ninefold.words import as_value


def fits(
    model: Any,
    dataset: Any,
    loss: Any = None,
    *,
    forward: Callable[[Any, Any], Any] | None = None,
    batch_size: int | None = None,
    optimizer: str | Callable[[Any], Any] = "adamw",
    parallel: str | Sequence[str] | None = None,
    amp: str | Sequence[str] | None = None,
    memory: str | None = None,
    processes: int = 2,
    device: str = "auto",
    overrides: Sequence[str] = (),
) -> Fits:
    """Count the memory of a training step, and find the largest batch.

    A process of its own counts, on tensors without values: nothing is allocated on the device.
    Workspaces of libraries and what the allocator keeps besides are not counted.

    memory: of a device, such as "24GiB": then nothing is computed, and the largest batch leaves
        room for half as much again. None: new processes take real steps on this one, with the
        largest batch that was counted, and others until one fits and one does not. The other
        arguments: as of `ninefold.compare`.

    Raises what `ninefold.compare` raises, where no configuration has a largest batch; of the others
    `Fits.failed` says why.
    """
    objects = gather(model, dataset, loss, None, None, forward, optimizer, ["time"])
    with TemporaryDirectory(prefix="ninefold-fits-") as folder:
        place = Path(folder)
        chosen = {
            **objects.write(place),
            **asked_axes(device, parallel, amp),
            "batch_size": 64,
            **objects.keys,
            "device": device,
            "launch.cpu_processes": processes,
            "hydra.run.dir": as_value(str(place / "steps")),
        }
        options = f"hydra.searchpath=[{as_value(f'file://{place / OPTIONS}')}]"
        words = as_words(chosen, {"batch_size": batch_size, "memory": memory}, overrides)
        log = place / running.LOG
        ended = child.run([*child.FITS, options, *words], log, prints=False)
        wrong, do = "the count ended before its last figure", "count a smaller network"
        ending = running.without_answer(ended, log, wrong, do)
        if not ended.rows:
            raise ending
        failed = [str(explained(each)) for each in ended.failures]
        if ended.code and not failed:  # it was killed before it told any
            failed.append(str(ending))
        on_gpu = memory is None and not device.startswith("cpu")
        return Fits(ended.rows, failed, held_on_gpus() if on_gpu else [])


class Fits:
    """What a training step of each configuration holds in memory, and the largest batch that fits.

    failed: an error line for each configuration without a row, or one if the count was killed.
    """

    def __init__(
        self, told: Sequence[Mapping[str, Any]], failed: Sequence[str], notes: Sequence[str]
    ) -> None:
        self._told, self.failed, self._notes = told, failed, notes
        self._header = [*told[0]["line"]]
        self._lines = [[*row["line"].values()] for row in told]

    def rows(self) -> list[dict[str, Any]]:
        """One row for each configuration: bytes of a process at the moment at which it holds most
        (weights, gradients, optimizer, activations, total; None: they cannot be counted), the
        largest batch_size (0: none) as `counted` for the bytes of `memory`, and `largest`, which
        real steps may have corrected; `whole`: whether it is the whole set.
        """
        return [{k: v for k, v in row.items() if k not in ("event", "line")} for row in self._told]

    def __repr__(self) -> str:
        return "\n".join([*aligned([self._header, *self._lines]), *self.failed, *self._notes])

    def _repr_html_(self) -> str:
        below = "".join(f"<p>{escape(line)}</p>" for line in (*self.failed, *self._notes))
        return f"{html_table(self._header, self._lines)}{below}"
