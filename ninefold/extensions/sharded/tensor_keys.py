"""The keys of parallel=tensor alone, and what it refuses."""

from ninefold.config.combinations import Combination
from ninefold.extensions.sharded.spread_keys import SpreadKeys
from ninefold.types import Names

ONE_BATCH = True  # all processes compute the whole batch


class TensorParallelKeys(SpreadKeys, kw_only=True):
    colwise: Names = None
    """Linear layers of which each process computes a part of the outputs (parallel=tensor)."""
    rowwise: Names = None
    """Linear layers that take such parts and follow them; their outputs are summed over all."""


def _with_whole_and_parts(key: str, value: object, do: str) -> Combination:
    return Combination(
        key,
        lambda job: (
            (job["parallel.colwise"] or job["parallel.rowwise"])
            and job[key] not in (None, False, "stop")  # "stop": of on_nonfinite
        ),
        "it does not go with parallel=tensor, where some parameters are whole and some are parts",
        "parallel=fsdp and ddp take it",
        do,
        example={"parallel.colwise": ["a"], key: value},
    )


REFUSED = (
    Combination(
        "parallel.colwise",
        lambda job: not job["parallel.colwise"] and not job["parallel.rowwise"],
        "no layer is named to be split",
        "linear layers that follow each other are allowed",
        "set parallel.colwise=[NAME] and parallel.rowwise=[NAME]",
        example={"parallel.colwise": None},
    ),
    _with_whole_and_parts("optimizer.fused", True, "set optimizer.fused=false"),
    _with_whole_and_parts("optimizer.foreach", True, "leave it out"),
    _with_whole_and_parts("amp.scaler", True, "choose an amp without a GradScaler"),
    _with_whole_and_parts("on_nonfinite", "skip", "leave it out"),
    _with_whole_and_parts("clip_grad_norm", 1.0, "leave it out"),
    _with_whole_and_parts("clip_grad_value", 1.0, "leave it out"),
    _with_whole_and_parts("compile.mode", "default", "set compile.mode=null"),
)
