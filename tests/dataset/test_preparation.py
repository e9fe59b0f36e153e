"""Preparation of batches: what is converted in pieces is what would be converted at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ninefold.dataset import preparation
from ninefold.dataset.preparation import ImagePreparation


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("mean", [None, (0.4, 0.5, 0.6)])
def test_images_converted_in_pieces_are_bitwise_those_converted_at_once(
    mean: tuple[float, ...] | None,
    memory_format: torch.memory_format,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
def test_one_kernel_scales_images_as_several_do_up_to_their_last_bit(
    mean: tuple[float, ...] | None, memory_format: torch.memory_format, channels: int, given: int
) -> None:
    levels = torch.arange(256, dtype=torch.uint8).view(4, 1, 8, 8).repeat(1, given, 1, 1)
    prepare = ImagePreparation(channels, None, mean, mean, memory_format=memory_format)
    expected = prepare.scaled(levels)
    for images in (levels, levels.to(torch.float32)):
        found = prepare._in_one_kernel(images.expand(-1, channels, -1, -1))
        assert found.dtype == torch.float32
        assert found.stride() == expected.stride()
        assert (found - expected).abs().max() <= (0 if mean is None else 2**-22)


@pytest.mark.parametrize(("height", "width", "size"), [(8, 8, 227), (32, 32, 227), (32, 20, 32),
                                                       (32, 32, 64), (224, 224, 227)])  # fmt: skip
def test_antialiasing_moves_a_pixel_in_ten_thousand_by_a_gray_level_where_images_are_enlarged(
    height: int, width: int, size: int
) -> None:
    random = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 256, (8, 3, height, width), generator=random).to(torch.float32)
    plain, smooth = (
        F.interpolate(
            levels, size, mode="bilinear", align_corners=False, antialias=antialias
        ).round()
        for antialias in (False, True)
    )
    different = plain != smooth
    assert different.float().mean() < 1e-4  # those between two levels, in the last bits
    assert (plain - smooth).abs().max() <= 1
