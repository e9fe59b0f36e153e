"""The whole of a run is tried before it starts: what would end it after its first epoch is a line.

And what is tried changes nothing: no weight, buffer, state or random number.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import alexnet, googlenet, resnet18

from ninefold.dataset import Examples
from ninefold.dataset.loader import HostSource
from ninefold.engine import evaluation
from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.none import Single
from ninefold.engine.task import Objective, Scores
from ninefold.errors import ConfigError, Failure
from ninefold.model import Output
from ninefold.task.classification import Classification
from ninefold.task.segmentation import Segmentation
from ninefold.train.trial import Trial, evaluated_in, parts
from tests.conftest import Shell
from tests.faults.refusals import refused

CPU = torch.device("cpu")
INPUTS, TARGETS = torch.rand(2, 1, 4, 4), torch.tensor([1, 3])


class Own:
    """A task as a user writes it, with a fault: no nn.Module, and with state."""

    score = "accuracy"

    def __init__(self, **methods: Callable[..., Any]) -> None:
        self.calls = 0
        for name, method in methods.items():
            setattr(self, name, method)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return F.cross_entropy(output, target)

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return torch.stack([(output.argmax(1) == target).sum(), torch.tensor(len(target))])

    def scores(self, sums: Tensor, names: Sequence[str]) -> Scores:
        self.calls += 1
        return Scores((sums[0] / sums[1]).item())


class Net(nn.Module):
    """A network with whatever `between` does to its output, and with state."""

    def __init__(self, between: Callable[[nn.Module, Tensor], Any] = lambda net, x: x) -> None:
        super().__init__()
        self.layer, self.norm, self.calls = nn.Linear(16, 5), nn.BatchNorm1d(5), 0
        self.between = between

    def forward(self, images: Tensor) -> Any:
        self.calls += 1
        output: Tensor = self.norm(self.layer(images.flatten(1)))
        return self.between(self, output)


class AsFloats:
    def draws(self, seed: int, epoch: int, rows: Any, *_: object) -> list[None]:
        return [None] * len(rows)

    def __call__(self, inputs: Tensor, targets: Tensor, _: None) -> tuple[Tensor, Tensor]:
        return inputs.float(), targets


def examples(count: int, inputs: Tensor, targets: Tensor) -> Examples:
    """So many: these ones, over and over."""
    return Examples(*(np.resize(each, (count, *each.shape[1:])) for each in (inputs, targets)))


def trial(network: nn.Module | None = None, task: Any = None, own: str | None = None) -> Trial:
    context = RankContext(0, 1, CPU)
    return Trial(network or Net().train(), None, "net", task or Own(), "own", own, context)


def step(of: Trial, batch_size: int = 2, inputs: Tensor = INPUTS, accumulate: int = 1) -> None:
    of.step(examples(64, inputs, TARGETS), AsFloats(), 0, batch_size, accumulate)


def evaluate(
    of: Trial, count: int = 65, inputs: Tensor = INPUTS, targets: Tensor = TARGETS
) -> None:
    """In batches of 64: with 65 examples the last one has a single one."""
    of.evaluation(examples(count, inputs, targets), AsFloats(), 64, "abcde")


def test_what_is_tried_changes_nothing_and_takes_little_time() -> None:
    network, task = resnet18(num_classes=10).train(), Own()
    images, took = torch.rand(2, 3, 64, 64), []
    before = {name: value.clone() for name, value in network.state_dict().items()}
    drawn = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    tried = trial(network, task)
    for _ in range(3):
        began = time.thread_time()
        step(tried, 2, images)
        evaluate(tried, inputs=images)
        took.append(time.thread_time() - began)
    assert min(took) < 1
    assert (random.getstate(), np.random.get_state()[1].tolist()) == drawn[:2]
    assert torch.equal(torch.get_rng_state(), drawn[2])
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert network.training
    assert task.calls == 0


def keeping(net: nn.Module, output: Tensor) -> Tensor:
    """Keeps a tensor on the device of the first inputs that it sees."""
    if not hasattr(net, "kept"):
        net.kept = torch.zeros(5, device=output.device)
    return output + net.kept


@pytest.mark.parametrize("between", [lambda net, x: x + float(x.sum()) * 0, keeping])
def test_a_network_that_reads_values_or_keeps_them_is_tried_as_a_copy(between: Any) -> None:
    network = Net(between)
    before = network.norm.running_mean.clone()
    step(trial(network), 64)
    evaluate(trial(network))
    assert network.calls == 0
    assert torch.equal(network.norm.running_mean, before)
    assert network(INPUTS).device == CPU


def test_a_batch_of_one_example_is_tried_where_a_device_computes_one() -> None:
    step(trial(), 64)
    line = r"^error: batch_size=64: a device computes 1 example at a time, .*more than 1 value per"
    with pytest.raises(ConfigError, match=line):
        step(trial(), 64, accumulate=64)


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


@pytest.mark.parametrize(
    ("network", "task", "line"),
    [
        (Net(lambda net, x: (x, x) if net.training else x), Own(), "model=net: the model's output"),
        (Net(lambda net, x: x.detach()), Own(), "model=net: a training step fails .*not require"),
        (Net(lambda net, x: x[:, 0] if net.training else x), Own(), "model=net: a training step"),
        (Net(), Own(loss=lambda output, target: output.argmax(1).sum()), "model=net: a training"),
        (Net(), Own(loss=raising(KeyError("gone"))), "model=net: .*test_trial.py:.*KeyError"),
    ],
)  # fmt: skip
def test_a_training_step_that_fails_is_told_before(
    network: nn.Module, task: Any, line: str
) -> None:
    with pytest.raises(ConfigError, match=f"^error: {line}"):
        step(trial(network, task), 64)


def test_a_model_of_torchvision_with_other_outputs_in_training_is_told_before() -> None:
    network = googlenet(num_classes=5, init_weights=False)
    with pytest.raises(ConfigError, match=r"^error: model=net: the model's output is not a tensor"):
        step(trial(network), 64, torch.rand(2, 3, 64, 64))


class Pairs(nn.Linear):
    """Returns its output and another one, as torchvision's segmentation models do."""

    def __init__(self, kind: Callable[[Any], Any]) -> None:
        super().__init__(16, 5)
        self.kind = kind

    def forward(self, images: Tensor) -> Any:
        output = super().forward(images.flatten(1))
        return self.kind([("out", output), ("aux", output)])


