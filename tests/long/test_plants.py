"""Known differences between cells are what the report finds, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import Shell

pytestmark = pytest.mark.slow
HERE = "+optimizer.here=${parallel._target_}"
STUDY = ["experiments=nine_way", "study.ask=[accuracy]", "epochs=15", "seed=0,1,2,3,4"]


def report(shell: Shell, *overrides: str) -> dict[str, Any]:
    """The only group of a study in report.json, and the answer."""
    folder = shell.folder / "sweep"
    done = shell.train(*STUDY, *overrides, f"hydra.sweep.dir={folder}")
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "report" / "report.json").read_text())
    (group,) = found["groups"]
    return {**group, "answer": found["answer"]}


def recommended(found: dict[str, Any]) -> str:
    return str(found["answer"]["cell"])


def test_a_doubled_learning_rate_is_distinguished_from_another_batch_and_from_noise(
    shell: Shell,
) -> None:
    plant = "optimizer._target_=tests.long.plants.doubled_under_ddp"
    found = report(shell, "parallel=none,ddp", "amp=fp32,autocast", plant, HERE)
    rows = {row["cell"]: row for row in found["numerics"]["rows"]}
    for cell in ("ddp-fp32", "ddp-autocast"):
        assert rows[cell]["verdict"] == "not the same"
        assert rows[cell]["update_ratio"] == pytest.approx(2, rel=0.02)
        assert "times as large: another learning rate" in rows[cell]["sentence"]
    assert rows["none-autocast"]["verdict"] == "the same within its precision"
    assert not recommended(found).startswith("ddp")  # whether the rest is settled is chance
