"""What cannot be combined with parameters that are spread over processes (fsdp, tensor)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninefold.config.graph import COMPILE_MODES
from ninefold.errors import ConfigError, Failure

STRATEGY = "ninefold.parallel.fsdp.FSDP"
TENSOR = "ninefold.parallel.tensor.TensorParallel"
TORCH = "torch.optim."
FUSED = (f"{TORCH}Adam", f"{TORCH}AdamW")  # whose fused kernels have a rule for such parameters


def problems(job: Mapping[str, Any]) -> list[Failure]:
    """What is at odds with parallel=fsdp in `job`, a resolved configuration."""
    parallel, optimizer, compiled = (
        node if isinstance(node := job.get(name), Mapping) else {}
        for name in ("parallel", "optimizer", "compile")
    )
    if parallel.get("_target_") == TENSOR:
        return at_odds_with_tensor(job)
    if parallel.get("_target_") != STRATEGY:
        return []
    found: list[Failure] = []
    target = str(optimizer.get("_target_"))
    if optimizer.get("fused") is True and target.startswith(TORCH) and target not in FUSED:
        found.append(
            ConfigError(
                "optimizer.fused",
                "true",
                f"fused {target.removeprefix(TORCH)} has no rule for sharded parameters; Adam and "
                "AdamW have one; set optimizer.fused=false",
            )
        )
    if (mode := compiled.get("mode")) in COMPILE_MODES:
        found.append(
            ConfigError(
                "compile.mode",
                mode,
                "a CUDA graph needs parameters at fixed places, and fsdp gathers them anew; "
                "default and max-autotune-no-cudagraphs are allowed with it; choose one",
            )
        )
    return found


def at_odds_with_tensor(job: Mapping[str, Any]) -> list[Failure]:
    """What is at odds with parallel=tensor, which has parameters of two kinds: whole and parts."""
    parallel = job["parallel"]
    names = [*(parallel.get("colwise") or ()), *(parallel.get("rowwise") or ())]
    if not names:
        return [
            ConfigError(
                "parallel",
                "tensor",
                "no layer is named to be split; linear layers that follow each other are allowed; "
                "set parallel.colwise=[NAME] and parallel.rowwise=[NAME]",
            )
        ]
    refused = {
        "optimizer.fused": "set optimizer.fused=false",
        "optimizer.foreach": "leave it out",
        "amp.scaler": "choose an amp without a GradScaler",
        "clip_grad_norm": "leave it out",
        "clip_grad_value": "leave it out",
        "compile.mode": "set compile.mode=null",
        "launch.dry": "run it: what it sends depends on the activations",
    }
    found: list[Failure] = []
    for field, do in refused.items():
        section, _, key = field.rpartition(".")
        node = job.get(section) if section else job
        given = node.get(key) if isinstance(node, Mapping) else None
        if given is not None and given is not False:
            found.append(
                ConfigError(
                    field,
                    "true" if given is True else given,
                    "it does not go with parallel=tensor, where some parameters are whole and "
                    f"some are parts; parallel=fsdp and ddp take it; {do}",
                )
            )
    return found


def parts_of_a_batch(parallel: Mapping[str, Any], processes: int) -> int:
    """Into how many parts so many processes divide a batch."""
    return 1 if parallel.get("_target_") == TENSOR else processes


def require_whole_copies(replicas: int, processes: int) -> None:
    """Raise ConfigError unless so many copies can be spread over so many processes."""
    if processes % replicas == 0:
        return
    *others, last = [str(each) for each in range(1, processes + 1) if processes % each == 0]
    raise ConfigError(
        "parallel.replicas",
        replicas,
        f"does not divide {processes} process{'es' * (processes > 1)}",
        f"{', '.join(others)} or {last} are allowed" if others else f"{last} is allowed",
        "choose one",
    )
