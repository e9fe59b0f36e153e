"""Batches: what a process trains on is a function of seed, epoch and example alone."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from omegaconf import OmegaConf
from PIL import Image
from torch import Tensor
from torchvision.transforms import Compose, Resize, ToTensor

from ninefold.dataset import Examples, preparation
from ninefold.dataset.loader import HostSource
from ninefold.dataset.preparation import ImagePreparation, random_bits
from ninefold.engine.batches import Batches, epoch_order, evaluation_batch, shard
from ninefold.engine.parallel import RankContext
from ninefold.errors import DataError
from ninefold.train.build import image_values
from tests.dataset.kit import ALONE, CPU, labeled, ranks
from tests.dataset.kit import epoch as epoch_of
from tests.kit import same


def numbered(count: int, channels: int = 1, side: int = 8) -> Examples:
    """`count` random images, each labeled with its own number."""
    return labeled(count, channels, side, side, classes=None)


def epoch(
    examples: Examples, context: RankContext = ALONE, epoch: int = 0, **options: Any
) -> list[tuple[Any, Any]]:
    """The batches of an epoch, of 8 examples each, seed 5."""
    prepare = ImagePreparation(channels=examples.inputs.shape[1], **options)
    return epoch_of(HostSource(examples), prepare, context, epoch)


def evaluated(count: int, size: int, context: RankContext) -> list[Any]:
    """Batches of an evaluation, by what moves the examples of a training."""
    prepare = ImagePreparation(1, flip=True, crop=2)
    return list(shard(HostSource(numbered(count)), size, prepare, context))


def test_no_two_seeds_or_epochs_share_an_order():
    orders = {tuple(epoch_order(seed, number, 50)) for seed in range(6) for number in range(6)}
    assert len(orders) == 36  # seed + epoch, for one, would give 11


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_same_global_batches_are_trained_on_for_any_number_of_processes(world_size):
    examples = numbered(43, channels=3)
    augment = {"flip": True, "crop": 2}
    alone = epoch(examples, epoch=3, **augment)
    for context in ranks(world_size):
        mine = slice(context.rank, None, world_size)
        expected = [(inputs[mine], targets[mine]) for inputs, targets in alone]
        assert same(epoch(examples, context, epoch=3, **augment), expected)


def test_the_examples_that_fill_no_batch_wait_for_another_order():
    batches = epoch(numbered(43))
    seen = torch.cat([targets for _, targets in batches])
    assert [len(targets) for _, targets in batches] == [8] * 5
    assert len(seen.unique()) == 40


def test_a_batch_reports_its_phases_in_order():
    said: list[str] = []
    batches = Batches(HostSource(numbered(16)), 8, 0, ImagePreparation(1), ALONE)
    for _ in batches.epoch(0, 0, lambda: said.append("begin"), said.append):
        said.append("step")
    assert said == ["begin", "data", "transfer", "data", "step"] * 2


def test_a_set_smaller_than_a_batch_is_refused():
    with pytest.raises(DataError, match=r"batch_size=8: .*; examples found: 7;"):
        Batches(HostSource(numbered(7)), 8, 0, ImagePreparation(1), ALONE)
    assert Batches(HostSource(numbered(8)), 8, 0, ImagePreparation(1), ALONE).steps_per_epoch == 1


def test_no_two_seeds_epochs_or_examples_share_their_draws():
    cases = itertools.product(range(5), range(5))
    bits = np.concatenate([random_bits(seed, number, np.arange(200)) for seed, number in cases])
    assert len(np.unique(bits)) == 5 * 5 * 200


def test_every_bit_of_the_draws_is_set_for_half_of_the_examples():
    bits = random_bits(0, 0, np.arange(4096))
    shares = [(bits >> np.uint64(context) & np.uint64(1)).mean() for context in range(64)]
    assert np.allclose(shares, 0.5, atol=0.05)  # 6 standard deviations


def augmented(image: npt.NDArray[np.uint8], bits: int, flip: bool, crop: int) -> npt.NDArray:
    """One image [c, h, w] mirrored and cropped pixel by pixel, as `bits` say."""
    channels, height, width = image.shape
    top = (bits >> 8) % (2 * crop + 1) - crop
    left = (bits >> 32) % (2 * crop + 1) - crop
    result = np.zeros_like(image)
    for channel, row, column in np.ndindex(channels, height, width):
        y, x = row + top, column + left
        if 0 <= y < height and 0 <= x < width:
            source = width - 1 - x if flip and bits & 1 else x
            result[channel, row, column] = image[channel, y, source]
    return result


def augment(prepare: ImagePreparation, images: Tensor, rows: npt.NDArray[np.int64]) -> Tensor:
    """As the first epoch of seed 0 has the examples of these numbers."""
    (corners,) = prepare.draws(0, 0, rows[None], images.shape, CPU)
    return prepare.augmented(images, corners)


@pytest.mark.parametrize(("flip", "crop"), [(False, 0), (True, 0), (False, 2), (True, 2)], ids=str)
def test_augmentation_equals_a_loop_over_pixels(flip, crop):
    images = np.random.default_rng(1).integers(1, 256, (40, 3, 6, 9), dtype=np.uint8)
    bits = random_bits(0, 0, np.arange(40))
    prepare = ImagePreparation(3, flip=flip, crop=crop)
    result = augment(prepare, torch.from_numpy(images), np.arange(40))
    expected = [augmented(image, int(b), flip, crop) for image, b in zip(images, bits, strict=True)]
    assert result.dtype == torch.uint8
    assert np.array_equal(result.numpy(), np.stack(expected))


def test_an_example_is_augmented_anew_in_each_epoch():
    examples = Examples(numbered(1).inputs.repeat(16, 0), np.arange(16))
    looks = {
        tuple(inputs[targets == 3].flatten().tolist())
        for number in range(8)
        for inputs, targets in epoch(examples, epoch=number, crop=3)
        if (targets == 3).any()
    }
    assert len(looks) > 4


@pytest.mark.parametrize("channels", [1, 3])
def test_without_resizing_pixels_are_scaled_exactly_as_by_to_tensor(channels):
    pixels = np.arange(256, dtype=np.uint8).repeat(channels).reshape(16, 16, channels)
    ours = ImagePreparation(channels).scaled(torch.from_numpy(pixels).permute(2, 0, 1)[None])
    assert torch.equal(ours[0], ToTensor()(pixels))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("side", "size"), [(8, 227), (32, 227), (227, 227), (227, 32), (33, 32)])
def test_a_resized_pixel_is_pils_bilinear_one_within_a_gray_level(side, size, memory_format):
    pixels = np.random.default_rng(2).integers(0, 256, (side, side, 3), dtype=np.uint8)
    prepare = ImagePreparation(3, size=size, memory_format=memory_format)
    ours = prepare.scaled(torch.from_numpy(pixels).permute(2, 0, 1)[None])
    theirs = Compose([Resize((size, size)), ToTensor()])(Image.fromarray(pixels))
    assert ours.shape == (1, 3, size, size)
    assert (ours[0] - theirs).abs().max() * 255 < 1.01
    assert (ours[0] - theirs).abs().mean() * 255 < 0.05  # nearly all of them are the same


def test_a_prepared_example_is_the_same_in_any_batch():
    images = torch.from_numpy(numbered(20, channels=3).inputs)
    prepare = ImagePreparation(3, 31, [0.4, 0.5, 0.6], [0.2, 0.3, 0.4])
    together = prepare.scaled(images)
    for rows in ([5], [19, 5, 0], [*range(19, 2, -1)]):
        assert torch.equal(prepare.scaled(images[rows]), together[rows])


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_pixels_are_normalized_per_channel(memory_format):
    images = torch.from_numpy(numbered(4, channels=3).inputs)
    mean, std = [0.1, 0.2, 0.3], [0.2, 0.5, 2.0]
    ours = ImagePreparation(3, mean=mean, std=std, memory_format=memory_format).scaled(images)
    for channel in range(3):
        expected = (images[:, channel].double() / 255 - mean[channel]) / std[channel]
        assert torch.allclose(ours[:, channel].double(), expected, atol=1e-6)


def test_a_gray_image_is_repeated_to_the_channels_of_the_model():
    gray = torch.from_numpy(numbered(4).inputs)
    ours = ImagePreparation(3, size=12, mean=[0.3], std=[0.4]).scaled(gray)
    assert ours.shape == (4, 3, 12, 12)
    for channel in range(3):
        assert torch.equal(
            ours[:, channel : channel + 1], ImagePreparation(1, 12, [0.3], [0.4]).scaled(gray)
        )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_memory_format_asked_for_is_delivered(memory_format, channels):
    images = torch.from_numpy(numbered(4, channels).inputs)
    plain = ImagePreparation(3).scaled(images)
    ours = ImagePreparation(3, memory_format=memory_format).scaled(images)
    assert ours.is_contiguous(memory_format=memory_format)
    assert ours.dtype == torch.float32
    assert torch.equal(ours, plain)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("count", [1, 2, 5, 10, 33])
def test_the_shards_of_all_processes_hold_each_example_once_as_it_is(count, world_size):
    examples, seen = numbered(count), []
    for context in ranks(world_size):
        for inputs, targets in evaluated(count, 4, context):
            assert torch.equal(inputs, torch.from_numpy(examples.inputs[targets.numpy()]) / 255)
            seen += targets.tolist()
    assert sorted(seen) == list(range(count))


def test_the_batch_size_of_an_evaluation_is_global():
    assert [len(targets) for _, targets in evaluated(20, 8, ranks(2)[1])] == [4, 4, 2]


@pytest.mark.parametrize(
    ("shape", "on_gpu", "on_cpu"),
    [
        ([1, 28, 28], 2048, 4),
        ([3, 224, 224], 54, 4),
        ([[1, 28, 28], [1, 28, 28]], 2048, 4),
        ([[1, 28, 28]], 2048, 4),
        ([1024], 4, 4),  # tokens, of which a network makes a vocabulary each
        ({"image": [1, 28, 28], "text": [77]}, 4, 4),
    ],
    ids=str,
)
def test_a_gpu_evaluates_larger_batches_than_it_trains_on_of_images_alone(shape, on_gpu, on_cpu):
    values = image_values(OmegaConf.create({"model": {}}), shape)
    for device, size in (("cuda", on_gpu), ("cpu", on_cpu)):
        context = RankContext(0, 2, torch.device(device))
        assert evaluation_batch(8, accumulate=2, values=values, context=context) == size
    refers = {"input_channels": shape[0]} if isinstance(shape, list) else {}  # as conf/model does
    assert image_values(OmegaConf.create({"model": refers}), shape) == values


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("mean", [None, (0.4, 0.5, 0.6)])
def test_images_converted_in_pieces_are_bitwise_those_of_one(mean, memory_format, monkeypatch):
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (7, 3, 9, 11), dtype=torch.uint8, generator=random)
    prepare = ImagePreparation(3, None, mean, mean, memory_format=memory_format)
    whole = prepare.scaled(images)
    for values in (1, 3 * 9 * 11, 2 * 3 * 9 * 11):  # less than an image, one, two
        monkeypatch.setattr(preparation, "PIECE", values)
        pieces = prepare.scaled(images)
        assert torch.equal(pieces, whole)
        assert pieces.stride() == whole.stride()


@pytest.mark.parametrize(("channels", "given"), [(3, 3), (3, 1)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("mean", [None, (0.4, 0.5, 0.6)])
def test_one_kernel_scales_images_as_several_up_to_a_bit(mean, memory_format, channels, given):
    levels = torch.arange(256, dtype=torch.uint8).view(4, 1, 8, 8).repeat(1, given, 1, 1)
    prepare = ImagePreparation(channels, None, mean, mean, memory_format=memory_format)
    expected = prepare.scaled(levels)
    for images in (levels, levels.to(torch.float32)):
        found = prepare._in_one_kernel(images.expand(-1, channels, -1, -1))
        assert found.dtype == torch.float32
        assert found.stride() == expected.stride()
        assert (found - expected).abs().max() <= (0 if mean is None else 2**-22)
