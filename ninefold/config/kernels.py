"""Settings of GPU kernels that exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninefold.errors import ConfigError, Failure


def problems(job: Mapping[str, Any]) -> list[Failure]:
    """A failure if the kernels of `job` are to be deterministic and to be chosen by their times."""
    if job.get("cudnn_benchmark") is True and job.get("deterministic") is True:
        return [
            ConfigError(
                "cudnn_benchmark",
                "true",
                "deterministic=true is given; the algorithm that is fastest when it is tried need "
                "not be the same each time; one of the two is allowed; leave one of them out",
            )
        ]
    return []
