"""Segmentation: the loss of examples and the counts of pixels, void in neither."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ninefold.errors import ConfigError, DataError
from ninefold.task.segmentation import Segmentation

CLASSES, VOID = 5, 11


def batch(count: int = 7, side: int = 6) -> tuple[Tensor, Tensor]:
    """Logits and masks with unlike numbers of valid pixels; the last example is void."""
    torch.manual_seed(0)
    output, target = torch.randn(count, CLASSES, side, side), torch.randint(0, CLASSES, (count, 36))
    for row in range(count):
        target[row, : 5 * row] = VOID
    target[-1] = VOID
    return output, target.view(count, side, side).to(torch.uint8)


def test_the_loss_is_the_mean_over_valid_pixels_and_then_over_examples():
    output, target = batch()
    each = [
        F.cross_entropy(one[None], mask[None].long(), ignore_index=VOID)
        for one, mask in zip(output[:-1], target[:-1], strict=True)
    ]
    expected = torch.stack([*each, torch.zeros(())]).mean()
    assert torch.allclose(Segmentation(CLASSES, VOID).loss(output, target), expected)


def test_an_example_of_void_alone_has_no_loss_and_no_gradient():
    output, target = batch()
    output.requires_grad_()
    loss = Segmentation(CLASSES, VOID).loss(output[-1:], target[-1:])
    loss.backward()
    assert loss.item() == 0
    assert not output.grad.any()


def test_the_mean_iou_is_that_of_torchmetrics():
    from torchmetrics.classification import MulticlassJaccardIndex  # it takes long to import

    output, target = batch()
    task = Segmentation(CLASSES, VOID)
    scores = task.scores(task.measure(output, target), [])
    theirs = MulticlassJaccardIndex(CLASSES, ignore_index=VOID, average="none")(
        output, target.long()
    ).double()
    assert scores.score == pytest.approx(theirs.mean().item(), abs=1e-7)  # theirs is float32
    assert list(scores.each.values()) == pytest.approx(theirs.tolist(), abs=1e-7)


def test_a_class_counts_though_its_mask_has_no_void_and_a_small_dtype():
    classes = 157  # 156 is what -100, torch's own number for void, is in uint8
    target = torch.full((1, 2, 2), 156, dtype=torch.uint8)
    output = F.one_hot(target.long(), classes).movedim(-1, 1).float()
    task = Segmentation(classes, None)
    assert task.scores(task.measure(output, target), []).score == 1


def test_classes_that_occur_nowhere_are_left_out_of_the_mean():
    counts = torch.tensor([[6, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    scores = Segmentation(3).scores(counts, ["road", "car", "sky"])
    assert scores.each == {"road": 0.75, "car": 0.0, "sky": None}
    assert scores.score == (0.75 + 0) / 2  # a class that is predicted only counts
    assert scores.figures == {"pixel accuracy": 0.75, "mean Dice": pytest.approx(6 / 7 / 2 * 1.0)}


def test_void_counts_nowhere_though_it_is_one_of_the_classes_and_predicted():
    counts = torch.tensor([[0, 0, 0], [1, 3, 0], [0, 0, 4]])
    scores = Segmentation(3, ignore=0).scores(counts, ["void", "road", "car"])
    assert scores.each == {"void": None, "road": 0.75, "car": 1.0}
    assert scores.score == (0.75 + 1) / 2


def test_a_set_of_void_alone_is_refused():
    with pytest.raises(DataError, match="no example of the set has a class in any pixel"):
        Segmentation(2, VOID).scores(torch.zeros(2, 3, dtype=torch.int64), [])


def test_logits_are_resized_to_the_mask():
    output, target = batch()
    small = F.avg_pool2d(output, 2)
    large = F.interpolate(small, (6, 6), mode="bilinear", align_corners=False)
    task = Segmentation(CLASSES, VOID)
    assert torch.equal(task.loss(small, target), task.loss(large, target))
    assert torch.equal(task.measure(small, target), task.measure(large, target))


def test_volumes_and_masks_of_16_bits_are_measured_too():
    torch.manual_seed(0)
    output, target = torch.randn(2, 3, 2, 2, 2), torch.randint(0, 3, (2, 4, 4, 4)).short()
    task = Segmentation(3)
    assert task.measure(output, target).sum() == 128
    assert task.loss(output, target) > 0


def each_class(logits: Tensor, target: Tensor) -> Tensor:
    truth = F.one_hot(target.where(target != VOID, 0), CLASSES).movedim(-1, 1).float()
    return F.binary_cross_entropy_with_logits(logits, truth, reduction="none")


def test_a_loss_of_the_users_choice_may_return_a_number_for_each_class_of_each_pixel():
    output, target = batch()
    values, valid = each_class(output, target.long()), target != VOID
    each = [
        one[:, counts].mean() if counts.any() else torch.zeros(())
        for one, counts in zip(values, valid, strict=True)
    ]
    loss = Segmentation(CLASSES, VOID, each_class).loss(output, target)
    assert loss.item() == pytest.approx(torch.stack(each).mean().item())


def test_torchs_cross_entropy_as_task_loss_is_the_tasks_own():
    """Whatever its reduction; void is ignored without being told twice."""
    output, target = batch()
    given = nn.CrossEntropyLoss()
    loss = Segmentation(CLASSES, VOID, given).loss(output, target)
    assert torch.equal(loss, Segmentation(CLASSES, VOID).loss(output, target))
    assert (given.ignore_index, given.reduction) == (-100, "mean")  # a copy was changed


@pytest.mark.parametrize(("output", "target"), [((2, 5), (2, 4, 4)), ((2, 5, 4, 4), (2,))])
def test_what_is_no_segmentation_is_refused_in_one_line(output, target):
    task = Segmentation(5)
    with pytest.raises(ConfigError, match=r"task=segmentation: the model's output is \[2, 5"):
        task.loss(torch.zeros(output), torch.zeros(target, dtype=torch.int64))
