"""dataset.cache: cached examples are the decoded ones, made again when anything changes."""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ninefold.dataset import Split, cache
from ninefold.dataset.cache import Files, key_of, make, mapped, reader
from ninefold.dataset.cache_folder import damage, write
from ninefold.dataset.folder import Folder
from ninefold.errors import DataError
from ninefold.waits import locked, unlock
from tests.dataset.kit import photos

SPLITS: tuple[Split, ...] = ("train", "test")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return photos(tmp_path / "photos")


def folder(root: Path, **options: Any) -> Folder:
    options = {"classes": 2, "shape": [3, 8, 9], "cache_dir": str(root.parent / "cache"), **options}
    return Folder(str(root), **options)


def node(dataset: Folder) -> dict[str, Any]:
    """The configuration of a dataset."""
    return {"_target_": "ninefold.dataset.folder.Folder", **asdict(dataset)}


def made(dataset: Folder, threads: int = 1) -> Files:
    files = make(dataset, node(dataset), threads)
    assert files is not None
    return files


def contents(files: Mapping[str, str]) -> dict[str, str]:
    return {
        name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for name, path in files.items()
    }


def left(root: Path) -> list[str]:
    """What is in the folder of caches, but for locks."""
    above = root.parent / "cache"
    found = above.iterdir() if above.exists() else []
    return [path.name for path in found if path.suffix != ".lock"]


@pytest.mark.parametrize("limit", [None, 11])
def test_cached_examples_are_bitwise_the_decoded_ones_in_any_order(root, limit):
    plain, cached = folder(root, limit=limit), folder(root, limit=limit, cache="disk")
    load = reader(cached, made(cached))
    for split in SPLITS:
        one, other = plain.load(split), load(split)
        assert (other.names, len(other)) == (("cat", "dog"), len(one))
        rows = np.random.default_rng(1).integers(0, len(one), 40)
        assert np.array_equal(other.inputs[rows], one.inputs[rows])
        assert np.array_equal(other.targets[rows], one.targets[rows])
        assert other.inputs[rows].dtype == np.uint8
        few = np.array([1, 0])
        assert np.array_equal(other.inputs[2:5][few], one.inputs[2:5][few])
        assert np.array_equal(other.select(rows).first(7).inputs[few], one.inputs[rows[:7]][few])


def test_a_cache_on_disk_is_readable_by_numpy_and_says_what_it_holds(root):
    dataset = folder(root, cache="disk")
    files = made(dataset)
    above = root.parent / "cache" / key_of(dataset, node(dataset))
    assert {name: Path(path) for name, path in files.items()} == {
        path.name: path for path in above.iterdir()
    }
    meta = json.loads((above / "meta.json").read_text())
    assert meta["splits"]["train"] == {
        "names": ["cat", "dog"], "inputs": "train.inputs.npy", "targets": "train.targets.npy",
    }  # fmt: skip
    assert meta["arguments"]["shape"] == [3, 8, 9]
    assert np.load(above / "train.inputs.npy").shape == (26, 3, 8, 9)
    assert left(root) == [above.name]
    assert not mapped(files["train.inputs.npy"]).flags.writeable


def test_the_same_source_gives_the_same_bytes_whatever_the_number_of_threads(root):
    big = {"shape": [3, 1200, 1400], "limit": 5}  # one to a chunk
    one = contents(made(folder(root, cache="disk", **big), 1))
    for threads in (2, 3):
        shutil.rmtree(root.parent / "cache")
        assert contents(made(folder(root, cache="disk", **big), threads)) == one


CHANGES: dict[str, Callable[[Path], object]] = {
    "touched": lambda file: os.utime(file, ns=(1, 1)),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"x"),
    "renamed": lambda file: file.rename(file.with_name("zz.png")),
    "removed": lambda file: file.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_source_file_gives_a_new_key(root, change):
    dataset = folder(root, cache="disk")
    before = key_of(dataset, node(dataset))
    CHANGES[change](root / "train" / "dog" / "03.png")
    assert key_of(dataset, node(dataset)) != before


def test_arguments_that_change_the_decoded_examples_are_in_the_key_and_others_are_not(root):
    dataset = folder(root, cache="disk")
    before = key_of(dataset, node(dataset))
    for same in ({"flip": False}, {"crop": 3}, {"val": 0.2}, {"mean": [0.5]}, {"cache": None}):
        other = replace(dataset, **same)
        assert key_of(other, node(other)) == before
    for new in ({"limit": 5}, {"shape": [3, 9, 8]}, {"classes": 3}):
        assert key_of(dataset, {**node(dataset), **new}) != before
    other = folder(root.rename(root.with_name("elsewhere")), cache="disk")
    assert key_of(other, node(other)) == before


def test_where_no_files_are_named_the_root_is_in_the_key(root, monkeypatch):
    monkeypatch.setattr(Folder, "sources", lambda dataset, split: ())
    dataset = folder(root, cache="disk")
    assert key_of(dataset, {**node(dataset), "root": "elsewhere"}) != key_of(dataset, node(dataset))


