"""Checkpoints that claim more than their files have are refused before anything is made of them."""

import io
import time
import zipfile
from typing import Any

import pytest
import torch

from ninefold.checkpoint.loading import require_bounded
from ninefold.checkpoint.store import read
from ninefold.errors import CheckpointError, DataError, ResourceError
from ninefold.model import hub


def compressed(data: bytes) -> bytes:
    """The same archive, compressed."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as good,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bad,
    ):
        for name in good.namelist():
            bad.writestr(name, good.read(name))
    return file.getvalue()


def saved(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def nested() -> list[Any]:
    """Lists that hold each other 2 ** 60 times, in a file of a kilobyte."""
    tree: list[Any] = [1]
    for _ in range(60):
        tree = [tree, tree]
    return tree


def without_end() -> list[Any]:
    tree: list[Any] = []
    tree.append(tree)
    return tree


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (compressed(saved({"model": {}})), "is compressed, which torch.save never does"),
        (saved({"w": torch.zeros(1).expand(10**12)}), "a tensor in it claims [1000000000000]"),
        (saved({"a": [{"w": torch.zeros(2, 1).expand(2, 10**12)}]}), "a tensor in it claims"),
        (saved({"x": nested()}), "it is nested over 100 deep, or has over 1,000,000 containers"),
        (saved({"x": without_end()}), "it is nested over 100 deep"),
    ],
    ids=["compressed", "expanded", "deep in it", "each other", "itself"],
)
def test_what_claims_more_than_its_file_is_refused_at_once(tmp_path, data, wrong):
    (tmp_path / "x.pt").write_bytes(data)
    began = time.monotonic()
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path / "x.pt")
    assert "it cannot be read" in str(caught.value)
    assert wrong in str(caught.value)
    assert time.monotonic() - began < 15


def test_a_small_expanded_tensor_and_a_file_of_an_older_format_are_read(tmp_path):
    content = {"w": torch.zeros(1).expand(1000), "v": torch.arange(3), "k": [1, {"a": (2, 3)}]}
    torch.save(content, tmp_path / "x.pt")
    torch.save(content, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("x.pt", "old.pt"):
        assert torch.equal(read(tmp_path / name)["v"], torch.arange(3))


def test_a_file_that_memory_does_not_suffice_for_is_a_resource_error(tmp_path):
    with (tmp_path / "x.pt").open("wb") as file:
        file.truncate(1 << 42)  # it takes no room
    with pytest.raises(ResourceError, match="of memory are available") as caught:
        read(tmp_path / "x.pt")
    assert "it has 4.4 TB, " in str(caught.value)


def test_pretrained_weights_are_not_decompressed(tmp_path):
    path = tmp_path / "net.pth"
    path.write_bytes(saved({"w": torch.ones(2)}))
    assert hub.read(path, "model.net.weights", "DEFAULT")["w"].tolist() == [1, 1]
    path.write_bytes(compressed(path.read_bytes()))
    with pytest.raises(DataError, match="cannot be read"):
        hub.read(path, "model.net.weights", "DEFAULT")


def test_a_content_of_our_own_is_far_within_the_limits():
    tensors = {str(number): torch.zeros(1) for number in range(10_000)}
    state = {number: {"step": 1.0, "exp_avg": torch.zeros(1)} for number in range(10_000)}
    require_bounded({"model": tensors, "optimizer": {"state": state}}, 1 << 20)
