"""What is frozen gets no gradient, and its batch normalization sees no batch."""

import re

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from torchvision.models import resnet18, resnet50

from ninefold.errors import ConfigError
from ninefold.train.freeze import freeze, kept_frozen
from ninefold.train.optimizer import parameter_groups, trained_parameters
from tests.conftest import ROOT


def test_a_prefix_freezes_what_is_below_it_and_not_what_begins_alike():
    model = nn.ModuleDict({f"layer{n}": nn.Linear(2, 2) for n in (1, 10)})
    assert freeze(model, ["layer1."]) == ["freeze: 6 of 12 parameters are not trained."]
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    assert trained == ["layer10.weight", "layer10.bias"]
    kept = trained_parameters(model)
    assert [id(each) for each in kept] == [id(p) for p in model["layer10"].parameters()]
    assert freeze(model, None) == freeze(model, []) == []


def test_a_prefix_of_no_parameter_is_refused_by_name_of_the_nearest():
    with pytest.raises(ConfigError, match="no parameter begins so; did you mean layer1"):
        freeze(resnet18(), ["layr1"])


def test_a_group_of_frozen_parameters_is_refused():
    model = resnet18()
    freeze(model, ["layer1"])
    with pytest.raises(
        ConfigError, match=r"match=layer1\*: it matches no parameter that is trained"
    ):
        parameter_groups(model, [{"match": "layer1*", "lr": 0.1}])


def test_frozen_batch_normalization_stays_in_evaluation_also_where_it_is_replaced():
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


def test_a_network_with_frozen_parts_takes_several_inputs():
    network = kept_frozen(nn.Bilinear(2, 3, 4), ["weight"])
    one, other = torch.ones(5, 2), torch.ones(5, 3)
    assert network(one, other).equal(network(input1=one, input2=other))


def test_the_documented_groups_leave_biases_and_norms_undecayed_and_slow_all_but_the_head():
    """The recipe in docs/how-to/fine-tuning.md, for torchvision's ResNets."""
    page = (ROOT / "docs" / "how-to" / "fine-tuning.md").read_text()
    page = re.sub(r"'\\\n {4}'", "", page)  # a value on several lines
    (text,) = re.findall(r"'(optimizer\.groups=\[\{match:\"fc.*)'", page)
    groups = OmegaConf.to_container(
        OmegaConf.create(re.sub(r"(\w):", r"\1: ", text.partition("=")[2]))
    )
    model = resnet50()
    names = {id(value): name for name, value in model.named_parameters()}
    norms = {n for n, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}
    (*found,) = parameter_groups(model, groups)
    assert sum(len(group["params"]) for group in found) == len(names)
    for group in found:
        for name in (names[id(value)] for value in group["params"]):
            plain = name.endswith(".bias") or name.rpartition(".")[0] in norms
            assert (group.get("weight_decay") == 0) is plain, name
            assert (float(group.get("lr", 1e-3)) == 1e-4) is not name.startswith("fc."), name
