"""The whole of a run is tried before it starts: what would end it after its first epoch is a line.

And what is tried changes nothing: no weight, buffer, state or random number.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import alexnet, resnet18

from ninefold.dataset import Examples
from ninefold.dataset.loader import HostSource
from ninefold.engine import evaluation
from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.none import Single
from ninefold.errors import ConfigError, Failure
from ninefold.model import Output
from ninefold.task import Objective, Scores
from ninefold.task.own_loss import OwnLoss
from ninefold.task.segmentation import Segmentation
from ninefold.train.trial import Trial
from tests.task.test_own_loss import Perceptual

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
    of.evaluation(examples(count, inputs, targets), AsFloats(), "abcde")


def test_what_is_tried_changes_nothing():
    network, task = resnet18(num_classes=10).train(), Own()
    images = torch.rand(2, 3, 64, 64)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    drawn = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    tried = trial(network, task)
    step(tried, 2, images)
    evaluate(tried, inputs=images)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == drawn[:2]
    assert torch.equal(torch.get_rng_state(), drawn[2])
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert network.training
    assert task.calls == 0


def test_a_batch_of_one_example_is_tried_where_a_device_computes_one():
    step(trial(), 64)
    line = r"^error: batch_size=64: a device computes 1 example at a time, .*more than 1 value per"
    with pytest.raises(ConfigError, match=line):
        step(trial(), 64, accumulate=64)


def test_what_a_loss_has_in_evaluation_mode_is_tried_so():
    """In training mode its batch norm would refuse the one example of a device."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 5))
    step(trial(network, OwnLoss(Perceptual())), 64, accumulate=64)


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
        (Net(), Own(loss=lambda output, target: F.cross_entropy(output, target.float())),
         r"model=net: .*; return inputs as floats, classes as whole numbers \(label.long"),
        (Net(), Own(loss=raising(KeyError("gone"))), "model=net: .*test_trial.py:.*KeyError"),
        (Net(lambda net, x: F.linear(x.byte(), torch.eye(5))), Own(), "model=net: .*return inputs"),
        (Net(lambda net, x: x.bool().softmax(1)), Own(), "model=net: .*'Bool'; return inputs"),
    ],
)  # fmt: skip
def test_a_training_step_that_fails_is_told_before(network, task, line):
    with pytest.raises(ConfigError, match=f"^error: {line}"):
        step(trial(network, task), 64)


HEAD = nn.Linear(5, 5)
FROZEN = nn.Linear(5, 5).requires_grad_(False)


def through(head: Callable[[Tensor], Tensor]) -> Own:
    return Own(loss=lambda output, target: F.cross_entropy(head(output), target))


def penalized(output: Tensor, target: Tensor) -> Tensor:
    """A loss with a leaf of its own in each step."""
    noise = torch.rand(()).requires_grad_()
    return F.cross_entropy(output * noise, target)


@pytest.mark.parametrize(
    ("network", "task", "shapes"),
    [
        (Net(), through(HEAD), r"\[5, 5\], \[5\]"),
        (Net(lambda net, x: HEAD(x)), Own(), r"\[5, 5\], \[5\]"),
        (Net(), through(torch.ones(5, requires_grad=True).mul), r"\[5\]"),
    ],
    ids=["loss", "network", "tensor"],
)
def test_a_loss_with_parameters_that_no_run_would_train_is_refused(network, task, shapes):
    line = f"^error: model=net: its loss depends on parameters .*; they are of shapes {shapes};"
    with pytest.raises(ConfigError, match=line):
        step(trial(network, task))


