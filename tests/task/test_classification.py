"""Classification and its evaluation: every example counted once, however they are spread."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ninefold.dataset import Examples
from ninefold.dataset.loader import HostSource
from ninefold.dataset.preparation import ImagePreparation
from ninefold.engine.evaluation import Evaluation, evaluate
from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.none import Single
from ninefold.errors import ConfigError
from ninefold.task import Objective
from ninefold.task.classification import Classification

CPU = torch.device("cpu")


def test_the_measure_is_the_confusion_matrix():
    random = np.random.default_rng(0)
    output, target = random.normal(size=(200, 4)), random.integers(0, 4, 200)
    counts = Classification(4).measure(torch.from_numpy(output), torch.from_numpy(target))
    expected = np.zeros((4, 5), np.int64)
    for true, predicted in zip(target, output.argmax(axis=1), strict=True):
        expected[true, predicted] += 1
    assert counts.dtype == torch.int64
    assert np.array_equal(counts, expected)


def test_the_measure_of_labels_in_a_small_dtype_is_the_same():
    output, target = F.one_hot(torch.arange(47)).float(), torch.arange(47)
    (same, of_bytes) = (
        Classification(47).measure(output, each) for each in (target, target.byte())
    )
    assert same.equal(of_bytes)


def test_numbers_in_place_of_classes_are_told():
    task, line = Classification(3), r"the targets are float32 \[.*; a class number for each example"
    with pytest.raises(ConfigError, match=line):
        task.loss(torch.rand(4, 3), torch.rand(4))
    with pytest.raises(ConfigError, match=line):
        task.measure(torch.rand(4, 3), torch.rand(4, 3))


def test_a_prediction_outside_the_classes_is_counted_in_the_last_column():
    output = F.one_hot(torch.tensor([0, 2, 3, 6, 1]), 7).float()  # seven outputs, three classes
    counts = Classification(3).measure(output, torch.tensor([0, 2, 2, 0, 0]))
    assert counts.tolist() == [[1, 1, 0, 1], [0, 0, 0, 0], [0, 0, 1, 1]]


def examples(count: int, classes: int = 5) -> Examples:
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (count, 1, 4, 4), dtype=np.uint8)
    return Examples(images, random.integers(0, classes, count))


def network(classes: int = 5) -> nn.Module:
    """Dropout and batch normalization: in training mode it would be another network."""
    torch.manual_seed(0)
    layers = (
        nn.Flatten(),
        nn.Linear(16, 8),
        nn.BatchNorm1d(8),
        nn.Dropout(),
        nn.Linear(8, classes),
    )
    return nn.Sequential(*layers)


def same_table(evaluation: Evaluation, confusion: Tensor) -> bool:
    table = evaluation.scores.table
    return table is not None and np.array_equal(table, confusion.numpy())


def expectation(model: nn.Module, found: Examples) -> tuple[float, Tensor]:
    """Loss and confusion matrix of the whole set at once."""
    task, target = Classification(5), torch.from_numpy(found.targets)
    with torch.no_grad():
        output = copy.deepcopy(model).eval()(torch.from_numpy(found.inputs) / 255)
    return task.loss(output.double(), target).item(), task.measure(output, target)


class Team(Single):
    """Processes in miniature: threads that add up what each of them brings."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=30)
        self.brought: list[Tensor] = []
        self.dtypes: list[torch.dtype] = []

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        self.brought.append(values)
        self.dtypes.append(values.dtype)
        self.barrier.wait()
        total = torch.stack(self.brought).sum(dim=0)
        if self.barrier.wait() == 0:
            self.brought.clear()
        self.barrier.wait()
        return total


def evaluated(
    model: nn.Module, found: Examples, batch_size: int = 8, size: int = 1
) -> list[Evaluation]:
    """The evaluation as each of `size` processes gets it."""
    team, task = Team(size), Classification(5)

    def work(rank: int) -> Evaluation:
        try:
            return evaluate(
                Objective(copy.deepcopy(model) if size > 1 else model, task).train(model.training),
                HostSource(found),
                task=task,
                batch_size=batch_size,
                prepare=ImagePreparation(1),
                parallel=team,
                context=RankContext(rank, size, CPU),
            )
        except BaseException:
            team.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, range(size)))


@pytest.mark.parametrize(
    ("count", "batch_size", "size"),
    [
        *((37, batch_size, 1) for batch_size in (1, 3, 8, 37, 100)),
        *((37, 8, 2), (37, 8, 3), (7, 8, 4), (4, 8, 4), (2, 8, 3)),
    ],
)
def test_an_evaluation_is_exact_for_any_size_of_batch_and_processes(count, batch_size, size):
    model, found = network(), examples(count)
    loss, confusion = expectation(model, found)
    for evaluation in evaluated(model, found, batch_size, size):
        assert evaluation.count == count
        assert same_table(evaluation, confusion)
        assert evaluation.loss == pytest.approx(loss, rel=1e-5)
        assert evaluation.score == int(confusion.diagonal().sum()) / count


class Counting(Classification):
    """It counts in whole numbers of 8 bits."""

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        return super().measure(output, target).to(torch.uint8)


@pytest.mark.parametrize("count", [8, 37])
def test_sums_have_one_dtype_that_holds_them_in_any_number_of_batches(count):
    """Processes that have more batches than others could not add up theirs otherwise."""
    team = Team(1)
    task = Counting(5)
    evaluate(
        Objective(network(), task), HostSource(examples(count)), task=task, batch_size=8,
        prepare=ImagePreparation(1), parallel=team, context=RankContext(0, 1, CPU),
    )  # fmt: skip
    assert team.dtypes[1] == torch.int64


def test_a_class_without_examples_has_no_accuracy():
    confusion = torch.tensor([[3, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]])
    scores = Classification(3).scores(confusion, ["a", "b", "c"])
    assert scores.each == {"a": 0.75, "b": None, "c": 0.5}
    assert scores.score == 4 / 6


@pytest.mark.parametrize("training", [False, True])
def test_an_evaluation_leaves_the_network_as_it_was(training):
    model = network().train(training)
    before = copy.deepcopy(model.state_dict())
    evaluated(model, examples(20))
    assert model.training is training
    assert all(module.training is training for module in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_evaluation_draws_no_random_numbers_and_keeps_no_graph():
    model, recorded = network(), []
    model.register_forward_hook(lambda _, __, output: recorded.append(output.requires_grad))
    before = torch.get_rng_state()
    evaluated(model, examples(20))
    assert torch.equal(before, torch.get_rng_state())
    assert recorded == [False] * 3
