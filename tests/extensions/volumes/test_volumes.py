"""Volumes: orientation, spacing and place of voxels and landmarks, layouts, headers."""

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch

from ninefold.dataset.preparation import ImagePreparation
from ninefold.extensions.volumes.nifti import PERCENTILES
from ninefold.extensions.volumes.volumes import Volumes
from tests.dataset.heads import AFFINE, COUNTS, NAMES, SHAPE, SIDES, dataset, save, turned, write

DATA = Path(nibabel.__file__).parent / "tests" / "data"
ALL = np.arange(COUNTS["imagesTr"])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("heads") / "set")


def one(root: Path, volume: np.ndarray, affine: Any, points: dict[str, list[float]]) -> Path:
    """A set of this volume, alone in each split."""
    for folder in ("imagesTr", "imagesTs"):
        (root / folder).mkdir(parents=True)
        save(root / folder / f"{folder}_0000.nii.gz", volume, affine)
    (root / "landmarks.json").write_text(
        json.dumps(dict.fromkeys(("imagesTr", "imagesTs"), points))
    )
    return root


def test_a_set_has_its_splits_names_and_dtypes(root):
    heads = dataset(root)
    heads.prepare()
    train, test = heads.load("train"), heads.load("test")
    assert (len(train), len(test)) == (8, 4)
    assert train.names == ("left", "right", "top")
    volumes, points = train.inputs[ALL], np.asarray(train.targets[ALL])
    assert (volumes.dtype, volumes.shape) == (np.int16, (8, *SHAPE))
    assert (points.dtype, points.shape) == (np.float32, (8, 3, 3))
    absent = np.isnan(points).all(axis=2)
    assert absent.tolist() == [[False, False, row % 4 == 3] for row in range(8)]


def test_voxels_and_landmarks_move_together(root):
    """The files are left, anterior, superior with unlike voxels: flipped, turned and resampled."""
    train = dataset(root).load("train")
    volumes, points = train.inputs[ALL], np.asarray(train.targets[ALL])
    for volume, places in zip(volumes[:, 0], points, strict=True):
        for place in places[~np.isnan(places).any(axis=1)]:
            corner = np.rint(place).astype(int) - 2
            z, y, x = (slice(low, low + 5) for low in corner)
            ball = volume[z, y, x].astype(float)
            center = np.array([(ball * axis).sum() for axis in np.indices(ball.shape)]) / ball.sum()
            assert np.abs(center + corner - place).max() < 0.75
            assert ball.max() > 2 * np.median(volume)


@pytest.mark.parametrize("axes", ["RAS", "LPS", "ASL", "SRP", "PIR"])
def test_a_volume_is_the_same_however_the_file_stores_its_axes(tmp_path, axes):
    volume = np.random.default_rng(0).integers(0, 900, SIDES, dtype=np.int16)
    stored, affine = turned(volume, (2.0, 2, 3), axes)
    millimeters = [[4.0, 6, 9, 1], [20, 10, 30, 1], [10, 30, 15, 1]]
    shape, spacing = (1, 12, 18, 14), (3.0, 2.0, 2.0)
    voxels = (np.linalg.inv(affine) @ np.transpose(millimeters)).T[:, :3]
    points = dict(zip(NAMES, voxels.tolist(), strict=True))
    one(tmp_path / "set", stored, affine, points)
    heads = dataset(tmp_path / "set", shape=shape, spacing=spacing, window=(0, 1000), dtype="uint8")
    train = heads.load("train")
    expected = np.rint(volume.transpose() * 0.255)
    assert np.abs(train.inputs[np.array([0])][0, 0] - expected).max() <= 1  # halves are rounded
    assert np.asarray(train.targets)[0].tolist() == pytest.approx(
        np.array([[3.0, 3, 2], [10, 5, 10], [5, 15, 5]]), abs=1e-4
    )


