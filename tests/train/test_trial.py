"""The whole of a run is tried before it starts: what would end it after its first epoch is a line.

And what is tried changes nothing: no weight, buffer, state or random number.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import googlenet, resnet18

from ninefold.dataset import Examples
from ninefold.dataset.loader import HostSource
from ninefold.engine.evaluation import evaluate
from ninefold.engine.parallel import Place
from ninefold.engine.parallel.none import Single
from ninefold.engine.task import Objective, Scores
from ninefold.errors import ConfigError, Failure
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


def trial(network: nn.Module | None = None, task: Any = None, own: str | None = None) -> Trial:
    return Trial(network or Net().train(), None, "net", task or Own(), "own", own, CPU)


def evaluated(of: Trial, sizes: set[int], targets: Tensor = TARGETS) -> None:
    of.evaluation((INPUTS, targets), lambda count: targets[torch.arange(count) % 2], sizes, "abcde")


def test_what_is_tried_changes_nothing_and_takes_little_time() -> None:
    network, task = resnet18(num_classes=10).train(), Own()
    images, took = torch.rand(2, 3, 64, 64), []
    before = {name: value.clone() for name, value in network.state_dict().items()}
    drawn = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    tried = trial(network, task)
    for _ in range(3):
        began = time.thread_time()
        tried.step((images, TARGETS), 1, 2)
        tried.evaluation((images, TARGETS), lambda count: TARGETS, {64, 1})
        took.append(time.thread_time() - began)
    assert min(took) < 1
    assert (random.getstate(), np.random.get_state()[1].tolist()) == drawn[:2]
    assert torch.equal(torch.get_rng_state(), drawn[2])
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert network.training
    assert task.calls == 0


def test_a_network_that_reads_values_is_tried_as_a_copy() -> None:
    network = Net(lambda net, x: x + float(x.sum()) * 0)
    before = network.norm.running_mean.clone()
    trial(network).step((INPUTS, TARGETS), 2, 2)
    evaluated(trial(network), {2, 1})
    assert network.calls == 0
    assert torch.equal(network.norm.running_mean, before)


def test_a_batch_of_one_example_is_tried_where_a_device_computes_one() -> None:
    trial().step((INPUTS, TARGETS), 2, 64)
    line = r"^error: batch_size=64: a device computes 1 example at a time, .*more than 1 value per"
    with pytest.raises(ConfigError, match=line):
        trial().step((INPUTS, TARGETS), 1, 64)


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
        trial(network, task).step((INPUTS, TARGETS), 2, 64)


def test_a_model_of_torchvision_with_other_outputs_in_training_is_told_before() -> None:
    network = googlenet(num_classes=5, init_weights=False)
    with pytest.raises(ConfigError, match=r"^error: model=net: the model's output is not a tensor"):
        trial(network).step((torch.rand(2, 3, 64, 64), TARGETS), 2, 64)


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
        evaluated(trial(task=Own(**methods)), {64, 1})


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
    evaluated(trial(task=task), {64, 32})


def test_an_evaluation_of_probabilities_is_not_refused_for_outputs_that_are_none() -> None:
    def measure(output: Tensor, target: Tensor) -> Tensor:
        assert torch.allclose(output.sum(1), torch.ones(len(output))), "no probabilities"
        return torch.tensor([1, 1])

    network = Net(lambda net, x: x.softmax(1)).eval()
    evaluated(trial(network, Own(measure=measure)), {64, 1})


def test_classification_refuses_targets_that_are_no_classes() -> None:
    line = r"^error: task=classification: the targets are float32 \[5\]; a class number for each"
    with pytest.raises(ConfigError, match=line):
        evaluated(trial(task=Classification(5)), {64}, torch.rand(2, 5))


def test_masks_that_are_void_in_the_first_examples_are_not_refused() -> None:
    network = nn.Conv2d(1, 5, 1)
    void = torch.full((2, 4, 4), 255, dtype=torch.uint8)
    evaluated(trial(network, Segmentation(5, 255)), {64}, void)


def test_weights_of_classes_are_tried_on_the_device_of_the_network() -> None:
    task = Classification(5, nn.CrossEntropyLoss(weight=torch.ones(5)))
    network = Net(lambda net, x: net.fail() if not x.is_meta else x)
    trial(network, task, own="torch.nn.CrossEntropyLoss").step((INPUTS, TARGETS), 2, 64)


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
    examples = Examples(np.zeros((4, 1, 4, 4), np.uint8), np.zeros(4, np.int64))
    with pytest.raises(Failure, match=rf"^error: task=Own: its `{method}` failed.*test_trial.py:"):
        evaluate(
            Objective(Net(), task), HostSource(examples), task=task, batch_size=2,
            prepare=AsFloats(), parallel=Single("cpu"), place=Place(0, 1, CPU),
        )  # fmt: skip


class AsFloats:
    def draws(self, *_: object) -> list[None]:
        return []

    def __call__(self, inputs: Tensor, targets: Tensor, _: None) -> tuple[Tensor, Tensor]:
        return inputs.float(), targets


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


@pytest.mark.slow
def test_a_batch_norm_with_one_item_for_each_process_is_told_before_the_first_step(
    shell: Shell,
) -> None:
    path = shell.folder / "own" / "model" / "norm.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(
        "net:\n  _target_: torch.nn.Sequential\n  _args_:\n  - {_target_: torch.nn.Flatten}\n"
        "  - {_target_: torch.nn.Linear, in_features: 64, out_features: 10}\n"
        "  - {_target_: torch.nn.BatchNorm1d, num_features: 10}\n"
        "input_channels: 1\ninput_size: null\noutput: null\nmemory_format: auto\n"
    )
    for cell in (["parallel=ddp", "batch_size=2"], ["accumulate=4", "batch_size=4"]):
        done = shell.train(
            "--config-dir=own",
            "model=norm",
            *cell,
            "launch.cpu_processes=2",
            f"hydra.run.dir=run{len(cell[0])}",
        )
        refused(done, 2, f"{cell[1]}: a device computes 1 example at a time")
