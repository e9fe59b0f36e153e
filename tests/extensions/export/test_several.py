"""Networks of several inputs and outputs as files, with the names that they have in the code."""

import pytest
import torch
from torch import nn

from ninefold.api.parts import AsItIs, WithForward
from ninefold.dataset.mapped import Mapped
from ninefold.dataset.preparation import ImagePreparation
from ninefold.errors import ConfigError
from ninefold.extensions.export import check, graph
from ninefold.extensions.export.formats import FORMATS
from ninefold.extensions.export.run import first
from ninefold.model import Output
from ninefold.task.own_loss import OwnLoss
from tests.dataset import kinds

TASK = OwnLoss(nn.MSELoss())
CASES: dict[str, tuple[nn.Module, list[str], int]] = {
    "features": (kinds.Features(), ["x_cont", "x_cat"], 1),
    "pair": (kinds.Pair(), ["one", "other"], 2),
    "next": (Output(kinds.Decoder(), 0), ["idx", "targets"], 1),
    "alone": (kinds.VAE(draws=False), ["input"], 3),
    "words": (kinds.Words(), ["ids", "mask"], 1),
}  # fmt: skip


def source_of(kind: str, prepares: bool = True) -> graph.Exported:
    node = {"_target_": "tests.dataset.mine.Item", "kind": kind}
    keys = [["ids", "mask"], "label"] if kind == "words" else None
    examples = Mapped(train=node, test=node, keys=keys).load("test")
    inputs, targets = first(examples, 20)
    network = CASES[kind][0]
    model = network.network if isinstance(network, Output) else network
    prepare = ImagePreparation(channels=None)
    return graph.source(model, network, inputs, targets, prepare, prepares)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnx", "pt2", "safetensors"])
@pytest.mark.parametrize("kind", CASES)
def test_a_file_returns_what_a_network_of_several_inputs_and_outputs_does(tmp_path, kind, name):
    source, file = source_of(kind), tmp_path / f"model.{name}"
    file.write_bytes(FORMATS[name].made(source, {}))
    found = check.compared(source, FORMATS[name].open(source, file), TASK, name)
    found.require_same(name)
    assert found.examples == 20
    assert source.names == CASES[kind][1]


def test_weights_have_the_names_of_the_network_that_forward_of_a_comparison_calls(tmp_path):
    from safetensors.torch import load_file

    network, file = kinds.Pair(), tmp_path / "model.safetensors"
    model = WithForward(network, lambda inner, batch: inner(*batch)["sum"])
    batch = torch.randn(4, 6), torch.randn(4, 6)
    inputs, prepare = (batch,), AsItIs(torch.contiguous_format)
    found = graph.source(model, model, inputs, torch.ones(4), prepare, False)
    file.write_bytes(FORMATS["safetensors"].made(found, {}))
    network.load_state_dict(load_file(file))
    check.compared(found, FORMATS["safetensors"].open(found, file), TASK, "").require_same("")


def test_images_among_several_inputs_are_prepared_outside_of_the_file():
    node = {"_target_": "tests.dataset.mine.Item", "kind": "image and row"}
    inputs, targets = first(Mapped(train=node, test=node).load("test"), 4)
    network, prepare = kinds.ImageAndRow(), ImagePreparation(channels=None)
    with pytest.raises(ConfigError, match=r"prepare=true: images among several inputs .*=false"):
        graph.source(network, network, inputs, targets, prepare, True)
    assert graph.source(network, network, inputs, targets, prepare, False).names == ["image", "row"]
