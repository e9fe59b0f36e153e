"""The keys of parallel=fsdp, and what it refuses."""

from typing import Annotated, Literal

from ninefold.config.combinations import GRAPH_MODES, OTHER_MODES, Combination, Job
from ninefold.types import NO_EFFECT, FloatDtype, Section, Units, Whole

# Those whose fused kernels have a rule for sharded parameters.
FUSED = ("torch.optim.Adam", "torch.optim.AdamW")


class FSDPKeys(Section, kw_only=True):
    checkpoint: Annotated[Literal["whole", "sharded"], NO_EFFECT] = "whole"
    """One file (whole), which rank 0 writes in the background, or a folder to which each process
    writes its parts while training waits (sharded)."""
    reshard_after_forward: bool = True
    """Drop gathered parameters after the forward pass and gather them again for the backward pass;
    false: more memory, a third less communication."""
    units: Units = "auto"
    """FSDP's wrap policy: submodules whose parameters are gathered together; auto: children of the
    network, and of lists in it, of at least `least` parameters."""
    least: Whole = 1_000_000
    """Parameters of a unit at least, with units=auto."""
    param_dtype: Literal["auto", "float32"] = "auto"
    """dtype in which parameters are gathered; auto: autocast's, but for those of normalization
    (FSDP's mixed precision); float32: autocast keeps a copy of each until the backward pass."""
    reduce_dtype: FloatDtype | None = None
    """dtype in which gradients are averaged over processes; null: their own."""


def fused_without_rule(job: Job) -> bool:
    """Whether it is a fused optimizer of torch.optim that takes no sharded parameters (DTensor)."""
    target = str(job["optimizer._target_"])
    fused = job["optimizer.fused"] is True and target.startswith("torch.optim.")
    return fused and target not in FUSED


REFUSED = (
    Combination(
        "optimizer.fused",
        fused_without_rule,
        "fused {optimizer} has no rule for sharded parameters",
        "Adam and AdamW have one",
        "set optimizer.fused=false",
        {"optimizer": lambda job: job["optimizer._target_"].rpartition(".")[2]},
        example={"optimizer._target_": "torch.optim.SGD", "optimizer.fused": True},
    ),
    Combination(
        "compile.mode",
        lambda job: job["compile.mode"] in GRAPH_MODES,
        "a CUDA graph needs parameters at fixed places, and fsdp gathers them again",
        OTHER_MODES,
        "choose one",
        example={"compile.mode": "reduce-overhead"},
    ),
)