def test_sources_may_be_paths_and_must_be_there(root, monkeypatch):
    dataset = folder(root, cache="disk")
    before, names = key_of(dataset, node(dataset)), Folder.sources
    monkeypatch.setattr(Folder, "sources", lambda own, split: map(Path, names(own, split)))
    assert key_of(dataset, node(dataset)) == before
    monkeypatch.setattr(Folder, "sources", lambda own, split: [root / "none.png"])
    with pytest.raises(DataError, match=r"dataset.cache=disk: .*none.png, one of its sources"):
        key_of(dataset, node(dataset))


def test_a_path_in_an_argument_is_that_of_the_working_folder(root, monkeypatch):
    dataset = folder(root, cache="disk")
    given = {**node(dataset), "train": {"_target_": "mine.Photos", "root": "photos"}}
    keys = set()
    for name in ("a", "b"):
        (root / name / "photos").mkdir(parents=True)
        monkeypatch.chdir(root / name)
        keys.add(key_of(dataset, given))
    assert len(keys) == 2


def test_what_a_killed_process_has_left_of_a_cache_is_no_obstacle_for_one_that_waited(root):
    dataset = folder(root, cache="disk")
    above = root.parent / "cache"
    name = key_of(dataset, node(dataset))
    above.mkdir()
    with open(above / f".{name}.lock", "a") as lock:
        assert locked(lock)
        made_by = Thread(target=made, args=[dataset])
        made_by.start()
        time.sleep(0.3)  # it waits
        (above / f".{name}.tmp").mkdir()
        unlock(lock)
        made_by.join()
    assert left(root) == [name]


def test_a_change_of_the_code_that_decodes_gives_a_new_key(root, monkeypatch):
    dataset = folder(root, cache="disk")
    copied = root.parent / "code"
    shutil.copytree(Path(cache.__file__).parent, copied)
    before = key_of(dataset, node(dataset))
    monkeypatch.setattr(cache, "__file__", str(copied / "cache.py"))
    assert key_of(dataset, node(dataset)) == before
    with (copied / "images.py").open("a") as file:
        file.write("# changed\n")
    assert key_of(dataset, node(dataset)) != before


DAMAGES: dict[str, Callable[[Path], object]] = {
    "train.inputs.npy has 4,000 bytes instead of 5,744": lambda path: os.truncate(
        path / "train.inputs.npy", 4000
    ),
    "test.targets.npy is missing": lambda path: (path / "test.targets.npy").unlink(),
    "meta.json is missing": lambda path: (path / "meta.json").unlink(),
    r"meta.json cannot be used \(TypeError\)": lambda path: (path / "meta.json").write_text("[]"),
}


@pytest.mark.parametrize("wrong", DAMAGES)
def test_a_damaged_cache_is_made_again_with_a_warning(root, wrong, capfd):
    dataset = folder(root, cache="disk")
    files = made(dataset)
    before = contents(files)
    DAMAGES[wrong](Path(files["meta.json"]).parent)
    assert "warning" not in capfd.readouterr().err
    assert contents(made(dataset)) == before
    assert re.search(f"warning: .*: {wrong}; it is made again\n", capfd.readouterr().err)
    assert damage(Path(files["meta.json"]).parent) is None
    assert len(left(root)) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_a_bad_file_is_the_line_that_it_is_without_a_cache_and_leaves_nothing(root, threads):
    (root / "train" / "dog" / "07.png").write_bytes(b"no image")
    plain = folder(root, shape=[3, 1200, 1400])
    with pytest.raises(DataError) as uncached:
        plain.load("train").inputs[np.array([20])]
    with pytest.raises(DataError) as cached:
        made(replace(plain, cache="disk"), threads)
    assert str(cached.value) == str(uncached.value)
    assert left(root) == []


class Odd:
    """Examples of which a batch is not what the first one promises."""

    shape = (4, 3, 8, 9)

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return 4

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
        if len(rows) > 1 and self.batch is None:
            raise RuntimeError("a line of the user's")
        return np.zeros((1, 3, 8, 9), np.uint8) if len(rows) == 1 else np.asarray(self.batch)


@pytest.mark.parametrize(
    ("batch", "line"),
    [
        (None, "RuntimeError: a line of the user's; the dataset raised it in the"),
        (np.zeros((4, 3, 9, 8), np.uint8), r"0 on are uint8 \[3, 9, 8\]; the others are uint8 \["),
        (np.zeros((4, 3, 8, 9)), r"0 on are float64 \[3, 8, 9\]; the others are uint8"),
    ],
    ids=["exception", "shape", "dtype"],
)
def test_a_dataset_that_fails_while_it_is_decoded_is_one_line(tmp_path, batch, line):
    with pytest.raises(DataError, match=rf"error: dataset.cache=odd.npy: .*{line}"):
        write(tmp_path / "cache", {"odd.npy": Odd(batch)}, {"source": "x"}, 1)