@pytest.mark.parametrize(
    ("network", "line"),
    [
        (alexnet(num_classes=5), r"model=net: it fails in evaluation mode on .*\[1, 4, 4\]; "),
        (nn.Bilinear(4, 4, 5), "model=net: it does not take what an item has .*takes input1, inp"),
        (Pairs(OrderedDict), "model=net: the model's output is not a tensor; .* OrderedDict with "
         "the keys out, aux; set model.output"),
        (Pairs(lambda parts: [part for _, part in parts]), "model=net: .* list of 2 parts"),
        (Pairs(lambda parts: None), "model=net: .* NoneType"),
        (nn.Conv2d(1, 5, 1), "task=own: its `loss` fails .*, on outputs .*5, 4, 4.* and targets"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_fit_its_examples_or_its_task_is_told_before(
    network: nn.Module, line: str
) -> None:
    with pytest.raises(ConfigError, match=f"^error: {line}"):
        evaluate(trial(network))


def test_a_part_of_the_output_can_be_the_prediction() -> None:
    network = Pairs(dict)
    evaluate(replace(trial(network), part="out"))
    assert torch.equal(Output(network, "aux")(INPUTS), network(INPUTS)["aux"])
    with pytest.raises(ConfigError, match=r"^error: model.output=x: model=net returns no such"):
        evaluate(replace(trial(network), part="x"))


def test_a_users_loss_that_fails_is_named_with_the_shapes_that_it_got() -> None:
    own = trial(task=Own(loss=nn.NLLLoss(torch.ones(3))), own="a.b")
    with pytest.raises(ConfigError, match=r"^error: task.loss=a.b: it fails on outputs \[5\] and"):
        evaluate(own)


def of_two_alone(output: Tensor, target: Tensor) -> Tensor:
    assert len(target) > 1, "one example"
    return torch.stack([(output.argmax(1) == target).sum(), torch.tensor(len(target))])


@pytest.mark.parametrize(
    ("methods", "line"),
    [
        ({"measure": raising(AttributeError("no such"))}, r"`measure` fails .*test_trial.py:\d+"),
        ({"measure": lambda output, target: output.view(64, -1).sum(0)}, "`measure` fails"),
        ({"measure": lambda output, target: output.argmax(1).numpy() @ [1]}, "`measure` fails"),
        ({"measure": lambda output, target: 3}, "`measure` returns an object of type int; a tens"),
        ({"measure": lambda output, target: output.sum(1)}, "depends on the size of a batch; .2."),
        ({"measure": of_two_alone}, r"`measure` fails .*of 1 example\(s\); .*one example"),
        ({"scores": raising(ValueError("of mine"))}, r"`scores` fails .*test_trial.py:\d+, ValueE"),
        ({"scores": lambda sums, names: 0.5}, "`scores` returns an object of type float"),
        ({"scores": lambda sums, names: Scores(sums[7].item())}, "`scores` fails .*IndexError"),
        ({"scores": lambda sums, names: Scores({}[names[:1]])}, "`scores` fails .*KeyError"),
    ],
)  # fmt: skip
def test_an_evaluation_that_fails_is_told_before(
    methods: dict[str, Callable[..., Any]], line: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^error: task=own: .*{line}"):
        evaluate(trial(task=Own(**methods)))


@pytest.mark.parametrize(
    "methods",
    [
        {"measure": of_two_alone},  # no batch has one
        {"scores": lambda sums, names: Scores(1 / 0)},  # as of a class that these have none of
        {"measure": lambda output, target: F.one_hot(output.argmax(1), 5).sum(0)},
    ],
)
def test_an_evaluation_that_may_go_well_is_not_refused(methods: dict[str, Any]) -> None:
    task = Own(**methods)
    if "scores" not in methods:
        task.scores = lambda sums, names: Scores(0.5)  # type: ignore[method-assign]
    evaluate(trial(task=task), 96)


def test_an_evaluation_of_probabilities_is_not_refused_for_outputs_that_are_none() -> None:
    def measure(output: Tensor, target: Tensor) -> Tensor:
        assert torch.allclose(output.sum(1), torch.ones(len(output))), "no probabilities"
        return torch.tensor([1, 1])

    network = Net(lambda net, x: x.softmax(1)).eval()
    evaluate(trial(network, Own(measure=measure)))


def test_classification_refuses_targets_that_are_no_classes() -> None:
    line = r"^error: task=classification: the targets are float32 \[5\]; a class number for each"
    with pytest.raises(ConfigError, match=line):
        evaluate(trial(task=Classification(5)), 64, targets=torch.rand(2, 5))


def test_masks_that_are_void_in_the_first_examples_are_not_refused() -> None:
    network = nn.Conv2d(1, 5, 1)
    void = torch.full((2, 4, 4), 255, dtype=torch.uint8)
    evaluate(trial(network, Segmentation(5, 255)), 64, targets=void)


def test_weights_of_classes_are_tried_on_the_device_of_the_network() -> None:
    task = Classification(5, nn.CrossEntropyLoss(weight=torch.ones(5)))
    network = Net(lambda net, x: net.fail() if not x.is_meta else x)
    step(trial(network, task, own="torch.nn.CrossEntropyLoss"), 64)


def test_the_sizes_of_batches_are_those_that_processes_and_devices_compute() -> None:
    assert parts(8, 1) == {8}
    assert parts(7, 3) == {3, 1}
    assert evaluated_in(96, 32, 1, 1) == {32}
    assert evaluated_in(97, 32, 1, 1) == {32, 1}
    assert evaluated_in(97, 32, 2, 1) == {16, 1}  # 49 and 48 examples
    assert evaluated_in(3, 64, 4, 1) == {1}
    assert evaluated_in(10, 8, 1, 3) == {3, 2, 1}


@pytest.mark.parametrize("method", ["measure", "scores"])
def test_a_later_error_in_a_users_task_is_named_as_hers(method: str) -> None:
    task = Own(**{method: raising(ValueError("later"))})
    with pytest.raises(Failure, match=rf"^error: task=Own: its `{method}` failed.*test_trial.py:"):
        evaluation.evaluate(
            Objective(Net(), task), HostSource(examples(4, INPUTS, TARGETS)), task=task,
            batch_size=2, prepare=AsFloats(), parallel=Single("cpu"),
            context=RankContext(0, 1, CPU),
        )  # fmt: skip


FLOATS = """
import torch
class Floats(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, number): return torch.zeros(1, 8, 8), torch.rand(5)
"""


@pytest.mark.parametrize("parallel", ["none", pytest.param("ddp", marks=pytest.mark.slow)])
def test_float_targets_under_classification_are_told_before_the_first_step(
    shell: Shell, parallel: str
) -> None:
    (shell.folder / "floats.py").write_text(FLOATS)
    done = shell.train(
        "dataset=mapped", "dataset.train={_target_: floats.Floats}", "dataset.classes=5",
        "dataset.test={_target_: floats.Floats}", "dataset.shape=[1,8,8]", "batch_size=32",
        f"parallel={parallel}", "launch.cpu_processes=2", "hydra.run.dir=run", "logger=quiet",
        env={"PYTHONPATH": str(shell.folder)},
    )  # fmt: skip
    refused(done, 2, "task=classification: the targets are float32 [5]; a class number")
    assert not (shell.folder / "run" / "metrics.jsonl").exists()
