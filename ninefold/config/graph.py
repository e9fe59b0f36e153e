"""What cannot be combined with a CUDA graph: of a training step, or of a compiled network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninefold.config.devices import listed
from ninefold.errors import ConfigError, Failure

COMPILE_MODES = ("reduce-overhead", "max-autotune")  # modes of torch.compile that record them
# They take a rate from a tensor, and with `fused` skip a step without asking the host.
OPTIMIZERS = ("torch.optim.Adam", "torch.optim.AdamW", "torch.optim.SGD")


def problems(job: Mapping[str, Any]) -> list[Failure]:
    """What is at odds with CUDA graphs in `job`, a resolved configuration."""
    return [*_of_compile(job), *(_of_step(job) if job.get("graph") is True else [])]


def _of_compile(job: Mapping[str, Any]) -> list[Failure]:
    mode = _section(job, "compile").get("mode")
    if mode not in COMPILE_MODES:
        return []
    found: list[Failure] = []
    if job.get("accumulate", 1) != 1:  # wrong gradients, or an error
        found.append(
            ConfigError(
                "compile.mode",
                mode,
                f"accumulate={job['accumulate']} adds gradients over micro-batches; a CUDA graph "
                "overwrites those of the previous micro-batch; default and "
                "max-autotune-no-cudagraphs are allowed with it; choose one, or accumulate=1",
            )
        )
    if job.get("graph") is True:
        found.append(
            ConfigError(
                "graph",
                "true",
                f"compile.mode={mode} records CUDA graphs of its own; default and "
                "max-autotune-no-cudagraphs are allowed with it; choose one, or set graph=false",
            )
        )
    return found


def _of_step(job: Mapping[str, Any]) -> list[Failure]:
    """What is at odds with graph=true."""
    parallel, optimizer = _section(job, "parallel"), _section(job, "optimizer")
    found: list[Failure] = []
    if parts := job.get("checkpoint_activations"):
        found.append(
            ConfigError(
                "graph",
                "true",
                f"checkpoint_activations={parts} reads the state of the random numbers in a step; "
                "that cannot be recorded; one of the two is allowed; leave one of them out",
            )
        )
    if parallel.get("max_processes", 1) != 1:
        found.append(
            ConfigError(
                "graph",
                "true",
                "this strategy can have several processes, whose communication is not recorded; "
                "none, and dp on one GPU, are allowed with it; choose parallel=none, or set "
                "graph=false",
            )
        )
    devices = parallel.get("devices")
    if isinstance(devices, list) and len(devices) > 1:
        found.append(
            ConfigError(
                "graph",
                "true",
                f"parallel.devices={listed(devices)} are several devices; a step on one GPU can "
                "be recorded; name one, or set graph=false",
            )
        )
    target, fused = optimizer.get("_target_"), optimizer.get("fused")
    if target is not None and (target not in OPTIMIZERS or fused is not True):
        found.append(
            ConfigError(
                "graph",
                "true",
                f"the optimizer is {target}, {'fused' if fused is True else 'not fused'}; "
                f"{', '.join(OPTIMIZERS)} with fused=true are allowed with it; choose "
                "optimizer=adamw or sgd with optimizer.fused=true, or set graph=false",
            )
        )
    return found


def _section(job: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    node = job.get(name)
    return node if isinstance(node, Mapping) else {}
