"""Datasets: the bytes are those of the source, and what is not whole is refused."""

import os
import pickle
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from ninefold.config.data import prepare
from ninefold.dataset import Dataset, Examples, checked
from ninefold.dataset.cifar10 import BINARY, CIFAR10, PYTHON
from ninefold.dataset.digits import Digits
from ninefold.dataset.folder import Folder
from ninefold.dataset.images import ENDINGS
from ninefold.dataset.synthetic import Synthetic
from ninefold.errors import ConfigError, DataError
from tests.faults.refusals import refuses

COUNT = 10_000  # in each file of CIFAR-10
NAMES = ["test_batch", *(f"data_batch_{k}" for k in range(1, 6))]
CONTENTS = [0, 1, 0, 1, 1, 0]  # which of two contents each file has: an order that is not its own

# A class of the user's own


class Own:
    """Has what a dataset needs, and does not extend Dataset."""

    def load(self, split: str) -> Examples:
        return Examples(np.zeros((8, 1, 2, 2), np.uint8), np.arange(8) % 2)


def test_a_class_that_does_not_extend_dataset_is_refused():
    wrong = r"dataset._target_=\S+\.Own: it is no Dataset; a class that extends ninefold.dataset.D"
    with pytest.raises(ConfigError, match=wrong):
        prepare({"_target_": f"{__name__}.Own"}, "own")


# Digits, synthetic


def test_the_digits_are_scikit_learns_every_fifth_for_testing():
    from sklearn.datasets import load_digits  # it takes long to import

    theirs = load_digits()
    train, test = Digits().load("train"), Digits().load("test")
    rows = np.arange(1797)
    for examples, own in ((train, rows % 5 != 0), (test, rows % 5 == 0)):
        expected = np.round(theirs.images[own] * 255 / 16)
        assert examples.inputs.dtype == np.uint8
        assert np.array_equal(examples.inputs[:, 0], expected)
        assert np.array_equal(examples.targets, theirs.target[own])


def test_synthetic_examples_are_what_was_asked_for_and_always_the_same():
    dataset = Synthetic(train_count=50, test_count=20, classes=3, shape=[1, 5, 7])
    train, test = dataset.load("train"), dataset.load("test")
    assert (train.inputs.shape, train.inputs.dtype) == ((50, 1, 5, 7), np.uint8)
    assert (test.inputs.shape, test.targets.dtype) == ((20, 1, 5, 7), np.int64)
    assert set(train.targets) == {0, 1, 2}
    assert not np.array_equal(train.inputs[:20], test.inputs)
    assert np.array_equal(dataset.load("train").inputs, train.inputs)
    assert np.array_equal(dataset.load("train").targets, train.targets)


# What all of them promise


def test_a_limit_cuts_the_training_examples_only():
    for dataset, test_count in ((Digits(limit=7), 360), (Synthetic(limit=7), 512)):
        whole: Dataset = type(dataset)()
        assert np.array_equal(dataset.load("train").inputs, whole.load("train").inputs[:7])
        assert np.array_equal(dataset.load("train").targets, whole.load("train").targets[:7])
        assert len(dataset.load("test")) == test_count
    assert len(Digits(limit=10**6).load("train")) == 1437


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Digits(classes=9), "dataset.classes=9: .* labels from 0 to 9; .* set dataset.classes=10"),
        (Digits(classes=0), "dataset.classes=0: .* set dataset.classes=10"),
        (Digits(shape=[3, 8, 8]), r"dataset.shape=\[3, 8, 8\]: .* found \[1, 8, 8\]"),
    ],
)
def test_a_set_that_is_not_as_configured_is_refused(dataset, message):
    with pytest.raises(DataError, match=message) as caught:
        dataset.load("test")
    assert caught.value.code == 4


def test_hidden_labels_are_no_classes():
    images = Digits().load("test").first(2).inputs
    with pytest.raises(DataError, match=r"labels from -1 to -1; labels begin with 0; choose ano"):
        checked("the split test", Digits(classes=None), Examples(images, np.array([-1, -1])))


# CIFAR-10, from folders in the official formats


