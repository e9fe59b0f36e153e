"""A model that does not fit its examples or its task is one line, before any step."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import alexnet, resnet18

from ninefold.errors import ConfigError
from ninefold.model import Output, check
from ninefold.task.classification import Classification
from tests.conftest import Shell

LOSS = Classification(10).loss
TARGET = torch.tensor([3])


class Parts(nn.Module):
    """As torchvision's segmentation models, a mapping; or any other `kind` of output."""

    def __init__(self, kind: Any = OrderedDict) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(4, 10), kind

    def forward(self, inputs: Tensor) -> Any:
        output = self.layer(inputs.flatten(1))
        return self.kind([("out", output), ("aux", output)])


def fits(model: nn.Module, shape: tuple[int, ...], part: str | int | None = None) -> None:
    check(model, part, LOSS, torch.ones(1, *shape), TARGET, "own")


def test_a_model_that_fits_passes_in_little_time_and_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    model = resnet18(num_classes=10).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    took = []
    for _ in range(4):  # the first imports; the garbage of other tests may be collected in one
        began = time.thread_time()
        fits(model, (3, 32, 32))
        took.append(time.thread_time() - began)
    assert min(took) < 0.1
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_images_too_small_for_a_model_are_refused() -> None:
    line = r"^error: model=own: it fails in evaluation mode on examples of \[3, 8, 8\]; .*too small"
    with pytest.raises(ConfigError, match=line):
        fits(alexnet(num_classes=10), (3, 8, 8))


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (OrderedDict, "OrderedDict with the keys out, aux"),
        (lambda parts: tuple(part for _, part in parts), "tuple of 2 parts"),
        (lambda parts: None, "NoneType"),
    ],
)
def test_an_output_that_is_no_tensor_is_refused_with_what_it_is(kind: Any, found: str) -> None:
    with pytest.raises(ConfigError, match=f"output is not a tensor; it returns {found}; set mod"):
        fits(Parts(kind), (1, 2, 2))


def test_a_part_of_the_output_can_be_the_prediction() -> None:
    fits(Parts(), (1, 2, 2), "out")
    images = torch.rand(3, 1, 2, 2)
    model = Parts()
    assert torch.equal(Output(model, "aux")(images), model(images)["aux"])
    with pytest.raises(ConfigError, match=r"^error: model.output=x: model=own returns no such"):
        fits(Parts(), (1, 2, 2), "x")


def test_an_output_that_the_task_cannot_take_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^error: model=own: it fails in evaluation mode on"):
        fits(nn.Conv2d(1, 10, 1), (1, 2, 2))


def test_a_model_that_needs_numbers_is_computed() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = nn.Linear(4, 10), list[float]()

        def forward(self, inputs: Tensor) -> Tensor:
            self.seen.append(float(inputs.sum()))  # not possible without numbers
            output: Tensor = self.layer(inputs.flatten(1) + torch.rand(4))
            return output

    model, state = Counts(), torch.get_rng_state()
    fits(model, (1, 2, 2))
    assert len(model.seen) == 1
    assert torch.equal(torch.get_rng_state(), state)


def test_a_run_with_images_too_small_for_its_model_ends_with_one_line(shell: Shell) -> None:
    done = shell.train("model=alexnet", "model.input_size=null")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "error: model=alexnet: it fails in evaluation mode on examples of [3, 8, 8]; "
    )


@pytest.mark.slow
def test_a_run_with_a_segmentation_model_and_a_classification_ends_with_one_line(
    shell: Shell,
) -> None:
    path = shell.folder / "own" / "model" / "seg.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(
        "net:\n  _target_: torchvision.models.segmentation.lraspp_mobilenet_v3_large\n"
        "  weights_backbone: null\n  num_classes: 10\ninput_channels: 3\ninput_size: 32\n"
        "output: null\nmemory_format: contiguous_format\n"
    )
    for part, said in (
        ("null", "error: model=seg: the model's output is not a tensor; it returns OrderedDict"),
        ("out", "error: model=seg: it fails in evaluation mode on examples of [3, 32, 32]; "),
    ):
        done = shell.train("--config-dir=own", "model=seg", f"model.output={part}")
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith(said)


class Caching(nn.Module):
    """Keeps a tensor that it makes on the device of the first inputs it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 10)
        self.places: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if self.places is None:
            self.places = torch.arange(4.0, device=inputs.device)
        output: Tensor = self.layer(inputs.flatten(1) + self.places)
        return output


def test_a_model_that_keeps_what_it_computes_can_be_trained_after_the_check() -> None:
    model = Caching()
    fits(model, (1, 2, 2))
    assert model(torch.ones(1, 1, 2, 2)).device.type == "cpu"