@pytest.mark.parametrize("task", [through(FROZEN), Own(loss=penalized)], ids=["frozen", "leaf"])
def test_what_no_gradient_updates_or_a_step_makes_is_no_parameter_of_a_loss(task):
    step(trial(Net(), task))


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
        (nn.Bilinear(4, 4, 5), r"model=net: it fails .*missing 1 required .*: 'input2'"),
        (Pairs(OrderedDict), "model=net: the model's output is not a tensor; .* OrderedDict with "
         "the keys out, aux; set model.output"),
        (Pairs(lambda parts: [part for _, part in parts]), "model=net: .* list of 2 parts"),
        (Pairs(lambda parts: None), "model=net: .* NoneType"),
        (nn.Conv2d(1, 5, 1), "task=own: its `loss` fails .*, on outputs .*5, 4, 4.* and targets"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_fit_its_examples_or_its_task_is_told_before(network, line):
    with pytest.raises(ConfigError, match=f"^error: {line}"):
        evaluate(trial(network))


def test_a_part_of_the_output_can_be_the_prediction():
    network = Pairs(dict)
    evaluate(replace(trial(network), part="out"))
    assert torch.equal(Output(network, "aux")(INPUTS), network(INPUTS)["aux"])
    with pytest.raises(ConfigError, match=r"^error: model.output=x: model=net returns no such"):
        evaluate(replace(trial(network), part="x"))


def test_a_users_loss_that_fails_is_named_with_the_shapes_that_it_got():
    own = trial(task=Own(loss=nn.NLLLoss(torch.ones(3))), own="a.b")
    with pytest.raises(ConfigError, match=r"^error: task.loss=a.b: it fails on outputs \[5\] and"):
        evaluate(own)


def test_a_users_loss_that_takes_a_part_that_is_not_there_is_named_with_its_line():
    own = Own(loss=lambda output, target: F.cross_entropy(output["logits"], target))
    line = r"^error: model=net: a training step fails .*test_trial.py:\d+, KeyError: 'logits'"
    with pytest.raises(ConfigError, match=line):
        step(trial(Pairs(dict), own), 64)
    with pytest.raises(ConfigError, match=r"OrderedDict with the keys out, aux; .*, as out$"):
        step(trial(Pairs(OrderedDict), Own()), 64)


@pytest.mark.parametrize(
    ("methods", "line"),
    [
        ({"measure": raising(AttributeError("no such"))}, r"`measure` fails .*test_trial.py:\d+"),
        ({"measure": lambda output, target: output.argmax(1).numpy() @ [1]}, "`measure` fails"),
        ({"measure": lambda output, target: 3}, "`measure` fails .*'int' object has no"),
        ({"scores": raising(ValueError("of mine"))}, r"`scores` fails .*test_trial.py:\d+, ValueE"),
        ({"scores": lambda sums, names: 0.5}, "`scores` fails .*'float' object has no"),
        ({"scores": lambda sums, names: Scores(sums[7].item())}, "`scores` fails .*IndexError"),
        ({"scores": lambda sums, names: Scores({}[names[:1]])}, "`scores` fails .*KeyError"),
    ],
)  # fmt: skip
def test_an_evaluation_that_fails_is_told_before(methods, line):
    with pytest.raises(ConfigError, match=rf"^error: task=own: .*{line}"):
        evaluate(trial(task=Own(**methods)))


@pytest.mark.parametrize(
    "methods",
    [
        {"scores": lambda sums, names: Scores(1 / 0)},  # as of a class that these have none of
        {"scores": lambda sums, names: Scores([0.5][int(sums[1]) < 9])},  # as of too few examples
    ],
)
def test_an_evaluation_that_may_go_well_is_not_refused(methods):
    evaluate(trial(task=Own(**methods)), 96)


def test_masks_that_are_void_in_the_first_examples_are_not_refused():
    network = nn.Conv2d(1, 5, 1)
    void = torch.full((2, 4, 4), 255, dtype=torch.uint8)
    evaluate(trial(network, Segmentation(5, 255)), 64, targets=void)


@pytest.mark.parametrize("method", ["measure", "scores"])
def test_a_later_error_in_a_users_task_is_named_as_hers(method):
    task = Own(**{method: raising(ValueError("later"))})
    with pytest.raises(Failure, match=rf"^error: task=Own: its `{method}` failed.*test_trial.py:"):
        evaluation.evaluate(
            Objective(Net(), task), HostSource(examples(4, INPUTS, TARGETS)), task=task,
            batch_size=2, prepare=AsFloats(), parallel=Single("cpu"),
            context=RankContext(0, 1, CPU),
        )  # fmt: skip


def cox(output: Tensor, target: Tensor) -> Tensor:
    """The negative log partial likelihood: each event against all that lasted as long."""
    time, score = target.float(), output[:, 0]
    at_risk = time[None] >= time[:, None]
    return -(score - torch.where(at_risk, score[None], -torch.inf).logsumexp(1)).mean()


def nt_xent(output: Tensor, target: Tensor) -> Tensor:
    """Each example's two views against those of all others in the batch."""
    one, other = F.normalize(output[:, :2]), F.normalize(output[:, 2:4])
    return F.cross_entropy(one @ other.T / 0.1, torch.arange(len(output)))


def ignoring(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, torch.where(target == 3, -100, target), reduction="mean")


def drawing(output: Tensor, target: Tensor) -> Tensor:
    """As of a variational autoencoder: what it draws differs from call to call."""
    return (output + torch.randn_like(output)).pow(2).sum(1).mean()


@pytest.mark.parametrize(
    ("loss", "mean"),
    [
        (F.cross_entropy, True),
        (lambda output, target: F.cross_entropy(output, target, reduction="sum"), False),
        (cox, False),
        (nt_xent, False),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 1.0, 1.0, 1.0])), False),
        (ignoring, False),
        (lambda output, target: ignoring(output, target.view(-1)), False),
        (drawing, True),
        (lambda output, target: drawing(output, target) * len(target), False),
        (lambda output, target: F.gaussian_nll_loss(*output.T[:2], output.T[2].exp()), True),
    ],
    ids=[
        *("mean", "sum", "Cox", "NT-Xent", "class weights", "-100", "-100 of a view", "draws"),
        *("drawn sum", "nll"),
    ],
)
def test_a_loss_that_is_no_mean_over_the_examples_of_a_batch_is_seen(loss, mean):
    torch.manual_seed(0)
    few = Examples(torch.rand(40, 1, 4, 4).numpy(), torch.randint(0, 5, (40,)).numpy())
    assert trial(task=Own(loss=loss)).has_mean_loss(few, AsFloats(), 0) is mean


