"""Known differences between cells are what the report finds, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.conftest import Shell

pytestmark = pytest.mark.slow
HERE = "+optimizer.here=${parallel._target_}"
STUDY = ["experiments=nine_way", "study.ask=[accuracy]", "epochs=15", "seed=0,1,2,3,4"]


def doubled_under_ddp(parameters: Any, here: str, lr: float, **rest: Any) -> torch.optim.AdamW:
    """AdamW with twice the learning rate if ddp is the strategy of the run, `here`."""
    ddp = here == "ninefold.engine.parallel.ddp.DDP"
    return torch.optim.AdamW(parameters, lr=2 * lr if ddp else lr, **rest)


def report(shell: Shell, *overrides: str) -> dict[str, Any]:
    """The only group of a study in report.json, and the answer."""
    folder = shell.folder / "sweep"
    shell.train(*STUDY, *overrides, f"hydra.sweep.dir={folder}", code=0)
    found = json.loads((folder / "report" / "report.json").read_text())
    (group,) = found["groups"]
    return {**group, "answer": found["answer"]}


def recommended(found: dict[str, Any]) -> str:
    return str(found["answer"]["cell"])


def test_a_doubled_learning_rate_is_distinguished_from_another_batch_and_from_noise(
    shell: Shell,
) -> None:
    plant = "optimizer._target_=tests.long.test_plants.doubled_under_ddp"
    found = report(shell, "parallel=none,ddp", "amp=fp32,autocast", plant, HERE)
    rows = {row["cell"]: row for row in found["numerics"]["rows"]}
    for cell in ("ddp-fp32", "ddp-autocast"):
        assert rows[cell]["verdict"] == "not the same"
        assert rows[cell]["update_ratio"] == pytest.approx(2, rel=0.02)
        assert "times as large: another learning rate" in rows[cell]["sentence"]
    assert rows["none-autocast"]["verdict"] == "the same within its precision"
    assert not recommended(found).startswith("ddp")  # whether the rest is settled is chance
