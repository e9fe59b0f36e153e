"""A network that draws in training and in evaluations."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Shell, metrics, result
from tests.faults.runs import one_after_another

ITEMS = "{_target_: tests.dataset.mine.Item, kind: alone"
JOB = ["model=mine", "dataset=mapped", f"dataset.train={ITEMS}}}",
       f"dataset.test={ITEMS}, count: 20}}", "task=own_loss",
       "task.loss={_target_: tests.dataset.kinds.elbo, _partial_: true}", "device=cpu",
       "parallel=none", "amp=fp32", "clock.warmup=1", "log_every=1", "logger=jsonl",
       "batch_size=8", "epochs=2"]  # fmt: skip


def test_a_network_that_samples_resumes_exactly_from_within_an_epoch_and_evaluates_alike(
    shell: Shell,
) -> None:
    folder = shell.folder / "conf" / "model"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("net: {_target_: tests.dataset.kinds.VAE}\n")
    job = ["train.py", "--config-dir", "conf", *JOB]
    for done in one_after_another(
        shell,
        [*job, "hydra.run.dir=whole"],
        [*job, "hydra.run.dir=parted", "max_steps=9"],  # of 12: evaluated there, too
        ["train.py", "resume=parted", "trust=true", "max_steps=null"],
        ["evaluate.py", "ckpt=whole", "trust=true", "batch_size=8", "hydra.run.dir=evaluated"],
    ):
        assert done.returncode == 0, done.stderr
    assert metrics(shell.folder / "parted", "loss") == metrics(shell.folder / "whole", "loss")
    again = json.loads((shell.folder / "evaluated" / "evaluation.json").read_text())
    trained = result(shell.folder / "whole")
    assert again["loss"] == pytest.approx(trained["test_loss"], rel=1e-6)
