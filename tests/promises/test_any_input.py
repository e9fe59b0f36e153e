"""Inputs and outputs of any kind: networks and datasets of users as they are, in all cells."""

from __future__ import annotations

import json

import numpy as np
import pytest
from omegaconf import OmegaConf

from tests.conftest import Shell, metrics, result
from tests.faults.runs import one_after_another

HERE = "tests.dataset.kinds"
QUICK = ["device=cpu", "clock.warmup=1", "clock.sample=0", "log_every=1",
         "logger=jsonl", "batch_size=8", "epochs=2", "optimizer=sgd",
         "optimizer.lr=0.1"]  # fmt: skip
MSE = "task.loss={_target_: torch.nn.MSELoss}"
# Of each kind of item the network, as a yaml of the user's has it, and what the command says.
CASES = {
    "table": ("{_target_: tests.dataset.kinds.Line, inputs: '${dataset.shape[0]}'}",
              ["task=own_loss", MSE]),
    "features": ("{_target_: tests.dataset.kinds.Features}", ["task=own_loss", MSE]),
    "pair": ("{_target_: tests.dataset.kinds.Pair}",
             ["task=own_loss", f"task.loss={{_target_: {HERE}.of_pair, _partial_: true}}"]),
    "words": ("{_target_: tests.dataset.kinds.Words}",
              ["dataset.keys=[[ids,mask],label]", "dataset.classes=2"]),
    "next": ("{_target_: tests.dataset.kinds.Decoder}", ["task=language", "+model.output=0"]),
    "alone": ("{_target_: tests.dataset.kinds.VAE, draws: false}",
              ["task=own_loss", f"task.loss={{_target_: {HERE}.elbo, _partial_: true}}"]),
    "image and row": ("{_target_: tests.dataset.kinds.ImageAndRow}", ["dataset.classes=2"]),
    "scalar": ("{_target_: tests.dataset.kinds.Line, inputs: 1}", ["task=own_loss", MSE]),
}  # fmt: skip
SHAPES = {
    "table": [6], "features": {"x_cont": [6], "x_cat": [2]}, "pair": [[6], [6]],
    "words": {"ids": [8], "mask": [8]}, "next": [[7], [7]], "alone": [6],
    "image and row": {"image": [3, 8, 8], "row": [6]}, "scalar": [],
}  # fmt: skip


def command(shell: Shell, kind: str, *more: str) -> list[str]:
    """Training on items of a kind, by a model whose yaml has its network alone."""
    net, said = CASES[kind]
    folder = shell.folder / "conf" / "model"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.yaml").write_text(f"net: {net}\n")
    node = f"{{_target_: tests.dataset.mine.Item, kind: {kind}"
    return ["train.py", "--config-dir", str(folder.parent), "model=mine", "dataset=mapped",
            f"dataset.train={node}}}", f"dataset.test={node}, count: 20}}", *said, *QUICK,
            *more]  # fmt: skip


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in CASES if kind != "pair"]


@pytest.mark.parametrize("kind", ["pair", *SLOW])
def test_the_losses_of_any_kind_of_input_are_those_of_one_process(shell: Shell, kind: str) -> None:
    cells = {
        "none": [],
        "parts": ["accumulate=2"],
        "dp": ["parallel=dp"],
        "ddp": ["parallel=ddp", "parallel.processes=2"],
    }
    commands = [
        command(shell, kind, *more, f"hydra.run.dir={name}") for name, more in cells.items()
    ]
    for done in one_after_another(shell, *commands):
        assert done.returncode == 0, done.stderr
    expected = metrics(shell.folder / "none", "loss")
    assert len(expected) == 12
    for name in cells:
        found = metrics(shell.folder / name, "loss")
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        score = result(shell.folder / name)["accuracy"]
        assert score == pytest.approx(result(shell.folder / "none")["accuracy"], abs=1e-5)
    stored = OmegaConf.load(shell.folder / "none" / "config.yaml")
    assert stored.dataset.shape == SHAPES[kind]


def test_a_network_that_samples_resumes_exactly_from_within_an_epoch_and_evaluates_alike(
    shell: Shell,
) -> None:
    net, said = CASES["alone"]
    said = ["parallel=none", "amp=fp32", *said]

    def sampling(*more: str) -> list[str]:
        words = command(shell, "alone", *said, *more)
        file = shell.folder / "conf" / "model" / "mine.yaml"
        file.write_text(f"net: {net.replace('draws: false', 'draws: true')}\n")
        return words

    whole = sampling("hydra.run.dir=whole")
    parted = sampling("hydra.run.dir=parted", "max_steps=9")  # of 12: evaluated there, too
    rest = ["train.py", "resume=parted", "trust=true", "max_steps=null"]
    for done in one_after_another(shell, whole, parted, rest):
        assert done.returncode == 0, done.stderr
    assert metrics(shell.folder / "parted", "loss") == metrics(shell.folder / "whole", "loss")
    done = shell.evaluate("ckpt=whole", "trust=true", "batch_size=8", "hydra.run.dir=evaluated")
    assert done.returncode == 0, done.stderr
    again = json.loads((shell.folder / "evaluated" / "evaluation.json").read_text())
    trained = result(shell.folder / "whole")
    assert again["loss"] == pytest.approx(trained["test_loss"], rel=1e-6)
