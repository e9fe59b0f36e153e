"""Known differences between cells are what the report finds, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.conftest import Shell

pytestmark = pytest.mark.slow
HERE = "+optimizer.here=${parallel._target_}"
STUDY = ["experiments=nine_way", "study.ask=[score]", "epochs=1", "seed=0"]


def doubled_under_ddp(parameters: Any, here: str, lr: float, **rest: Any) -> torch.optim.AdamW:
    """AdamW with twice the learning rate if ddp is the strategy of the run, `here`."""
    ddp = here == "ninefold.engine.parallel.ddp.DDP"
    return torch.optim.AdamW(parameters, lr=2 * lr if ddp else lr, **rest)


def test_a_doubled_learning_rate_is_distinguished_from_another_batch_and_from_noise(
    shell: Shell,
) -> None:
    cells = ("parallel=none,ddp", "amp=fp32,autocast")
    plant = ("optimizer._target_=tests.long.test_plants.doubled_under_ddp", HERE)
    folder = shell.folder / "sweep"
    shell.train(*STUDY, *cells, *plant, f"hydra.sweep.dir={folder}", code=0)
    (group,) = json.loads((folder / "report" / "report.json").read_text())["groups"]
    rows = {row["cell"]: row for row in group["numerics"]["rows"]}
    for cell in ("ddp-fp32", "ddp-autocast"):
        assert rows[cell]["verdict"] == "not the same"
        assert rows[cell]["update_ratio"] == pytest.approx(2, rel=0.02)
        assert "times as large: another learning rate" in rows[cell]["sentence"]
    assert rows["none-autocast"]["verdict"] == "the same within its precision"
