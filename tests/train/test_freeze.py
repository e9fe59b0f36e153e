"""What is frozen gets no gradient, and its batch normalization sees no batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

from ninefold.errors import ConfigError
from ninefold.train.freeze import freeze, kept_frozen
from ninefold.train.optimizer import parameter_groups


def test_a_prefix_freezes_what_is_below_it_and_not_what_begins_alike() -> None:
    model = nn.ModuleDict({f"layer{n}": nn.Linear(2, 2) for n in (1, 10)})
    assert freeze(model, ["layer1."]) == ["freeze: 6 of 12 parameters are not trained."]
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    assert trained == ["layer10.weight", "layer10.bias"]
    (group,) = parameter_groups(model, None)
    assert [id(each) for each in group["params"]] == [id(p) for p in model["layer10"].parameters()]
    assert freeze(model, None) == freeze(model, []) == []


def test_a_group_of_frozen_parameters_is_refused_and_named_so() -> None:
    model = resnet18()
    freeze(model, ["layer1"])
    with pytest.raises(
        ConfigError, match=r"match=layer1\*: all parameters that it matches are fro"
    ):
        parameter_groups(model, [{"match": "layer1*", "lr": 0.1}])


def test_everything_cannot_be_frozen() -> None:
    with pytest.raises(ConfigError, match=r"freeze=\[0,1\]: no parameter would be trained; the mo"):
        freeze(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), ["0", "1"])


def test_frozen_batch_normalization_stays_in_evaluation_also_where_it_is_replaced() -> None:
    model = resnet18()
    network = kept_frozen(model, ["bn1", "layer1"])
    model.layer1[0].bn1 = nn.BatchNorm2d(64)  # as a strategy may do
    network.train()
    modes = {name: m.training for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert {name for name, mode in modes.items() if not mode} == {
        name for name in modes if name.startswith(("bn1", "layer1."))
    }
    before = {name: value.clone() for name, value in model.state_dict().items()}
    network(torch.rand(2, 3, 32, 32))
    moved = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    assert moved
    assert not any(name.startswith(("bn1", "layer1.")) for name in moved)
    network.eval()
    assert not any(m.training for m in model.modules())