def records(content: int) -> npt.NDArray[np.uint8]:
    """uint8 [10000, 3073], a label and then the planes; a constant image costs little to draw."""
    made = np.empty((COUNT, 3073), np.uint8)
    made[:] = np.random.default_rng(content).integers(0, 256, 3073, dtype=np.uint8)
    numbers = np.arange(COUNT)
    made[:, 0] = (numbers + content) % 10
    made[:, 1], made[:, 1025] = numbers % 256, numbers // 256  # each image has its own number
    return made


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with both layouts; 120 MB, removed at the end."""
    root = tmp_path_factory.mktemp("cifar10")
    for folder, ending in ((BINARY, ".bin"), (PYTHON, "")):
        (root / folder).mkdir()
        for content in (0, 1):
            made = records(content)
            data = (
                made.tobytes()
                if ending
                else pickle.dumps({b"labels": made[:, 0].tolist(), b"data": made[:, 1:].copy()}, 2)
            )
            (root / folder / f"content{content}").write_bytes(data)
        for name, content in zip(NAMES, CONTENTS, strict=True):
            os.link(root / folder / f"content{content}", root / folder / f"{name}{ending}")
    yield root
    shutil.rmtree(root)


@pytest.mark.parametrize("place", [BINARY, PYTHON, "."])
def test_cifar10_is_read_in_the_order_of_its_files_from_both_layouts_and_the_root(cifar10, place):
    contents = [records(0), records(1)]
    train = CIFAR10(str(cifar10 / place)).load("train")
    assert (train.inputs.shape, train.inputs.dtype) == ((50_000, 3, 32, 32), np.uint8)
    for number, content in enumerate(CONTENTS[1:]):
        part = slice(number * COUNT, (number + 1) * COUNT)
        assert np.array_equal(train.targets[part], contents[content][:, 0])
        assert np.array_equal(train.inputs[part].reshape(COUNT, -1), contents[content][:, 1:])
    assert train.targets.dtype == np.int64


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (3073, "is not whole; 9999 records found"),
        (1, "cannot be read"),
        (0, "has labels .* to 255"),
    ],
)
def test_a_binary_file_that_is_not_whole_or_not_the_set_is_a_data_error(tmp_path, lost, message):
    path, found = tmp_path / "test_batch.bin", CIFAR10(str(tmp_path))
    path.write_bytes(b"\xff" * (3073 * COUNT - lost))
    with pytest.raises(DataError, match=message):
        found.load("test")
    with pytest.raises(DataError, match=r"data_batch_1 cannot be read .*No such file"):
        found.load("train")
    path.unlink()  # 30 MB


PIXELS = np.zeros((2, 3072), np.uint8)
LABELS = ([1, 2], [1], [1, 300], [1, None])
PICKLES = [
    {b"data": PIXELS}, {b"data": None, b"labels": [1, 2]}, None,
    *({b"data": PIXELS, b"labels": found} for found in LABELS),
]  # fmt: skip


def test_a_pickle_that_is_cut_short_or_of_something_else_is_a_data_error(tmp_path):
    whole = pickle.dumps(PICKLES[-1], protocol=2)
    cut = [whole[: int(len(whole) * share)] for share in (0, 0.5, 0.99)]
    for data in (*cut, *(pickle.dumps(batch, protocol=2) for batch in PICKLES)):
        (tmp_path / "test_batch").write_bytes(data)
        with pytest.raises(DataError, match=r"test_batch (cannot be read|is not whole)"):
            CIFAR10(str(tmp_path)).load("test")


# Folders of images


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes of three training and two test images, 16x12, each of one gray level."""
    root = tmp_path / "pictures"
    for split, count in (("train", 3), ("test", 2)):
        for label, name in enumerate(("dog", "Cat")):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                level = 100 * label + 10 * number + (split == "test")
                picture = Image.new("L", (16, 12), level)
                picture.save(root / split / name / f"{2 - number}.png")
    return root


def folder(root: Path, **options: Any) -> Folder:
    return Folder(str(root), **{"classes": 2, "shape": (1, 12, 12), **options})


def added(root: Path, image: Image.Image, ending: str = ".png", **how: Any) -> Path:
    """The path of one more image of dogs."""
    path = root / "train" / "dog" / f"new{ending}"
    image.save(path, **how)
    return path


def decoded(root: Path, file: Path, **options: Any) -> npt.NDArray[np.uint8]:
    """The pixels of one training image, [c, h, w]."""
    files = folder(root, **options).load("train").inputs
    (row,) = (n for n, path in enumerate(files.paths) if Path(path) == file)
    return files[np.array([row])][0]


