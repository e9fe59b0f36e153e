"""task.loss: a loss of torch.nn or of the user's own, as a mean over examples."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ninefold.errors import ConfigError
from ninefold.task import Objective
from ninefold.task.classification import Classification
from ninefold.task.loss import mean_over_examples
from ninefold.task.own_loss import OwnLoss
from ninefold.task.segmentation import Segmentation


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(7, 5), torch.randint(0, 5, (7,))


@pytest.mark.parametrize("kind", [Classification, Segmentation])
def test_the_tensors_of_a_loss_move_with_the_network(kind):
    loss = nn.CrossEntropyLoss(weight=torch.ones(5))
    objective = Objective(nn.Linear(2, 2), kind(5, loss=loss)).to("meta")
    assert {tensor.device.type for tensor in objective.buffers()} == {"meta"}


class Perceptual(nn.Module):
    """A loss with a frozen network, by the examples' running statistics, and a part that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Sequential(nn.BatchNorm1d(5)).eval().requires_grad_(False)
        self.dropout = nn.Dropout()

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.frozen(self.dropout(output)), target, reduction="none")


def test_what_a_loss_has_in_evaluation_mode_stays_in_it_and_the_rest_is_switched():
    objective = Objective(nn.Linear(5, 5), OwnLoss(Perceptual()))
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(objective))  # as ddp may
    for each in (objective, converted):
        loss = each.task.criterion
        for mode in (True, False, True):
            each.train(mode)
            assert (each.network.training, loss.training, loss.dropout.training) == (mode,) * 3
            assert not any(module.training for module in loss.frozen.modules())
    objective(*batch()).backward()
    assert torch.equal(objective.task.criterion.frozen[0].running_mean, torch.zeros(5))


class CountsOnCPU(Classification):
    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        return torch.tensor([1.0, float(len(target))])


def test_what_a_task_counts_on_the_cpu_is_summed_on_the_device_of_its_loss():
    """NCCL sums nothing that is on a CPU."""
    objective = Objective(nn.Linear(5, 5), CountsOnCPU(5)).to("meta")
    inputs, targets = (tensor.to("meta") for tensor in batch())
    _, sums = objective(inputs, targets, measure=True)
    assert sums.device.type == "meta"


def test_a_loss_of_torch_is_averaged_over_the_examples_whatever_its_reduction_was():
    output, target = batch()
    expected = F.cross_entropy(output, target, label_smoothing=0.1)
    for reduction in ("mean", "sum", "none"):
        criterion = nn.CrossEntropyLoss(label_smoothing=0.1, reduction=reduction)
        assert torch.allclose(Classification(5, criterion).loss(output, target), expected)
        assert criterion.reduction == reduction  # it is not changed itself


def test_weights_of_classes_do_not_make_a_loss_depend_on_how_a_batch_is_split():
    output, target = batch()
    task = Classification(5, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9, 1, 1, 1])))
    whole = task.loss(output[:6], target[:6])
    parts = [task.loss(output[first:6:2], target[first:6:2]) for first in (0, 1)]
    assert torch.allclose(torch.stack(parts).mean(), whole)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (torch.tensor(1.0), r"task.loss=\[\]: the loss has no number for each example"),
        (torch.ones(3), r"task.loss=\[3\]: the loss has no number"),
        (1.0, "task.loss=float: the loss returns no tensor"),
    ],
)
def test_a_loss_without_a_number_for_each_example_is_one_line(values, found):
    with pytest.raises(ConfigError, match=found):
        mean_over_examples(values, 2)
