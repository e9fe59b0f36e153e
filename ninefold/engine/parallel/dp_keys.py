"""The keys of parallel=dp alone, and its place in tables."""

from ninefold.types import Section

PLACES = {"dp": 1}


class DPKeys(Section, kw_only=True):
    loss_in_forward: bool = True
    """Have each replica of DataParallel compute its own loss; false: gather all outputs on the
    first GPU and compute it there."""
