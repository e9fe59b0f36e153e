"""A language model trains alike in all cells, and a resumed run ends with the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ninefold.checkpoint.store import read
from ninefold.tree import leaves
from tests.conftest import Shell, metrics, result
from tests.faults.runs import one_after_another

SMALL = ["task=language", "dataset=text", "model=gpt", "dataset.context=16", "model.net.width=16",
         "dataset.limit=256", "batch_size=32", "epochs=2", "device=cpu", "log_every=1",
         "logger=jsonl", "clock.sample=0", "clock.warmup=1"]  # fmt: skip


def same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


@pytest.mark.slow
def test_nine_cells_of_a_language_model_have_the_same_losses(shell: Shell) -> None:
    cells = [(p, a) for p in ("none", "dp", "ddp") for a in ("fp32", "autocast", "scaler")]
    commands = [
        ["train.py", *SMALL, f"parallel={parallel}", f"amp={amp}", "launch.cpu_processes=2",
         f"hydra.run.dir={parallel}-{amp}"]
        for parallel, amp in cells
    ]  # fmt: skip
    for done in one_after_another(shell, *commands):
        assert done.returncode == 0, done.stderr
    expected = metrics(shell.folder / "none-fp32", "loss")
    assert len(expected) == 16
    for parallel, amp in cells:
        found = metrics(shell.folder / f"{parallel}-{amp}", "loss")
        atol = 1e-5 if amp == "fp32" else 3e-2
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def test_a_resumed_language_model_is_the_uninterrupted_one_and_is_evaluated_as_it_was(
    shell: Shell,
) -> None:
    dropout = [*SMALL, "model.net.dropout=0.1"]
    commands = [
        ["train.py", *dropout, "max_steps=11", "hydra.run.dir=parts"],
        ["train.py", "resume=parts", "max_steps=16"],
        ["train.py", *dropout, "hydra.run.dir=whole"],
        ["evaluate.py", "ckpt=whole", "hydra.run.dir=evaluated", "device=cpu"],
    ]
    stopped, *others = one_after_another(shell, *commands)
    for done in (stopped, *others):
        assert done.returncode == 0, done.stderr
    states = [read(shell.folder / name / "checkpoints" / "last.pt") for name in ("parts", "whole")]
    for part in ("model", "optimizer"):
        one, other = (leaves(state[part]) for state in states)
        assert all(map(same, one, other))
    assert metrics(shell.folder / "parts", "loss") == metrics(shell.folder / "whole", "loss")
    found = result(shell.folder / "whole")
    assert (found["units"], found["units_per_example"]) == ("tokens", 16)
    assert found["score"] == "cross entropy"
    assert found["best_accuracy"] == min(metrics(shell.folder / "whole", "test_accuracy"))
    assert f"cross entropy {found['accuracy']:.6g} nats" in others[-1].stdout
    assert "perplexity" in others[-1].stdout
