"""Objects go to other processes as they are, by files that only their own user can have changed."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ninefold.api import capsule
from ninefold.api.capsule import LARGE, load
from ninefold.errors import ConfigError, DataError
from ninefold.places import ROOT
from tests.kit import Evil


def written(folder: Path, **parts: Any) -> tuple[str, str]:
    path = folder / "given" / "objects.bin"
    return str(path), capsule.write(path, parts, dict.fromkeys(parts, "it"))


def test_arrays_tensors_and_modules_are_what_they_were(tmp_path: Path) -> None:
    network = nn.LSTM(3, 64)
    half = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T
    array = np.arange(12.0).reshape(3, 4)
    file, sha256 = written(tmp_path, all=(network, half, array[:, 1:], torch.empty(0)))
    found, its_half, its_array, empty = load(file, sha256, "all")
    assert all(map(torch.equal, network.parameters(), found.parameters()))
    assert its_half.dtype == half.dtype
    assert its_half.stride() == half.stride()
    assert torch.equal(its_half, half)
    assert np.array_equal(its_array, array[:, 1:])
    assert empty.shape == (0,)


def test_views_of_one_memory_stay_views_of_one(tmp_path: Path) -> None:
    for size in (4, 40_000):  # in the file, and in one beside it
        whole = torch.zeros(4, size)
        file, sha256 = written(tmp_path / str(size), both=(whole, whole[1]))
        one, view = load(file, sha256, "both")
        view += 1
        assert one[1].sum() == one.sum() == size


def test_tensors_of_one_address_keep_their_lengths(tmp_path: Path) -> None:
    array = np.arange(100.0)
    both = torch.from_numpy(array[:50]), torch.from_numpy(array)
    file, sha256 = written(tmp_path, both=both)
    assert [len(each) for each in load(file, sha256, "both")] == [50, 100]


def test_what_one_reader_writes_no_other_sees(tmp_path: Path) -> None:
    file, sha256 = written(tmp_path, weights=torch.zeros(30_000))
    load(file, sha256, "weights").add_(1)
    assert load(file, sha256, "weights").sum() == 0


def test_large_memory_is_written_once_and_mapped(tmp_path: Path) -> None:
    large = np.ones(2_000_000, np.uint8)
    file, sha256 = written(tmp_path, data=(large, torch.from_numpy(large), large[:5]))
    sizes = [path.stat().st_size for path in Path(file).parent.iterdir()]
    assert sum(sizes) < 2 * large.nbytes + 100_000  # of NumPy, and of torch
    maps = Path("/proc/self/maps")
    found = load(file, sha256, "data")
    assert str(Path(file).with_name(capsule.ARRAYS)) in maps.read_text()
    assert found[0].nbytes == large.nbytes


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


CHANGES: list[Any] = [
    ("not the file that was written", flipped),
    ("symbolic link", linked),
    ("others can write", lambda path: path.chmod(0o666)),
    ("not the file that was written", lambda p: p.write_bytes(pickle.dumps(Evil(os._exit, 9)))),
    ("No such file", Path.unlink),
    pytest.param(
        "somebody else", lambda path: os.chown(path, 12345, 12345),
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("said", "change"), CHANGES)
def test_a_file_that_was_changed_or_is_another_users_is_not_read(
    said: str, change: Callable[[Path], object], tmp_path: Path
) -> None:
    made = tmp_path / "made"
    file, sha256 = written(tmp_path, it=Evil(os.mkdir, str(made)))
    change(Path(file))
    with pytest.raises((DataError, OSError), match=said):
        load(file, sha256, "it")
    assert not made.exists()


@pytest.mark.parametrize("size", [0, 65_536])
def test_a_file_of_arrays_that_was_cut_is_damaged_data_and_no_missing_module(
    size: int, tmp_path: Path
) -> None:
    file, sha256 = written(tmp_path, data=np.ones(100_000, np.uint8))
    os.truncate(Path(file).with_name(capsule.ARRAYS), size)
    with pytest.raises(DataError, match=r"objects=.*: it is not read; arrays\.bin .* is damaged;"):
        load(file, sha256, "data")


def test_many_large_tensors_turned_arrays_and_memmaps_are_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "saved.npy"
    np.save(path, np.arange(20_000.0))
    items = [torch.full((20_000,), float(n)) for n in range(300)]
    turned = torch.zeros(30, 40, 50).permute(2, 0, 1).numpy()
    file, sha256 = written(tmp_path, data=(items, turned, np.load(path, mmap_mode="r")))
    assert {each.name for each in Path(file).parent.iterdir()} == {"objects.bin", capsule.ARRAYS}
    assert Path(file).stat().st_size < 200_000
    found, its_turned, saved = load(file, sha256, "data")
    assert its_turned.shape == turned.shape
    assert all(map(torch.equal, found, items))
    assert saved.sum() == np.arange(20_000.0).sum()


def test_only_its_user_can_read_what_is_written(tmp_path: Path) -> None:
    file, _ = written(tmp_path, it=1)
    modes = [os.stat(path).st_mode & 0o777 for path in (file, tmp_path / "given")]
    assert modes == [0o600, 0o700]


def test_a_file_of_another_cloudpickle_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, sha256 = written(tmp_path, it=1)
    monkeypatch.setattr("cloudpickle.__version__", "0")
    with pytest.raises(DataError, match=r"written with Python .*, and this is .*cloudpickle 0"):
        load(file, sha256, "it")


class Truncated:
    """As an image that is read when it is pickled."""

    def __reduce__(self) -> Any:
        raise OSError("image file is truncated")


def test_a_full_disk_is_told_apart_from_an_error_of_the_callers_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"error: it=it: it cannot be copied.*truncated"):
        written(tmp_path / "its", it=Truncated())
    monkeypatch.setattr(capsule, "private", lambda *_: os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(OSError, match="No space left"):
        written(tmp_path / "full", it=np.zeros(LARGE))


def test_a_module_beside_the_script_is_found_before_an_installed_one_of_its_name(
    tmp_path: Path,
) -> None:
    (tmp_path / "iniconfig.py").write_text("class Mine:\n    pass\n")  # pytest installs one

    def said(code: str, **variables: str) -> str:
        command = [sys.executable, "-c", f"from ninefold.api import capsule; {code}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout

    file = tmp_path / "objects.bin"
    sha256 = said(
        "from pathlib import Path; from iniconfig import Mine; "
        f"print(capsule.write(Path({str(file)!r}), {{'it': Mine()}}, {{'it': 'it'}}), end='')",
        PYTHONPATH=f"{tmp_path}:{ROOT}",
    )
    assert "Mine object" in said(f"print(capsule.load({str(file)!r}, {sha256!r}, 'it'))")
