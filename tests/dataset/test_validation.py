"""The validation split: drawn by the seed, what is selected on, and apart from the test set."""

from dataclasses import replace

import numpy as np
import pytest

from ninefold.dataset import Examples, Split, train_and_val
from ninefold.dataset.digits import Digits
from ninefold.dataset.folder import Folder
from ninefold.dataset.synthetic import Synthetic
from ninefold.errors import DataError
from tests.dataset.kit import photos


def numbered(count: int, share: float) -> Synthetic:
    class Numbered(Synthetic):
        def load(self, split: Split) -> Examples:
            return Examples(np.zeros((count, 1, 1, 1), np.uint8), np.arange(count))

    return Numbered(val=share)


def numbers(examples: Examples) -> list[int]:
    return [int(n) for n in examples.targets[np.arange(len(examples))]]


def test_the_validation_split_is_a_share_of_the_training_examples_drawn_by_the_seed():
    splits = [train_and_val(numbered(50, 0.2), seed) for seed in (0, 0, 1)]
    rows = []
    for train, val in splits:
        assert val is not None
        assert (len(train), len(val)) == (40, 10)
        assert sorted(numbers(train) + numbers(val)) == list(range(50))
        rows.append(numbers(val))
    assert rows[0] == rows[1] != rows[2]
    assert rows[0] != list(range(10))


def test_at_least_one_example_is_for_validation_and_one_for_training():
    train, val = train_and_val(numbered(50, 0.001), 0)
    assert val is not None
    assert (len(train), len(val)) == (49, 1)
    assert train_and_val(numbered(50, 0), 0)[1] is None
    with pytest.raises(DataError, match=r"dataset.val=0.9: no training examples are left; 3 ex"):
        train_and_val(numbered(3, 0.9), 0)


def test_images_and_targets_of_a_split_belong_together():
    whole = Digits().load("train")
    images = np.asarray(whole.inputs[np.arange(len(whole))])
    for part in train_and_val(Digits(val=0.3), 4):
        rows = np.arange(len(part))
        for image, label in zip(part.inputs[rows], part.targets[rows], strict=True):
            found = np.flatnonzero((images == image).all(axis=(1, 2, 3)))
            assert label in whole.targets[found]
        assert np.array_equal(part.inputs[3:7][np.array([1])], part.inputs[np.array([4])])


@pytest.mark.parametrize("names", [("train", "val", "test"), ("train", "val")])
def test_a_folder_val_is_the_validation_split_beside_test_and_else_the_test_split(tmp_path, names):
    photos(tmp_path, dict(zip(names, (3, 2, 1), strict=False)), (4, 4))
    dataset = Folder(str(tmp_path), classes=2, shape=[1, 4, 4])
    dataset.prepare()
    _, val = train_and_val(dataset, 0)
    assert val is None or len(val) == 4
    assert (val is None) == ("test" not in names)
    assert len(dataset.load("test")) == (4 if val is None else 2)
    if val is not None:
        with pytest.raises(DataError, match=r"dataset.val=0.5: the dataset has a validation split"):
            train_and_val(replace(dataset, val=0.5), 0)
