"""dataset=hf: what Hugging Face's library writes is read as the same bytes from other files."""

import io
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from ninefold.errors import DataError
from ninefold.extensions.hf import HF

NAMES = ["airplane", "cat", "dog", "frog", "ship"]
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 6, 6, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library makes of parquet files is kept in the test's folder."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "home" / "datasets")
    datasets.disable_progress_bars()


def png(pixels: npt.NDArray[np.uint8]) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=0)
    return {"bytes": file.getvalue(), "path": None}


def table(
    images: npt.NDArray[np.uint8], labels: list[int], names: list[str] | None = None
) -> datasets.Dataset:
    """Images [n, h, w, 3] as PNG files in a column `img`, and their classes."""
    label = datasets.ClassLabel(names=names) if names else datasets.Value("int64")
    features = datasets.Features({"img": datasets.Image(), "label": label})
    columns = {"img": list(map(png, images)), "label": labels}
    return datasets.Dataset.from_dict(columns, features=features)


def test_whether_the_hub_may_be_asked_is_as_before_once_a_dataset_is_read(tmp_path):
    """The weights of a network may be fetched from it afterwards."""
    splits().save_to_disk(tmp_path / "saved")
    before = huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    HF(str(tmp_path / "saved"), image="img").load("train")
    assert before == (huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE)


def splits(names: list[str] | None = NAMES) -> datasets.DatasetDict:
    labels = [number % 5 for number in range(40)]
    return datasets.DatasetDict(
        train=table(PIXELS[:30], labels[:30], names), test=table(PIXELS[30:], labels[30:], names)
    )


def saved(folder: Path) -> None:
    splits().save_to_disk(folder)


def one_file(folder: Path) -> None:
    folder.mkdir()
    for name, split in splits().items():
        split.to_parquet(folder / f"{name}.parquet")


def several_files(folder: Path) -> None:
    (folder / "data").mkdir(parents=True)
    for name, split in splits().items():
        for number in (0, 1):
            part = split.shard(2, number, contiguous=True)
            part.to_parquet(folder / "data" / f"{name}-0000{number}-of-00002.parquet")


def folders(folder: Path) -> None:
    for name, split in splits().items():
        (folder / name).mkdir(parents=True)
        split.to_parquet(folder / name / "0000.parquet")


def of(root: Path, **more: Any) -> HF:
    return HF(str(root), image="img", shape=(3, 6, 6), **more)


@pytest.mark.parametrize("write", [saved, one_file, several_files, folders])
def test_every_layout_gives_the_images_the_classes_and_their_names(tmp_path, write):
    write(tmp_path / "set")
    dataset = of(tmp_path / "set")
    dataset.prepare()
    assert dataset.count_classes() == 5
    train, test = dataset.load("train"), dataset.load("test")
    rows = np.array([29, 0, 7])
    np.testing.assert_array_equal(train.inputs[rows], PIXELS[rows].transpose(0, 3, 1, 2))
    assert train.targets[rows].tolist() == [4, 0, 2]
    assert list(train.names) == NAMES
    assert test.inputs.shape == (10, 3, 6, 6)
    np.testing.assert_array_equal(test.inputs[2:][np.array([1])][0], PIXELS[33].transpose(2, 0, 1))
    assert len(of(tmp_path / "set", limit=7).load("train")) == 7
    assert all(Path(path).is_file() for path in dataset.sources("train"))
    assert set(dataset.sources("train")).isdisjoint(dataset.sources("test"))


def test_labels_without_names_are_counted_and_checked(tmp_path):
    splits(None).save_to_disk(tmp_path / "set")
    assert of(tmp_path / "set").count_classes() == 5
    with pytest.raises(DataError, match=r"dataset.classes=3: .* labels from 0 to 4"):
        of(tmp_path / "set", classes=3).load("train")
