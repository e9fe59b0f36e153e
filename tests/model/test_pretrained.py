"""Models of torchvision by name, and the pretrained weights that they start with."""

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models import get_model_weights

from ninefold.errors import ConfigError, DataError
from ninefold.model import hub, torchvision

RESNET = "resnet18"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for what torch.hub and the Hugging Face hub keep."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    return tmp_path


def published(name: str, weights: str = "DEFAULT", **options: Any) -> dict[str, Tensor]:
    """Put other tensors under the name of a model's published file into the cache."""
    torch.manual_seed(1)
    state = models.get_model(name, **options).state_dict()
    torch.save(state, hub.cached(get_model_weights(name)[weights].url))
    return state


# torchvision


def test_pretrained_weights_are_those_of_the_file_but_for_a_head_of_other_classes(cache):
    theirs = published(RESNET)
    model = torchvision.network(RESNET, classes=5)
    found = torchvision.pretrained(model, RESNET, "DEFAULT")
    assert found.drawn == ["fc.weight", "fc.bias"]
    assert found.tensors.keys() == theirs.keys() - set(found.drawn)
    assert all(torch.equal(value, theirs[key]) for key, value in found.tensors.items())
    assert found.name == "ResNet18_Weights.IMAGENET1K_V1"
    whole = torchvision.pretrained(torchvision.network(RESNET, classes=1000), RESNET, "DEFAULT")
    assert (whole.drawn, whole.tensors.keys()) == ([], theirs.keys())


def test_a_network_of_gray_images_computes_what_it_does_with_them_in_three_channels(cache):
    published(RESNET)
    gray = torch.rand(2, 1, 32, 32)
    outputs = []
    for channels in (1, 3):
        model = torchvision.network(RESNET, 1000, channels).eval()
        found = torchvision.pretrained(model, RESNET, "DEFAULT", channels)
        model.load_state_dict(dict(found.tensors))
        outputs.append(model(gray.expand(-1, channels, -1, -1)))
    assert torch.allclose(*outputs, atol=1e-4)
    weight = torch.rand(8, 3, 3, 3)
    four = torchvision.for_channels(weight, 4)
    assert torch.equal(four, weight[:, [0, 1, 2, 0]] * 0.75)


@pytest.mark.slow
def test_positions_of_a_vit_are_interpolated_to_the_images_of_the_run(cache):
    theirs = published("vit_b_16", "IMAGENET1K_SWAG_E2E_V1", image_size=384)
    model = torchvision.network("vit_b_16", classes=3, size=32)
    found = torchvision.pretrained(model, "vit_b_16", "IMAGENET1K_SWAG_E2E_V1")
    own = model.state_dict()
    assert all(value.shape == own[key].shape for key, value in found.tensors.items())
    token = "encoder.pos_embedding"
    assert torch.equal(found.tensors[token][:, 0], theirs[token][:, 0])  # of the class


def test_names_of_before_in_densenets_file_are_those_of_today(cache):
    state = published("densenet121")
    old = {
        key.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."): value
        for key, value in state.items()
        if not key.endswith("num_batches_tracked")
    }
    torch.save(old, hub.cached(get_model_weights("densenet121").DEFAULT.url))
    model = torchvision.network("densenet121", classes=1000)
    found = torchvision.pretrained(model, "densenet121", "DEFAULT")
    assert {k for k in state if not k.endswith("num_batches_tracked")} == found.tensors.keys()


@pytest.mark.slow
def test_head_and_first_layer_are_found_in_each_of_torchvisions_models():
    for name in models.list_models(module=models):
        computes = name.startswith("regnet")  # with tensors, in its constructor: not on meta
        if computes and not name.endswith("_400mf"):  # the others have the same layers
            continue
        with torch.device("cpu" if computes else "meta"):
            model = torchvision.network(name, classes=7, channels=1, size=224)
        head = model.get_submodule(torchvision.head(model))
        first = model.get_submodule(torchvision.first_convolution(model))
        assert isinstance(first, nn.Conv2d)
        assert (head.weight.shape[0], first.weight.shape[1]) == (7, 1), name


@pytest.mark.parametrize(
    ("name", "said"), [("resnet5", "did you mean resnet50?"), ("fasterrcnn_resnet50_fpn", "")]
)
def test_a_name_that_torchvision_does_not_know_is_refused(name, said):
    line = f"error: model.net.name={name}: torchvision has no such model; {said}"
    with pytest.raises(ConfigError, match=re.escape(line)):
        torchvision.network(name, classes=3)


def test_weights_that_a_model_does_not_have_are_refused_with_those_it_has():
    with pytest.raises(ConfigError) as caught:
        torchvision.fetch(RESNET, "IMAGENET1K_V9")
    line = str(caught.value)
    assert line.startswith("error: model.net.weights=IMAGENET1K_V9: resnet18 has no such weights; ")
    assert "torchvision has IMAGENET1K_V1, DEFAULT; " in line


# The cache


def test_a_file_is_fetched_once_and_checked(cache, tmp_path, capfd):
    data = b"weights"
    name = f"net-{hashlib.sha256(data).hexdigest()[:8]}.pth"
    source = tmp_path / name
    source.write_bytes(data)
    hub.fetch(source.as_uri(), "model.net.weights", "DEFAULT")
    path = hub.cached(source.as_uri())
    assert path.read_bytes() == data
    assert capfd.readouterr().err == f"fetching {source.as_uri()} to {path}\n"
    source.unlink()
    hub.fetch(source.as_uri(), "model.net.weights", "DEFAULT")  # it is here already
    path.unlink()
    source.write_bytes(b"others")
    with pytest.raises(DataError, match=r"could not be fetched .invalid hash value"):
        hub.fetch(source.as_uri(), "model.net.weights", "DEFAULT")
    assert list(path.parent.iterdir()) == []


def test_a_file_that_is_missing_or_damaged_is_told(cache):
    model = torchvision.network(RESNET, classes=3)
    with pytest.raises(DataError, match=r"DEFAULT: this host does not have the file; .*resnet18-"):
        torchvision.pretrained(model, RESNET, "DEFAULT")
    path = hub.cached(get_model_weights(RESNET).DEFAULT.url)
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match=r"resnet18-\w+.pth cannot be read; "):
        torchvision.pretrained(model, RESNET, "DEFAULT")
