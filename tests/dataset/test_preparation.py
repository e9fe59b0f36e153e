"""Preparation of batches: what is converted in pieces is what would be converted at once."""

from __future__ import annotations

import pytest
import torch

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
