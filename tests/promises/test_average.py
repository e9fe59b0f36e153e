"""A run with ema is evaluated with the average that its own figures are of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Shell, result
from tests.faults.runs import one_after_another

DDP = ["parallel=ddp", "parallel.processes=2"]


def evaluation(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "evaluation.json").read_text())
    assert isinstance(found, dict)
    return found


QUICK = (1, 0.9, DDP)
SHORT = ["dataset.limit=320", "threads=2"]  # 5 steps in an epoch


@pytest.mark.parametrize(
    ("seed", "ema", "how"),
    [
        pytest.param(seed, ema, how, marks=[] if (seed, ema, how) == QUICK else pytest.mark.slow)
        for seed in range(3)
        for ema in (0.9, 0.99)
        for how in ([], DDP)
    ],
)
def test_evaluation_finds_the_accuracies_that_training_wrote(
    shell: Shell, seed: int, ema: float, how: list[str]
) -> None:
    short = SHORT if (seed, ema, how) == QUICK else []
    job = [f"seed={seed}", f"ema={ema}", "epochs=3", "logger=quiet", *short, *how]
    job.append("hydra.run.dir=run")
    best = "ckpt=run/checkpoints/best.pt"
    commands = [
        ["train.py", *job],
        ["evaluate.py", "ckpt=run", *how, "hydra.run.dir=last"],
        ["evaluate.py", best, "weights=average", "hydra.run.dir=best"],
        ["evaluate.py", "ckpt=run", "weights=raw", "hydra.run.dir=raw"],
    ]
    for done in one_after_another(shell, *commands):
        assert done.returncode == 0, done.stderr
    trained = result(shell.folder / "run")
    last, best_, raw = (evaluation(shell.folder / name) for name in ("last", "best", "raw"))
    assert last["accuracy"] == trained["accuracy"]
    assert best_["accuracy"] == trained["best_accuracy"]
    assert [each["weights"] for each in (last, best_, raw)] == ["average", "average", "raw"]
    assert raw["loss"] != last["loss"]
    assert any("moving average" in note for note in last["notes"])


def test_an_average_that_is_not_there_cannot_be_evaluated(shell: Shell) -> None:
    train = ["train.py", "max_steps=2", "logger=quiet", "hydra.run.dir=run"]
    wants = ["evaluate.py", "ckpt=run", "weights=average"]
    trained, refused = one_after_another(shell, train, wants)
    assert trained.returncode == 0, trained.stderr
    assert refused.returncode == 3
    assert refused.stderr == (
        "error: weights=average: this checkpoint has none; it was trained without ema; "
        "use weights=raw\n"
    )
