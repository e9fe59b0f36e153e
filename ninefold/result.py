"""result.json: what a run came to, and under which conditions."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ninefold.files import write_json
from ninefold.secrets import redacted

FILE = "result.json"
SWEEP = "sweep.json"  # in a study's folder: what it has come to
NUMERICS = "numerics.npz"  # beside a result: what the first steps computed
PHASES = ("data", "transfer", "forward", "backward", "optimizer")  # of a training step


@dataclass
class Result:
    """The fields of result.json. Times are seconds, memory bytes, accuracies fractions.

    accuracy: the task's score on the test set, by the last weights; score: what the task calls it;
    scores: its further figures there. val_accuracy, val_loss, val_count: the same of the validation
    split, None if there is none. selection: the set that best.pt and patience are selected on, val
    or test (None in results of older versions: test). best_accuracy: the best score on that set.
    exit_code: what a command that makes this run alone exits with.
    epochs: trained, a fraction where max_steps cut one short; planned_epochs: what was to be, which
    patience may end before. threads: of all processes together.
    train_seconds is the inner clock (training steps only), total_seconds the outer (launch to
    result), which alone holds compile_seconds (None: not compiled); phase_seconds the estimated
    part of each of PHASES in train_seconds. probe_seconds: what a fixed piece of work took before
    and after training. ceiling_images_per_second: throughput if batches cost nothing.
    energy_joules: of all devices over the inner clock, as energy_source (nvml, rapl) counts it.
    gpus: clock, temperature and throttle reasons of each GPU before and after training.
    overrides: what the command line set besides the cell, its seed and where things are. What is
    unknown is None.
    """

    status: str
    error: str | None = None
    exit_code: int = 0
    study: str | None = None
    parallel: str | None = None
    amp: str | None = None
    dataset: str | None = None
    model: str | None = None
    seed: int | None = None
    dtype: str | None = None
    grad_scaler: bool | None = None
    processes: int | None = None
    replicas: int | None = None
    devices: list[str] = field(default_factory=list)
    threads: int | None = None
    batch_size: int | None = None
    epochs: float | None = None
    planned_epochs: float | None = None
    steps: int | None = None
    skipped_steps: int | None = None
    accuracy: float | None = None
    best_accuracy: float | None = None
    test_loss: float | None = None
    test_count: int | None = None
    score: str | None = None
    scores: dict[str, float | None] = field(default_factory=dict)
    selection: str | None = None
    val_accuracy: float | None = None
    val_loss: float | None = None
    val_count: int | None = None
    compile_seconds: float | None = None
    train_seconds: float | None = None
    evaluate_seconds: float | None = None
    total_seconds: float | None = None
    epoch_seconds: list[float] = field(default_factory=list)
    images_per_second: float | None = None
    phase_seconds: dict[str, float] = field(default_factory=dict)
    phase_sampled_steps: int = 0
    probe_seconds: list[float] = field(default_factory=list)
    ceiling_images_per_second: float | None = None
    energy_joules: float | None = None
    energy_source: str | None = None
    gpus: list[dict[str, Any]] = field(default_factory=list)
    peak_memory_bytes: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Result:
        """The result in a run folder. Raises OSError or ValueError if there is none to read."""
        found = json.loads((folder / FILE).read_text())
        if not isinstance(found, dict) or "status" not in found:
            raise ValueError(f"{folder / FILE} holds no result")
        known = {name.name for name in fields(cls)}
        return cls(**{key: value for key, value in found.items() if key in known})

    @classmethod
    def of_end(cls, folder: Path) -> Result | None:
        """The result in a run folder, None unless the run ended well."""
        try:
            result = cls.read(folder)
        except (OSError, ValueError):
            return None
        return result if result.status == "ok" else None

    def write(self, folder: Path) -> None:
        write_json(folder / FILE, redacted(asdict(self)))
