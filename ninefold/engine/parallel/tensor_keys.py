"""The keys of parallel=tensor alone."""

from ninefold.types import Names, Section


class TensorParallelKeys(Section, kw_only=True):
    colwise: Names = None
    """Linear layers of which each process computes a part of the outputs (parallel=tensor)."""
    rowwise: Names = None
    """Linear layers that take such parts and follow them; their outputs are summed over all."""
