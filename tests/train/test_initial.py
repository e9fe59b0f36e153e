"""Weights that a new run starts with: what is loaded from a file, and what stays as drawn."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from ninefold import secrets
from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.ddp import DDP
from ninefold.engine.parallel.none import Single
from ninefold.errors import CheckpointError, ConfigError
from ninefold.model.convnet import ConvNet
from ninefold.train import build, initial
from tests.kit import same
from tests.parallel.ranks import on_ranks

HEAD = ["classifier.weight", "classifier.bias"]


def network(seed: int, classes: int = 10) -> ConvNet:
    torch.manual_seed(seed)
    return ConvNet(1, classes, width=8)


def job(path: Path, without: list[str], partial: bool = False) -> dict[str, Any]:
    return {"init": str(path), "init_partial": partial, "init_without": without}


def load(model: ConvNet, settings: dict[str, Any]) -> list[str]:
    return initial.load(model, settings, Single(), RankContext(0, 1, torch.device("cpu")))


@pytest.mark.parametrize(("classes", "prefix"), [(10, ""), (7, "net.")])
def test_a_head_can_be_left_as_drawn_whether_the_files_fits_or_not(tmp_path, classes, prefix):
    file = {f"{prefix}{name}": value for name, value in network(1, classes).state_dict().items()}
    torch.save(file, tmp_path / "w.pt")
    model, drawn = network(2), network(2).state_dict()
    notes = load(model, job(tmp_path / "w.pt", ["classifier"]))
    body = {name: file[f"{prefix}{name}"] for name in drawn if name not in HEAD}
    assert same(dict(model.state_dict()), {**drawn, **body})
    assert notes[1:] == ["Randomly initialized: classifier.weight, classifier.bias."]


def test_what_else_does_not_fit_is_still_refused_unless_that_is_asked_for(tmp_path):
    content = network(1).state_dict()
    del content["features.0.weight"]
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"1 missing \(features\.0\.weight\)"):
        load(network(2), job(tmp_path / "w.pt", ["classifier"]))
    notes = load(network(2), job(tmp_path / "w.pt", [], partial=True))
    assert notes[1:] == ["Randomly initialized: features.0.weight."]
    with pytest.raises(ConfigError, match=r"^error: init_without=\[clasifier\]: no parameter beg"):
        load(network(2), job(tmp_path / "w.pt", ["clasifier"]))


def test_rank_0_alone_needs_the_file(tmp_path):
    given = {"counted": torch.tensor(7), **network(1).state_dict()}
    torch.save(given, tmp_path / "w.pt")

    def run() -> tuple[list[str], dict[str, Tensor]]:
        parallel = DDP(device="cpu")
        with parallel.join() as context:
            file = tmp_path / ("w.pt" if context.rank == 0 else "elsewhere.pt")
            model = network(2)
            model.register_buffer("counted", torch.tensor(0))
            return initial.load(model, job(file, []), parallel, context), model.state_dict()

    (notes, first), (none, second) = on_ranks(2, run, tmp_path)
    assert notes == [f"The initial weights are those of {tmp_path}/w.pt (raw)."]
    assert none == []
    assert same(given, first)
    assert same(given, second)


@pytest.mark.parametrize("weights", [{}, {"weights_backbone": "DEFAULT"}])
def test_a_builder_of_a_library_fetches_nothing_also_where_its_default_is_pretrained(weights):
    net = {"_target_": "torchvision.models.segmentation.fcn_resnet50", "num_classes": 3, **weights}
    found = initial.without_fetching(net)
    assert found == {**net, "weights": None, "weights_backbone": None}


class Loaded(nn.Linear):
    """A layer that loads its weights as it is made."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.load_state_dict(nn.Linear(3, 2, device="cpu").state_dict())


def test_an_evaluation_sizes_a_network_that_loads_its_weights_without_a_warning():
    node = {"_target_": "tests.train.test_initial.Loaded"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build.weight_bytes(OmegaConf.create({"model": {"net": node}})) == 4 * 8


def test_a_value_of_the_environment_in_init_is_told_as_reference(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(secrets, "_KNOWN", {})
    folder = tmp_path / "canary-7f3a9c51"
    folder.mkdir()
    torch.save(network(1).state_dict(), folder / "w.pt")
    secrets.note("CANARY", str(folder))
    notes = load(network(2), job(folder / "w.pt", []))
    told = capsys.readouterr().out
    assert told.startswith("init=${oc.env:CANARY}/w.pt: ")
    assert notes == ["The initial weights are those of ${oc.env:CANARY}/w.pt (raw)."]
