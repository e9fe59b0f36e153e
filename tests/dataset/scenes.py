"""A small segmentation set as files: colored boxes on a background, and masks of them."""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES, VOID = 3, 11
CAMVID = ("{}", "{}annot")
COUNTS = {"train": 24, "val": 6, "test": 10}
COLORS = np.array([[40, 60, 80], [200, 40, 40], [40, 200, 60]], np.uint8)


def write(
    root: Path,
    layout: tuple[str, str] = CAMVID,
    counts: dict[str, int] = COUNTS,
    width: int = 32,
    height: int = 24,
    ending: str = ".png",
    suffix: str = "",
) -> Path:
    """Write images (with `ending`) and masks (PNG) of `counts` of each split; returns `root`."""
    for number, (split, count) in enumerate(counts.items()):
        images, masks = (root / part.format(split) for part in layout)
        images.mkdir(parents=True, exist_ok=True)
        masks.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(number)
        for row in range(count):
            image, mask = scene(random, width, height)
            Image.fromarray(image).save(images / f"scene_{row:03}{ending}")
            Image.fromarray(mask).save(masks / f"scene_{row:03}{suffix}.png")
    return root


def scene(random: np.random.Generator, width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    """An image uint8 [h, w, 3] and its mask uint8 [h, w], with unlike numbers of void pixels."""
    mask = np.zeros((height, width), np.uint8)
    for number in (1, 2):
        top, left = random.integers(0, height // 2), random.integers(0, width // 2)
        mask[top : top + height // 3, left : left + width // 3] = number
    noise = random.integers(0, 40, (height, width, 3), dtype=np.uint8)
    image = COLORS[mask] + noise
    mask[: random.integers(0, height // 3)] = VOID
    return image, mask
