"""Masks of volumes: they move with their volume, voxel by voxel; layouts, dtypes, options."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import numpy.typing as npt
import pytest

from ninefold.errors import ConfigError, DataError
from ninefold.extensions.volumes.volumes import Volumes
from tests.dataset.heads import AFFINE, SHAPE, SIDES, dataset, save, turned, write, write_masks

ANATOMICAL = Path(nibabel.__file__).parent / "tests" / "data" / "anatomical.nii"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_masks(tmp_path / "heads")


def both(volumes: Volumes) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """All prepared training volumes [n, d, h, w] and their masks."""
    train = volumes.load("train")
    rows = np.arange(len(train))
    return train.inputs[rows][:, 0], train.targets[rows]


def test_a_set_has_its_splits_sources_names_and_dtypes(root):
    heads = dataset(root, class_names=["nothing", "rim", "ball"])
    heads.prepare()
    train, test = heads.load("train"), heads.load("test")
    assert (len(train), len(test)) == (8, 4)
    assert train.names == ("nothing", "rim", "ball")
    assert (train.targets.shape, test.targets.shape) == ((8, *SHAPE[1:]), (4, *SHAPE[1:]))
    masks = train.targets[np.arange(8)]
    assert masks.dtype == np.uint8
    assert set(np.unique(masks)) == {0, 1, 2}
    assert [Path(path).name for path in heads.sources("test")[3:5]] == [
        "ts_003_0000.nii.gz", "ts_000.nii.gz",
    ]  # fmt: skip
    assert len(dataset(root, limit=3).load("train")) == 3
    assert len(dataset(root, limit=3).sources("train")) == 6


@pytest.mark.parametrize("axes", ["RAS", "LPS", "ASL", "SRP", "PIR"])
def test_a_mask_is_the_same_however_the_file_stores_its_axes(tmp_path, axes):
    """A volume that has the spacing stays as it is, so its own values tell each voxel's class."""
    values = np.asarray(nibabel.load(ANATOMICAL).dataobj).astype(np.int16)
    stored, affine = turned(values, (2.0, 2, 2), axes)
    cuts = np.percentile(values, [50, 90])
    for end in ("Tr", "Ts"):
        for folder, volume, name in (
            ("images", stored, "a_0000"),
            ("labels", np.digitize(stored, cuts).astype(np.uint8), "a"),
        ):
            (tmp_path / f"{folder}{end}").mkdir()
            save(tmp_path / f"{folder}{end}" / f"{name}.nii.gz", volume, affine)
    heads = dataset(tmp_path, shape=(1, 30, 48, 40), window=(0, 32767), ignore=9)
    heads.prepare()
    volumes, masks = both(heads)
    outside = masks == 9
    sides = np.array(values.shape[::-1])
    assert (~outside).sum() == np.minimum(sides, [30, 48, 40]).prod()
    assert (volumes[outside] == 0).all()
    expected = np.digitize(volumes[~outside], cuts)
    assert np.array_equal(masks[~outside], expected)
    assert set(np.unique(expected)) == {0, 1, 2}


def test_a_mask_is_resampled_to_the_nearest_voxel_of_its_volume(root):
    """Along z the files have 3 mm: each prepared slice is the nearest one of the file."""
    volumes, masks = both(dataset(root, spacing=(1.0, 2.0, 2.0), shape=(1, 30, 18, 14), ignore=9))
    stored = np.asarray(nibabel.load(root / "labelsTr" / "tr_000.nii.gz").dataobj)
    upright = np.flip(stored, 0).transpose()  # the files are left, anterior, superior
    for slice_, found in enumerate(masks[0]):
        place = (slice_ - 15) / 3 + 6
        inside = 0 <= place <= SIDES[2] - 1
        expected = upright[int(np.floor(place + 0.5))] if inside else np.full_like(found, 9)
        assert np.array_equal(found, expected), slice_
        assert inside or (volumes[0, slice_] == 0).all()


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.float32, np.float64, ">i2"])
def test_whole_numbers_of_any_dtype_are_class_numbers(root, kind):
    expected = both(dataset(root))[1]
    for path in root.glob("labels*/*.nii.gz"):
        stored = np.asarray(nibabel.load(path).dataobj)
        nibabel.save(nibabel.Nifti1Image(stored.astype(kind), AFFINE), str(path)[: -len(".gz")])
        path.unlink()
    heads = dataset(root)
    heads.prepare()
    assert np.array_equal(both(heads)[1], expected)


def test_test_cases_listed_in_a_file_have_their_masks_beside_the_others(root):
    (root / "test.txt").write_text("tr_001\n\n tr_004\n")
    for path in [*root.glob("*Ts/*"), *root.glob("*Ts")]:
        path.unlink() if path.is_file() else path.rmdir()
    heads = dataset(root)
    heads.prepare()
    assert [Path(path).name for path in heads.sources("test")] == [
        "tr_001_0000.nii.gz", "tr_004_0000.nii.gz", "tr_001.nii.gz", "tr_004.nii.gz",
    ]  # fmt: skip
    assert len(heads.load("train").targets) == 6


def test_a_set_with_landmarks_and_masks_asks_which_are_meant(tmp_path):
    root = write_masks(tmp_path / "set")
    write(tmp_path / "other")
    (tmp_path / "other" / "landmarks.json").rename(root / "landmarks.json")
    with pytest.raises(ConfigError, match=r"dataset.targets=null: .* holds both landmarks.json"):
        dataset(root).load("train")
    assert dataset(root, targets="masks").load("train").targets.shape == (8, *SHAPE[1:])
    assert dataset(root, targets="landmarks").load("train").targets.shape == (8, 3, 3)


def test_a_mask_that_turns_bad_later_is_named_when_it_is_read(root):
    heads = dataset(root)
    heads.prepare()
    train = heads.load("train")
    path = root / "labelsTr" / "tr_005.nii.gz"
    save(path, np.full(SIDES, 7, np.uint8))
    assert train.targets[np.arange(5)].shape == (5, *SHAPE[1:])
    with pytest.raises(DataError, match=f"mask {path} has the value 7 in 3,024 voxels; 0 to 2 are"):
        train.targets[np.arange(6)]