TURNED = np.array([[0.8, -0.6, 0, 0], [0.6, 0.8, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])


@pytest.mark.parametrize("mm", [1, 0.7, 0.9, 1.3])  # a header has float32
@pytest.mark.parametrize("axes", [np.eye(4), TURNED], ids=["upright", "turned"])
def test_a_volume_that_has_the_spacing_is_cut_and_padded_to_whole_voxels(tmp_path, axes, mm):
    volume = np.random.default_rng(0).integers(0, 250, (9, 12, 7), dtype=np.uint8)
    one(tmp_path / "set", volume, axes * [mm, mm, mm, 1], {"a": [4, 6, 3]})
    heads = dataset(
        tmp_path / "set", classes=1, shape=(1, 10, 10, 12), spacing=(mm, mm, mm), window=(0, 255),
        dtype="uint8",
    )  # fmt: skip
    train = heads.load("train")
    found = train.inputs[np.array([0])][0, 0]
    expected = np.zeros((10, 10, 12), np.uint8)
    expected[2:9, :, 2:11] = volume.transpose()[:, 1:11]
    assert np.array_equal(found, expected)
    assert np.asarray(train.targets)[0, 0].tolist() == [5, 5, 6]


def test_millimeters_are_those_of_an_anisotropic_oblique_header(tmp_path):
    """example4d.nii.gz: voxels of 2 x 2 x 2.2 mm, turned, the first is L."""
    image = nibabel.load(DATA / "example4d.nii.gz")
    stored, affine = np.asarray(image.dataobj)[..., 0], image.affine
    voxels = np.array([[60.0, 40, 10], [70, 40, 10], [60, 45, 10], [60, 40, 15]])
    points = dict(zip("abcd", voxels.tolist(), strict=True))
    root = one(tmp_path / "set", stored, affine, points)
    options = {"classes": 4, "shape": (1, 40, 120, 160), "spacing": (2.2, 2.0, 2.0)}
    found = np.asarray(dataset(root, **options).load("train").targets)[0]
    # By hand: 10 voxels along i are 20 mm to the left, 5 along j 10 mm, 5 along k 11 mm.
    apart = (found[1:] - found[0]) * [2.2, 2.0, 2.0]
    assert apart.tolist() == pytest.approx(
        np.array([[0, 0, -20.0], [0, 10.0, 0], [11.0, 0, 0]]), abs=1e-3
    )
    in_mm = (affine[:3, :3] @ voxels.T).T + affine[:3, 3]
    json_file = root / "landmarks.json"
    points = dict(zip("abcd", in_mm[:, ::-1].tolist(), strict=True))
    json_file.write_text(json.dumps(dict.fromkeys(("imagesTr", "imagesTs"), points)))
    again = dataset(root, **options, unit="mm", order="zyx").load("train")
    assert np.abs(np.asarray(again.targets)[0] - found).max() < 1e-3


def test_the_window_is_clipped_and_is_0_and_1_for_the_network(root):
    heads = dataset(root, window=(100, 500), spacing=(3, 2, 2), shape=(1, 12, 18, 14))
    stored = nibabel.load(root / "imagesTr" / "tr_000_0000.nii.gz").get_fdata()
    expected = np.clip((np.flip(stored, 0).transpose() - 100) / 400, 0, 1)
    for dtype, close in (("int16", 2e-5), ("uint8", 2.5e-3)):
        train = Volumes(**{**vars(heads), "dtype": dtype}).load("train")
        inputs = torch.from_numpy(train.inputs[np.array([0])])
        layout = torch.channels_last_3d
        prepare = ImagePreparation(channels=1, memory_format=layout)
        floats, targets = prepare(inputs, torch.zeros(1, 3, 3), None)
        assert floats.dtype == torch.float32
        assert np.abs(floats[0, 0].numpy() - expected).max() < close
        assert (floats.max(), floats.min()) == (1, 0)
        assert targets.shape == (1, 3, 3)


def test_without_a_window_the_percentiles_of_each_volume_are_its_ends(root):
    train = dataset(root, spacing=(3, 2, 2), shape=(1, 12, 18, 14)).load("train")
    stored = np.flip(nibabel.load(root / "imagesTr" / "tr_000_0000.nii.gz").get_fdata(), 0)
    low, high = np.percentile(stored, PERCENTILES)
    expected = np.clip((stored.transpose() - low) / (high - low), 0, 1)
    assert np.abs(train.inputs[np.array([0])][0, 0] / 32767 - expected).max() < 1e-4


def test_channels_are_read_from_numbered_files(root, tmp_path):
    root = write(tmp_path / "set")
    for path in root.glob("images*/*_0000.nii.gz"):
        volume = np.asarray(nibabel.load(path).dataobj)
        save(Path(str(path).replace("_0000", "_0001")), volume.max() - volume)
    heads = dataset(root, shape=(2, *SHAPE[1:]))
    heads.prepare()
    found = heads.load("train").inputs[ALL]
    assert found.shape == (8, 2, *SHAPE[1:])
    assert not np.array_equal(found[:, 0], found[:, 1])


@pytest.mark.parametrize(
    ("kind", "unit", "scale"),
    [
        (nibabel.Nifti1Image, "micron", 1000),
        (nibabel.Nifti2Image, "mm", 1),
        (nibabel.Nifti1Image, "unknown", 1),
        (nibabel.Nifti1Image, "meter", 0.001),
    ],
)
def test_units_and_both_versions_of_nifti_are_read(root, tmp_path, kind, unit, scale):
    again = write(tmp_path / "set")
    for path in again.glob("images*/*.nii.gz"):
        volume = np.asarray(nibabel.load(path).dataobj)
        image = kind(volume.astype(">i2"), np.diag([*[scale] * 3, 1]) @ AFFINE)
        image.header.set_xyzt_units(unit)
        nibabel.save(image, str(path).removesuffix(".gz"))
        path.unlink()
    expected, found = dataset(root).load("train"), dataset(again).load("train")
    assert np.allclose(
        np.asarray(found.targets), np.asarray(expected.targets), atol=1e-4, equal_nan=True
    )
    apart = found.inputs[ALL].astype(int) - expected.inputs[ALL]
    assert np.abs(apart).max() <= 32  # of 32767: the header's affine is float32
