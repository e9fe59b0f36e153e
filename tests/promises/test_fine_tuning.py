"""Runs that start with other weights than those drawn from their seed, and train a part of them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchvision import models
from torchvision.models import ShuffleNet_V2_X0_5_Weights

from ninefold.checkpoint.store import read
from ninefold.model import hub
from tests.conftest import result
from tests.faults.runs import one_after_another

SMALL = ["batch_size=8", "dataset.limit=16", "threads=1", "clock.warmup=1",
         "logger=quiet"]  # fmt: skip
# One step that leaves the weights as they are: what is trained moves by less than it can hold.
STILL = ["max_steps=1", "optimizer.lr=1e-30"]
TEN = ["dataset=synthetic", "dataset.classes=10", "dataset.shape=[1,8,8]",
       "dataset.train_count=16", "dataset.test_count=9"]  # fmt: skip
# Of the networks of torchvision that have batch normalization and weights, one of the smallest.
SHUFFLENET = ["model=torchvision", "model.net.name=shufflenet_v2_x0_5", "model.input_size=32"]
DDP = ["parallel=ddp", "parallel.processes=2"]


def model_of(run: Path) -> dict[str, Tensor]:
    return read(run / "checkpoints" / "last.pt")["model"]


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> set[str]:
    assert one.keys() == other.keys()
    return {name for name in one if not torch.equal(one[name], other[name])}


# Pretrained weights


@pytest.mark.slow
def test_pretrained_weights_are_read_by_new_runs_only_and_fetched_by_the_launcher(shell):
    here, empty = shell.folder / "here", shell.folder / "empty"
    file = here / "hub" / "checkpoints" / hub.cached(ShuffleNet_V2_X0_5_Weights.DEFAULT.url).name
    file.parent.mkdir(parents=True)
    torch.manual_seed(1)
    theirs = models.shufflenet_v2_x0_5().state_dict()
    torch.save(theirs, file)
    body = "conv1,stage2,stage3,stage4,conv5"
    job = ["train.py", *TEN, *SHUFFLENET, "model.net.weights=DEFAULT", *SMALL, *DDP]
    still = [*job, *STILL, f"freeze=[{body}]", "hydra.run.dir=run"]
    one_after_another(shell, still, env={"TORCH_HOME": str(here)}, code=0)
    ours = model_of(shell.folder / "run")
    assert differing(ours, theirs | {n: ours[n] for n in ("fc.weight", "fc.bias")}) == set()
    notes = "\n".join(result(shell.folder / "run")["notes"])
    assert (
        "The initial weights are ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1; randomly initialized: "
        "fc.weight, fc.bias." in notes
    )
    resumed, evaluated, refused = one_after_another(
        shell,
        ["train.py", "resume=run", "max_steps=2", "trust=true"],
        ["evaluate.py", "ckpt=run", "trust=true", "hydra.run.dir=evaluation"],
        [*job, "hydra.run.dir=refused"],
        env={"TORCH_HOME": str(empty)},
    )
    assert resumed.returncode == 0, resumed.stderr
    assert evaluated.returncode == 0, evaluated.stderr
    assert refused.returncode == 4
    fetching, error = refused.stderr.splitlines()
    assert fetching.startswith("fetching https://")
    assert error.startswith("error: model.net.weights=DEFAULT: it could not be fetched (")
    assert error.endswith("put it there, or give init=FILE")
    assert not (shell.folder / "refused").exists()
