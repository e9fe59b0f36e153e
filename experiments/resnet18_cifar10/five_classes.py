"""Write the images of CIFAR-10's first five classes as a folder: what a network is pretrained on.

    python experiments/resnet18_cifar10/five_classes.py CIFAR10 FOLDER

CIFAR10 is what dataset.root is for dataset=cifar10. FOLDER/train has 5,000 and FOLDER/test 1,000
PNG files of 32x32 pixels in a folder for each of airplane, automobile, bird, cat and deer.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from ninefold.dataset.cifar10 import CIFAR10

CLASSES = ("airplane", "automobile", "bird", "cat", "deer")  # the labels 0 to 4


def main() -> None:
    description, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("cifar10", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    images = CIFAR10(root=str(arguments.cifar10))
    for split in ("train", "test"):
        examples = images.load(split)  # uint8 [N, 3, 32, 32] and int64 [N]
        for label, name in enumerate(CLASSES):
            folder = arguments.folder / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for place in np.flatnonzero(examples.targets == label):
                image = Image.fromarray(examples.inputs[place].transpose(1, 2, 0))
                image.save(folder / f"{place:05d}.png")


if __name__ == "__main__":
    main()