class Experts(nn.Module):
    """The first value of an example chooses its expert, and nothing needs the pooler."""

    def __init__(self, pooler: bool) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(16, 5) for _ in range(3))
        self.pooler = nn.Linear(5, 5) if pooler else None

    def forward(self, images: Tensor) -> Tensor:
        rows = images.flatten(1)
        which = (3 * rows[:, 0]).long().clamp(max=2)
        return torch.stack([self.experts[int(n)](row) for n, row in zip(which, rows, strict=True)])


@pytest.mark.parametrize(("pooler", "unused"), [(True, ["weight", "bias"]), (False, [])])
def test_parameters_that_a_whole_batch_does_not_use_are_named(pooler, unused):
    torch.manual_seed(0)
    some = Examples(torch.rand(64, 1, 4, 4).numpy(), torch.randint(0, 5, (64,)).numpy())
    found = trial(Experts(pooler)).step(some, AsFloats(), 0, 64, 1)
    assert found == [f"pooler.{name}" for name in unused]


def penalty(output: Tensor, target: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(output.sum(), output, create_graph=True)
    return F.cross_entropy(output, target) + (found.norm(dim=1) - 1).pow(2).mean()


def test_a_loss_that_takes_gradients_is_evaluated_with_gradients_enabled():
    some = examples(65, INPUTS, TARGETS)
    assert trial(task=Own(loss=penalty)).evaluation(some, AsFloats(), "abcde")
    assert not trial().evaluation(some, AsFloats(), "abcde")
