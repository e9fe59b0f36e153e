"""Datasets: the bytes are those of the source, and what is not whole is refused."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import load_digits

from ninefold.dataset import Dataset, Examples, checked
from ninefold.dataset.cifar10 import BINARY, CIFAR10, PYTHON
from ninefold.dataset.digits import Digits
from ninefold.dataset.synthetic import Synthetic
from ninefold.errors import DataError

COUNT = 10_000  # in each file of CIFAR-10
NAMES = ["test_batch", *(f"data_batch_{k}" for k in range(1, 6))]
CONTENTS = [0, 1, 0, 1, 1, 0]  # which of two contents each file has: an order that is not its own

# Digits


def test_the_digits_are_scikit_learns() -> None:
    theirs = load_digits()
    train, test = Digits().load("train"), Digits().load("test")
    rows = np.arange(1797)
    for examples, own in ((train, rows % 5 != 0), (test, rows % 5 == 0)):
        expected = np.round(theirs.images[own] * 255 / 16)
        assert np.array_equal(examples.images[:, 0], expected)
        assert np.array_equal(examples.labels, theirs.target[own])


def test_the_digits_are_1437_for_training_and_360_for_testing() -> None:
    train, test = Digits().load("train"), Digits().load("test")
    assert (train.images.shape, train.images.dtype) == ((1437, 1, 8, 8), np.uint8)
    assert (test.images.shape, test.labels.dtype) == ((360, 1, 8, 8), np.int64)
    assert train.images.max() == 255


def test_the_digits_are_there_once_scikit_learn_is() -> None:
    Digits().prepare()


# Synthetic


def test_synthetic_examples_are_the_same_in_every_run() -> None:
    for split in ("train", "test"):
        first, second = Synthetic().load(split), Synthetic().load(split)  # type: ignore[arg-type]
        assert np.array_equal(first.images, second.images)
        assert np.array_equal(first.labels, second.labels)


def test_synthetic_examples_have_the_shape_classes_and_counts_asked_for() -> None:
    dataset = Synthetic(train_count=50, test_count=20, classes=3, shape=[1, 5, 7])
    train, test = dataset.load("train"), dataset.load("test")
    assert (train.images.shape, train.images.dtype) == ((50, 1, 5, 7), np.uint8)
    assert (test.images.shape, test.labels.dtype) == ((20, 1, 5, 7), np.int64)
    assert set(train.labels) == {0, 1, 2}
    assert not np.array_equal(train.images[:20], test.images)


# What all of them promise


def test_a_limit_cuts_the_training_examples_only() -> None:
    for dataset, test_count in ((Digits(limit=7), 360), (Synthetic(limit=7), 512)):
        whole: Dataset = type(dataset)()
        assert np.array_equal(dataset.load("train").images, whole.load("train").images[:7])
        assert np.array_equal(dataset.load("train").labels, whole.load("train").labels[:7])
        assert len(dataset.load("test")) == test_count


def test_a_limit_above_the_set_is_all_of_it() -> None:
    assert len(Digits(limit=10**6).load("train")) == 1437


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Digits(classes=9), "dataset.classes=9: .* labels from 0 to 9; .* set dataset.classes=10"),
        (Digits(shape=[3, 8, 8]), r"dataset.shape=\[3, 8, 8\]: .* found \[1, 8, 8\]"),
    ],
)
def test_a_set_that_is_not_as_configured_is_refused(dataset: Digits, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        dataset.load("test")
    assert caught.value.code == 4


def test_a_negative_label_is_refused() -> None:
    examples = Examples(np.zeros((2, 1, 8, 8), np.uint8), np.array([-1, 3]))
    with pytest.raises(DataError, match="labels from -1 to 3"):
        checked("digits", Digits(), examples)


# CIFAR-10, from folders in the official formats


def records(content: int) -> npt.NDArray[np.uint8]:
    """uint8 [10000, 3073], a label and then the planes; a constant image costs little to draw."""
    made = np.empty((COUNT, 3073), np.uint8)
    made[:] = np.random.default_rng(content).integers(0, 256, 3073, dtype=np.uint8)
    numbers = np.arange(COUNT)
    made[:, 0] = (numbers + content) % 10
    made[:, 1], made[:, 1025] = numbers % 256, numbers // 256  # each image has its own number
    return made


def python2_pickle(batch: npt.NDArray[np.uint8]) -> bytes:
    """What cPickle of Python 2, which wrote the official files, makes of a batch."""
    labels = b"".join(b"K" + bytes([label]) for label in batch[:, 0].tolist())
    pixels = np.ascontiguousarray(batch[:, 1:]).tobytes()
    shape = b"M" + COUNT.to_bytes(2, "little") + b"M" + (3072).to_bytes(2, "little") + b"\x86"
    dtype = (
        b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNN"
        + 2 * b"J\xff\xff\xff\xff"
        + b"K\x00tb"
    )
    return b"".join([
        b"\x80\x02}(U\x0bbatch_labelU\x05batchU\x06labels](", labels, b"eU\x04data",
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R",
        b"(K\x01", shape, dtype, b"\x89T", len(pixels).to_bytes(4, "little"), pixels, b"tb",
        b"U\tfilenames](U\x05a.pngeu.",
    ])  # fmt: skip


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with both layouts; 120 MB, removed at the end."""
    root = tmp_path_factory.mktemp("cifar10")
    for folder, ending in ((BINARY, ".bin"), (PYTHON, "")):
        (root / folder).mkdir()
        for content in (0, 1):
            made = records(content)
            data = made.tobytes() if ending else python2_pickle(made)
            (root / folder / f"content{content}").write_bytes(data)
        for name, content in zip(NAMES, CONTENTS, strict=True):
            os.link(root / folder / f"content{content}", root / folder / f"{name}{ending}")
    yield root
    shutil.rmtree(root)