def test_the_files_of_a_folder_are_in_the_order_of_their_names(pictures):
    folder(pictures).prepare()
    train, test = folder(pictures).load("train"), folder(pictures).load("test")
    assert (train.names, train.targets.tolist()) == (("Cat", "dog"), [0, 0, 0, 1, 1, 1])
    assert train.inputs[np.arange(6)][:, 0, 5, 5].tolist() == [120, 110, 100, 20, 10, 0]
    assert test.inputs[np.array([3, 0])][:, 0, 5, 5].tolist() == [1, 111]
    assert (train.inputs.shape, train.targets.dtype) == ((6, 1, 12, 12), np.int64)


def test_hidden_files_and_other_files_are_no_images(pictures):
    for name in ("._0.png", "notes.txt", ".hidden/0.png"):
        path = pictures / "train" / "dog" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("no image")
    (pictures / "train" / ".ipynb_checkpoints").mkdir()
    folder(pictures).prepare()
    assert len(folder(pictures).load("train")) == 6


@pytest.mark.parametrize("ending", [*ENDINGS, ".JPG"])
def test_every_ending_of_images_is_read(pictures, ending):
    pixels = np.arange(144, dtype=np.uint8).reshape(12, 12)
    path = added(pictures, Image.fromarray(pixels), ending)
    folder(pictures).prepare()
    assert np.abs(decoded(pictures, path)[0].astype(int) - pixels).max() <= 8  # JPEG, WebP


def test_an_image_of_the_right_size_is_taken_pixel_by_pixel(pictures):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    path = added(pictures, Image.fromarray(pixels))
    color = decoded(pictures, path, shape=(3, 12, 12))
    assert np.array_equal(color, pixels.transpose(2, 0, 1))
    gray = np.asarray(Image.fromarray(pixels).convert("L"))
    assert np.array_equal(decoded(pictures, path)[0], gray)


@pytest.mark.parametrize("tall", [False, True])
def test_an_image_is_cut_around_its_middle_and_not_squeezed(pictures, tall):
    pixels = np.zeros((20, 60), np.uint8)
    pixels[:, 20:40] = 200
    path = added(pictures, Image.fromarray(pixels.T if tall else pixels))
    result = decoded(pictures, path, shape=(3, 10, 10))
    assert (result[:, 1:-1, 1:-1] == 200).all()
    assert (result > 150).all()  # at the border the resizing looks at its neighbors


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_gray_color_and_transparent_images_come_in_the_channels_asked_for(pictures, mode):
    path = added(pictures, Image.new("RGBA", (12, 12), (255, 255, 255, 128)).convert(mode))
    for channels in (1, 3):
        pixels = decoded(pictures, path, shape=(channels, 12, 12))
        assert pixels.shape == (channels, 12, 12)
        assert (pixels == 255).all()


def test_a_photo_much_larger_than_needed_looks_the_same_as_decoded_in_full(pictures):
    coarse = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    photo = Image.fromarray(coarse).resize((1000, 1000), Image.Resampling.BICUBIC)
    path = added(pictures, photo, ".jpg", quality=95)
    with Image.open(path) as whole:
        expected = np.asarray(whole.resize((50, 50), Image.Resampling.BILINEAR))
    pixels = decoded(pictures, path, shape=(3, 50, 50)).transpose(1, 2, 0)
    assert np.abs(pixels.astype(int) - expected).max() <= 4


def test_exif_turns_images_as_they_say_only_if_it_is_asked_to(pictures):
    pixels, exif = np.zeros((8, 16), np.uint8), Image.Exif()
    pixels[:, :8] = 255
    exif[0x0112] = 6  # the camera was turned by a quarter
    path = added(pictures, Image.fromarray(pixels), exif=exif)
    plain, turned = (decoded(pictures, path, shape=(1, 16, 16), exif=e)[0] for e in (False, True))
    assert plain.mean(axis=0).std() > 50  # white on the left
    assert plain.mean(axis=1).std() < 1
    assert turned.mean(axis=1).std() > 50  # white at the top
    assert turned.mean(axis=0).std() < 1


