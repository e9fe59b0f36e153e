"""The keys of one option alone: of the option's class NAME in ninefold, the fields of NAMEKeys.

An option elsewhere has such a class in a module of its own, see ninefold.config.options.
"""

# No `from __future__ import annotations`: to evaluate each from its text takes 2 ms of a command.
from typing import Literal

from ninefold.types import (
    Count,
    GrayLevels,
    ItemKeys,
    Positive,
    Section,
    String,
)


class DPKeys(Section, kw_only=True):
    loss_in_forward: bool = True
    """Have each replica of DataParallel compute its own loss; false: gather all outputs on the
    first GPU and compute it there."""


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


class DiabetesKeys(Section, kw_only=True):
    target_mean: float = 152.0
    """Mean of the targets of dataset=diabetes, by which model=mlp shifts its outputs."""
    target_std: Positive = 77.0
    """Their standard deviation, by which model=mlp scales its outputs."""


class MappedKeys(Section, kw_only=True):
    keys: ItemKeys = None
    """Keys of input and target in items that are mappings; places in items that are tuples; null:
    (input, target)."""


class MasksKeys(Section, kw_only=True):
    values: GrayLevels = None
    """Gray level or palette index of each class in a mask; null: the class numbers."""
    mask_suffix: String = ""
    """What the name of a mask has after the name of its image, such as _mask."""


class SyntheticKeys(Section, kw_only=True):
    train_count: Count = 4096
    """Training examples of dataset=synthetic."""
    test_count: Count = 512
    """Test examples of dataset=synthetic."""


class RegressionKeys(Section, kw_only=True):
    metric: Literal["rmse", "mae", "r2"]
    """What task=regression scores by."""
    unit: String | None
    """Unit of the targets of task=regression, such as m; null: none."""
    margin: Positive | None
    """What may be lost of task=regression's score, in its unit; null: of R2 0.01, of an error
    nothing, until report.margin is set."""
