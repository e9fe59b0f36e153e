"""The keys of parallel=dp alone."""

from ninefold.types import Section


class DPKeys(Section, kw_only=True):
    loss_in_forward: bool = True
    """Have each replica of DataParallel compute its own loss; false: gather all outputs on the
    first GPU and compute it there."""
