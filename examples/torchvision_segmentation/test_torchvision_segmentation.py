"""Segmentation models of torchvision, and their pretrained backbones, from a yaml alone."""

from pathlib import Path

import pytest
import torch
from torchvision.models import get_model

from benchmarks import ours
from ninefold.config.data import prepare_weights
from ninefold.errors import ConfigError
from tests.conftest import ROOT
from tests.dataset import scenes

pytestmark = pytest.mark.slow

OWN = f"hydra.searchpath=[file://{ROOT},file://{Path(__file__).parent}/conf]"


def test_a_model_starts_with_the_backbone_of_a_file_and_takes_a_step(tmp_path):
    torch.manual_seed(1)
    theirs = get_model("lraspp_mobilenet_v3_large", weights=None, weights_backbone=None).backbone
    theirs = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    torch.save(theirs, tmp_path / "backbone.pt")
    job = [
        OWN, "task=segmentation", "model=torchvision_segmentation", "batch_size=8", "threads=1",
        "dataset=masks", f"dataset.root={scenes.write(tmp_path / 'scenes')}",
        f"dataset.classes={scenes.CLASSES}", f"dataset.ignore={scenes.VOID}",
        "dataset.shape=[3,24,32]", f"init={tmp_path / 'backbone.pt'}", "init_partial=true",
    ]  # fmt: skip
    with ours.training(*job) as run:
        own = run.state.model.state_dict()
        found = {name.removeprefix("backbone."): tensor for name, tensor in own.items()}
        assert all(torch.equal(found[name], tensor) for name, tensor in theirs.items())
    with ours.stepping(job) as (run, take):
        take(1)
        assert run.state.step == 1


def test_weights_that_each_process_would_download_are_refused():
    net = {"_target_": "torchvision.models.get_model", "weights_backbone": "DEFAULT"}
    said = "^error: model.net.weights_backbone=DEFAULT: each process would download it; "
    with pytest.raises(ConfigError, match=said):
        prepare_weights(None, net)
