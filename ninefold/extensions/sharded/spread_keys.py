"""The key that parallel=fsdp and parallel=tensor have in common."""

from typing import Annotated, Literal

from ninefold.types import NO_EFFECT, Section


class SpreadKeys(Section, kw_only=True):
    checkpoint: Annotated[Literal["whole", "sharded"], NO_EFFECT] = "whole"
    """One file (whole), which rank 0 writes in the background, or a folder to which each process
    writes its parts while training waits (sharded)."""
