"""The writer of sharded checkpoints: all processes write, training waits for the disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ninefold.checkpoint.hashing import digest_of
from ninefold.checkpoint.manifest import SHARDED, Entry
from ninefold.checkpoint.sharded import bytes_of, on_rank_0, together, write
from ninefold.checkpoint.store import Checkpoints
from ninefold.errors import ResourceError


class ShardedWriter:
    """Writes sharded checkpoints. Every process calls each method; training waits for a save.

    What goes wrong on one process is an error on all of them, which the next `wait` raises.
    """

    spread: ClassVar[bool] = True
    busy: ClassVar[bool] = False

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self._error: ResourceError | None = None

    @property
    def failed(self) -> bool:
        return self._error is not None

    def reserve(self, content: Mapping[str, Any]) -> None:
        """Nothing: what is written is not copied before."""

    def save(self, content: Mapping[str, Any], best: bool) -> None:
        """Write `content`, whose DTensors are spread; of other tensors those of rank 0 are taken.

        See `Checkpoints.save`.
        """
        self.wait()
        new = self.checkpoints.folder / f".new{SHARDED}"
        try:
            together(lambda: on_rank_0(self.checkpoints.begin))
            files = write(new, content)
            size = sum(file["size"] for file in files.values())
            entry: Entry = {"sha256": digest_of(files), "size": size, "step": content["step"]}
            entry["files"] = files
            together(lambda: on_rank_0(lambda: self.checkpoints.take(new, entry, best)))
        except OSError as error:
            self._error = self.checkpoints.refused(error, bytes_of(content))

    def wait(self) -> None:
        """Raise the error of the latest save, once, if it failed."""
        error, self._error = self._error, None
        if error is not None:
            raise error