FolderWith = Callable[[str, bytes], str]


@pytest.fixture
def folder_with(tmp_path: Path) -> Iterator[FolderWith]:
    """Makes a CIFAR-10 folder of one file, removed at the end."""
    root = tmp_path / "set"

    def make(name: str, data: bytes) -> str:
        root.mkdir()
        (root / name).write_bytes(data)
        return str(root)

    yield make
    shutil.rmtree(root)


@pytest.mark.parametrize("layout", [BINARY, PYTHON])
def test_cifar10_is_read_in_the_order_of_its_files(cifar10: Path, layout: str) -> None:
    contents = [records(0), records(1)]
    train = CIFAR10(str(cifar10 / layout)).load("train")
    assert (train.images.shape, train.images.dtype) == ((50_000, 3, 32, 32), np.uint8)
    for number, content in enumerate(CONTENTS[1:]):
        part = slice(number * COUNT, (number + 1) * COUNT)
        assert np.array_equal(train.labels[part], contents[content][:, 0])
        assert np.array_equal(train.images[part].reshape(COUNT, -1), contents[content][:, 1:])
    assert train.labels.dtype == np.int64


def test_both_layouts_of_cifar10_give_the_same_test_set(cifar10: Path) -> None:
    binary = CIFAR10(str(cifar10 / BINARY)).load("test")
    python = CIFAR10(str(cifar10 / PYTHON)).load("test")
    assert len(binary) == len(python) == COUNT
    assert np.array_equal(binary.images, python.images)
    assert np.array_equal(binary.labels, python.labels)


def test_cifar10_is_found_in_its_root_and_under_it(cifar10: Path) -> None:
    for root in (cifar10, cifar10 / BINARY, cifar10 / PYTHON):
        CIFAR10(str(root)).prepare()


def test_cifar10s_limit_cuts_the_training_examples_only(cifar10: Path) -> None:
    dataset = CIFAR10(str(cifar10), limit=11)
    assert len(dataset.load("train")) == 11
    assert len(dataset.load("test")) == COUNT


def test_a_missing_folder_is_a_data_error_that_says_where_was_looked(tmp_path: Path) -> None:
    dataset = CIFAR10(str(tmp_path / "nowhere"))
    for ask in (dataset.prepare, lambda: dataset.load("test")):
        with pytest.raises(DataError, match="CIFAR-10 is not there") as caught:
            ask()
        assert caught.value.code == 4
        assert f"looked for {BINARY} and {PYTHON} in {tmp_path / 'nowhere'};" in str(caught.value)


def test_a_missing_training_file_is_a_data_error_that_names_it(folder_with: FolderWith) -> None:
    root = folder_with("test_batch.bin", b"")
    with pytest.raises(DataError, match=r"data_batch_1 cannot be read .*No such file"):
        CIFAR10(root).load("train")


@pytest.mark.parametrize(
    ("lost", "message"), [(3073, "is not whole; 9999 records found"), (1, "cannot be read")]
)
def test_a_truncated_binary_file_is_a_data_error(
    folder_with: FolderWith, lost: int, message: str
) -> None:
    root = folder_with("test_batch.bin", bytes(3073 * COUNT - lost))
    with pytest.raises(DataError, match=rf"test_batch\.bin {message}.*; fetch the set again"):
        CIFAR10(root).load("test")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99999])
def test_a_truncated_python_file_is_a_data_error(
    cifar10: Path, folder_with: FolderWith, share: float
) -> None:
    data = (cifar10 / PYTHON / "test_batch").read_bytes()
    root = folder_with("test_batch", data[: int(len(data) * share)])
    with pytest.raises(DataError, match="test_batch cannot be read"):
        CIFAR10(root).load("test")


@pytest.mark.parametrize("label", [10, 255])
def test_a_label_out_of_range_is_a_data_error(folder_with: FolderWith, label: int) -> None:
    made = records(0)
    made[77, 0] = label
    root = folder_with("test_batch.bin", made.tobytes())
    with pytest.raises(DataError, match=f"CIFAR-10 has labels from 0 to {label}; labels below 10"):
        CIFAR10(root).load("test")


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.canary), "w"))


def test_a_hostile_pickle_is_a_data_error_and_not_run(
    tmp_path: Path, folder_with: FolderWith
) -> None:
    canary = tmp_path / "canary"
    data = pickle.dumps({b"data": Hostile(canary), b"labels": []}, protocol=2)
    root = folder_with("test_batch", data)
    with pytest.raises(DataError, match=r"cannot be read \(it asks for (_?io|__builtin__)\.open\)"):
        CIFAR10(root).load("test")
    assert not canary.exists()


PIXELS = np.zeros((2, 3072), np.uint8)


def repr_of_labels(batch: Any) -> str:
    return f"labels {batch.get(b'labels')}" if isinstance(batch, dict) else repr(batch)


@pytest.mark.parametrize(
    "batch",
    [
        {b"data": PIXELS},
        {b"data": PIXELS, b"labels": [1, 2]},
        {b"data": PIXELS, b"labels": [1]},
        {b"data": PIXELS, b"labels": [1, 300]},
        {b"data": PIXELS, b"labels": [1, -1]},
        {b"data": PIXELS, b"labels": [1, None]},
        {b"data": None, b"labels": [1, 2]},
        [1, 2],
        None,
    ],
    ids=repr_of_labels,
)
def test_a_pickle_of_something_else_is_a_data_error(folder_with: FolderWith, batch: Any) -> None:
    root = folder_with("test_batch", pickle.dumps(batch, protocol=2))
    with pytest.raises(DataError, match=r"test_batch (cannot be read|is not whole)"):
        CIFAR10(root).load("test")