def test_images_are_read_when_they_are_asked_for(pictures):
    images = folder(pictures).load("train").inputs
    first = images[np.array([0])]
    (pictures / "train" / "dog" / "1.png").unlink()
    assert np.array_equal(images[np.array([0])], first)
    assert images[:4].shape == (4, 1, 12, 12)
    with pytest.raises(DataError, match=r"dog/1.png is no usable image .*No such file"):
        images[np.arange(6)]


def test_an_image_that_has_become_a_fifo_is_an_error_and_no_wait(pictures):
    path = added(pictures, Image.new("L", (12, 12)))
    path.unlink()
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    last = Timer(5, os.close, (writer,))  # who reads from it waits so long
    last.start()
    with pytest.raises(DataError, match=r"new.png is no usable image \(it is a FIFO, "):
        decoded(pictures, path)
    last.cancel()
    os.close(writer)


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_the_folder_of_validation_images_has_one_of_three_names(pictures, name):
    shutil.copytree(pictures / "test", pictures / name)
    dataset = folder(pictures)
    dataset.prepare()
    assert dataset.splits == ("train", "val", "test")
    assert len(dataset.load("val")) == len(dataset.load("test"))


def test_a_limit_leaves_every_class_of_a_folder_its_share(pictures):
    train = folder(pictures, limit=4).load("train")
    assert train.targets.tolist() == [0, 0, 1, 1]
    assert train.inputs[np.arange(4)][:, 0, 0, 0].tolist() == [120, 110, 20, 10]
    assert len(folder(pictures, limit=4).load("test")) == 4
    assert len(folder(pictures, limit=100).load("train")) == 6


def png_header(width: int, height: int) -> bytes:
    """A PNG of so many pixels, with none of them in it."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [b"IHDR" + header, b"IDAT"]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in chunks
    )


Spoil = Callable[[Path], object]
DOG = "train/dog"
SPOILED: dict[str, tuple[Spoil, str]] = {
    "no train": (
        lambda root: shutil.rmtree(root / "train"), "it holds no folder train; found test;"
    ),
    "no test": (
        lambda root: shutil.rmtree(root / "test"), "it holds no folder test or val or valid or"
    ),
    "images without classes": (
        lambda root: [shutil.rmtree(path) for path in (root / "train").iterdir()],
        "train holds no class folders;",
    ),
    "a class without images": (
        lambda root: [path.unlink() for path in (root / DOG).iterdir()], "no images in .*train/dog;"
    ),
    "a root above the data": (
        lambda root: (
            root.rename(root.with_name("s")), root.mkdir(), root.with_name("s").rename(root / "s")
        ),
        "found s; set dataset.root=",
    ),
    "a class that links to itself": (
        lambda root: (root / "train" / "eel").symlink_to("eel"), "eel cannot be read"
    ),
    "an image that links to nothing": (
        lambda root: (root / DOG / "x.png").symlink_to("nowhere.png"), "x.png"
    ),
    "images of 16 bits": (
        lambda root: Image.fromarray(np.zeros((9, 9), "u2")).save(root / DOG / "x.png"), "x.png"
    ),
    "other classes": (
        lambda root: (root / "test" / "dog").rename(root / "test" / "wolf"),
        "classes differ; only in train: dog; only in test: wolf;",
    ),
    "0 bytes": (
        lambda root: (root / DOG / "1.png").write_bytes(b""), r"dog/1.png .*\(it has 0 bytes\)"
    ),
    "a decompression bomb": (
        lambda root: (root / DOG / "x.png").write_bytes(png_header(30_000, 30_000)),
        r"dog/x.png .*\(Image size \(900000000 pixels\) exceeds limit",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_a_folder_that_cannot_be_trained_on_is_refused_in_one_line(pictures, name):
    spoil, message = SPOILED[name]
    folder(pictures, classes=None).prepare()
    spoil(pictures)
    refuses(pictures, folder(pictures, classes=None).prepare, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root": None}, "dataset.root=null: no folder is given; .*; set dataset.root=FOLDER"),
        ({"shape": [2, 8, 8]}, r"dataset.shape=\[2, 8, 8\]: .*1 or 3 channels"),
    ],
)
def test_a_folder_that_is_not_as_configured_is_refused(pictures, options, message):
    wrong = Folder(**{"root": str(pictures), "classes": 2, **options})
    for look in (wrong.prepare, lambda: wrong.load("train")):
        with pytest.raises(DataError, match=message):
            look()
