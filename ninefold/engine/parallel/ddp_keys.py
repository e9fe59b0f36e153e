"""The keys of parallel=ddp alone, and its place in tables."""

from ninefold.types import Positive, Section

PLACES = {"ddp": 2}


class DDPKeys(Section, kw_only=True):
    gradient_as_bucket_view: bool = True
    """Keep gradients inside DDP's communication buckets, which saves a copy."""
    broadcast_buffers: bool = True
    """Broadcast buffers such as BatchNorm's statistics before each forward pass."""
    find_unused_parameters: bool = False
    """Search for parameters without a gradient in each step."""
    static_graph: bool = False
    """Promise DDP that the graph is the same in each step."""
    bucket_cap_mb: Positive | None = None
    """Size of a DDP bucket in MiB; null: PyTorch's default of 25, and 1 for the first."""
    sync_batchnorm: bool = False
    """Replace BatchNorm by SyncBatchNorm, on GPUs only."""
