"""DataParallel's replicas have the loss and gradients of one pass, each from its own outputs."""

import copy
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.dp import DP, GatheredObjective, ParallelObjective
from ninefold.task import Objective, Task
from ninefold.task.classification import Classification
from ninefold.task.segmentation import Segmentation

VOID = 255


def classification() -> tuple[nn.Module, Task, Tensor, Tensor]:
    weight = torch.tensor([1.0, 2.0, 3.0])  # a task with a tensor, which replicas share
    task = Classification(3, nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1))
    return nn.Linear(4, 3), task, torch.randn(7, 4), torch.randint(0, 3, (7,))


def segmentation() -> tuple[nn.Module, Task, Tensor, Tensor]:
    masks = torch.randint(0, 2, (7, 6, 6), dtype=torch.uint8)
    for number, mask in enumerate(masks):
        mask[:number] = VOID  # the last one is void almost everywhere
    return nn.Conv2d(1, 2, 3, padding=1), Segmentation(2, VOID), torch.randn(7, 1, 6, 6), masks


class OnCPU:
    """Mixed into DataParallel: as many threads as are asked for, all of them on the CPU."""

    def __init__(self, module: nn.Module, count: int) -> None:
        nn.Module.__init__(self)
        self.module, self.dim, self.output_device = module, 0, 0
        self.device_ids, self.src_device_obj = list(range(count)), torch.device("cpu")

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        split = [
            values.chunk(len(device_ids)) if isinstance(values, Tensor) else [values] * 3
            for values in inputs
        ]
        parts = list(zip(*split, strict=False))
        return parts, [kwargs] * len(parts)

    def replicate(self, module: Any, device_ids: Any) -> Any:
        return [module for _ in device_ids]

    def parallel_apply(self, replicas: Any, inputs: Any, kwargs: Any) -> Any:
        with ThreadPoolExecutor(len(inputs)) as pool:
            return list(pool.map(lambda replica, of: replica(*of), replicas, inputs))


class Three(OnCPU, ParallelObjective):
    pass


class ThreeGathered(OnCPU, nn.DataParallel[nn.Module]):
    pass


@pytest.fixture(autouse=True)
def gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathers tensors of a CPU, which DataParallel's own refuses."""
    monkeypatch.setattr(nn.DataParallel, "gather", lambda _, outputs, device: torch.cat(outputs))


def gathered(objective: Objective) -> GatheredObjective:
    """loss_in_forward=false, with its DataParallel on the CPU."""
    wrapped = GatheredObjective(objective, [])
    wrapped._outputs = (ThreeGathered(objective.network, 3),)
    return wrapped


@pytest.mark.parametrize("loss_in_forward", [True, False])
@pytest.mark.parametrize("count", [7, 2])  # 3, 3 and 1 for three threads, or 1, 1 and none
@pytest.mark.parametrize("make", [classification, segmentation])
def test_threads_with_unlike_counts_have_the_gradients_of_one_pass(make, count, loss_in_forward):
    torch.manual_seed(0)
    network, task, inputs, targets = make()
    inputs, targets = inputs[:count], targets[:count]
    one, many = (Objective(copy.deepcopy(network), task) for _ in range(2))
    wrapped = Three(many, 3) if loss_in_forward else gathered(many)
    returned: list[int] = []
    hook = many.register_forward_hook(lambda module, given, output: returned.append(output.numel()))
    truth, loss = one(inputs, targets), wrapped(inputs, targets)
    hook.remove()
    assert returned == ([1] * min(count, 3) if loss_in_forward else [])
    assert abs(loss - truth) < 1e-6
    truth.backward()
    loss.backward()
    for ours, theirs in zip(many.parameters(), one.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert (ours.grad - theirs.grad).abs().max() < 1e-6
    with torch.no_grad():
        summed, sums = wrapped(inputs, targets, True)
        whole, expected = one(inputs, targets, True)
    assert abs(summed - whole) < 1e-5
    assert torch.equal(sums, expected)


@pytest.mark.parametrize("wrap", [lambda o: Three(o, 3), gathered])
def test_training_and_evaluation_modes_reach_the_network(wrap):
    network = nn.Sequential(nn.Linear(4, 3), nn.Dropout())
    wrapped = wrap(Objective(network, Classification(3)))
    assert wrapped.eval() is wrapped
    assert not network[1].training
    wrapped.train()
    assert network[1].training
    assert len(list(wrapped.parameters())) == 2


@pytest.mark.parametrize("gpus", [1, 4])
def test_dp_on_a_cpu_leaves_the_gpus_of_the_machine_alone(monkeypatch, gpus):
    torchs = import_module("torch.nn.parallel.data_parallel")
    monkeypatch.setattr(torchs, "_get_available_device_type", lambda: "cuda")
    monkeypatch.setattr(torchs, "_get_all_device_indices", lambda: list(range(gpus)))
    monkeypatch.setattr(torchs, "_get_device_index", lambda device, *how: device)
    monkeypatch.setattr(torchs, "_check_balance", lambda devices: None)
    model, inputs = nn.Linear(3, 2), torch.ones(4, 3)
    wrapped = DP(device="cpu").wrap(model, RankContext(0, 1, torch.device("cpu")))
    assert isinstance(wrapped, nn.DataParallel)
    assert torch.equal(wrapped(inputs), model(inputs))
    assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]
