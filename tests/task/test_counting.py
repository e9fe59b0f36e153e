"""What tasks measure is counted on a GPU as on a CPU, without waiting for it."""

import pytest
import torch
from torch import Tensor

from ninefold.task import Task
from ninefold.task.classification import Classification
from ninefold.task.counts import added, counted
from ninefold.task.segmentation import Segmentation


@pytest.mark.parametrize("shape", [(1000,), (1,), (0,), (7, 9, 11), (3, 4, 5, 6)])
def test_numbers_are_counted_without_waiting_as_bincount_counts_them(shape):
    cells = torch.randint(0, 12, shape, generator=torch.Generator().manual_seed(0))
    expected = torch.bincount(cells.flatten(), minlength=20)
    for count in (counted, added):
        found = count(cells, 20)
        assert found.dtype == torch.int64
        assert torch.equal(found, expected)


def cases() -> dict[str, tuple[Task, Tensor, Tensor]]:
    random = torch.Generator().manual_seed(0)
    masks = torch.randint(0, 5, (6, 20, 20), generator=random, dtype=torch.uint8)
    masks[masks == 4] = 255
    return {
        "classes": (
            Classification(5),
            torch.randn(40, 7, generator=random),
            torch.randint(0, 5, (40,), generator=random),
        ),
        "masks": (Segmentation(4, 255), torch.randn(6, 4, 20, 20, generator=random), masks),
    }


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["classes", "masks"])
def test_a_task_measures_on_a_gpu_without_waiting_for_it(name):
    task, output, target = cases()[name]
    expected = task.measure(output, target)
    output, target = output.to("cuda"), target.to("cuda")
    task.measure(output, target)  # puts constants on the device
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = task.measure(output, target)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.allclose(found.cpu().double(), expected.double(), rtol=1e-4)
