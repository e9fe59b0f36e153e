"""Sharded checkpoints: what all ranks write is one checkpoint, verified, and runs no code."""

import errno
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ninefold.checkpoint import hashing, manifest
from ninefold.checkpoint.store import Checkpoints, read
from ninefold.engine.state import copied
from ninefold.errors import CheckpointError, ResourceError
from ninefold.extensions.sharded import dcp
from ninefold.extensions.sharded.dcp import ShardedWriter
from tests.checkpoint.test_claims import compressed
from tests.extensions.sharded.made import Made, made
from tests.kit import Evil, same
from tests.parallel.ranks import on_ranks

KEEP = 2
SLOW = pytest.mark.slow
STEPS = {"format": 2, "rng": [torch.arange(3)], "origin": []}


def spread(run: Made, step: int) -> dict[str, Any]:
    """The content of a checkpoint of this process's parts."""
    return {**run.strategy.parts(run.model, run.optimizer, {}), **STEPS, "step": step}


def save(run: Made, folder: Path, step: int, best: bool = False) -> None:
    writer = ShardedWriter(Checkpoints(folder, KEEP))
    writer.save(spread(run, step), best)
    writer.wait()


def alone(step: int) -> dict[str, Any]:
    """The content of a small checkpoint of one process, whose tensors tell its step."""
    weight = torch.full((64, 64), float(step))
    return {"model": {"w": weight}, "optimizer": {}, "average": {}, **STEPS, "step": step}


def saved_alone(folder: Path, *steps: int, best: int | None = None) -> Checkpoints:
    checkpoints = Checkpoints(folder, KEEP)
    for step in steps:
        writer = ShardedWriter(checkpoints)
        writer.save(alone(step), best=step == best)
        writer.wait()
    return checkpoints


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {manifest.FILE}


def step_of(path: Path) -> int:
    """The step of a checkpoint, after seeing that its tensors are of that step."""
    found = read(path)
    assert torch.equal(found["model"]["w"], torch.full((64, 64), float(found["step"])))
    return int(found["step"])


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=SLOW)])
def test_what_all_ranks_write_is_read_as_whole_tensors_bit_by_bit(ranks, tmp_path):
    def run() -> Any:
        with made() as run:
            run.step()
            save(run, tmp_path / "checkpoints", 1)
            return run.whole()

    whole, *_ = on_ranks(ranks, run, tmp_path)
    path = Checkpoints(tmp_path / "checkpoints", KEEP).newest()
    assert path.name == "last.dcp"
    found = read(path)
    for key in ("model", "optimizer", "average"):
        assert same(found[key], copied(whole[key], lambda tensor: tensor)), key
    assert found["step"] == 1
    assert torch.equal(found["rng"][0], torch.arange(3))
    sizes = [(path / f"__{rank}_0.distcp").stat().st_size for rank in range(ranks)]
    assert max(sizes) < 1.3 * sum(sizes) / ranks  # each wrote its part


def test_no_process_makes_a_tensor_whole_to_save_it(tmp_path):
    def run() -> Any:
        with made() as run:
            run.step()
            torch.distributed.tensor.DTensor.full_tensor = None
            save(run, tmp_path / "checkpoints", 1)

    on_ranks(2, run, tmp_path)
    assert read(tmp_path / "checkpoints" / "last.dcp")["step"] == 1


def test_of_what_is_not_spread_the_values_of_rank_0_are_saved(tmp_path):
    def run() -> Any:
        with made() as run:
            writer = ShardedWriter(Checkpoints(tmp_path / "checkpoints", KEEP))
            own = {f"mean{name}": torch.tensor([float(run.context.rank)]) for name in range(4)}
            writer.save({**spread(run, 1), "model": own}, best=False)
            writer.wait()

    on_ranks(2, run, tmp_path)
    found = read(tmp_path / "checkpoints" / "last.dcp")
    assert all(value.item() == 0 for value in found["model"].values())


def test_last_best_and_the_newest_steps_are_kept(tmp_path):
    checkpoints = saved_alone(tmp_path, 1, 2, 3, 4, best=2)
    steps = {f"step-0000000{step}.dcp" for step in (2, 3, 4)}  # best.dcp leads to 2
    assert names(tmp_path) == {"last.dcp", "best.dcp", *steps}
    assert names(tmp_path) == set(checkpoints.manifest())
    assert (step_of(tmp_path / "last.dcp"), step_of(tmp_path / "best.dcp")) == (4, 2)
    saved_alone(tmp_path, 5, best=5)
    assert names(tmp_path) == {"last.dcp", "best.dcp", "step-00000004.dcp", "step-00000005.dcp"}


def test_a_step_that_is_saved_again_gets_a_new_folder(tmp_path):
    before = saved_alone(tmp_path, 3, 4).newest().resolve()
    checkpoints = saved_alone(tmp_path, 4)
    now = checkpoints.newest().resolve()
    assert (before.name, now.name) == ("step-00000004.dcp", "step-00000004-2.dcp")
    assert names(tmp_path) == {"last.dcp", "step-00000003.dcp", now.name}
    assert step_of(checkpoints.newest()) == 4


def test_a_run_that_changes_the_format_keeps_one_last_checkpoint(tmp_path):
    checkpoints = saved_alone(tmp_path, 1, 2, best=2)
    checkpoints.save(alone(3), best=True)
    assert names(tmp_path) == {"last.pt", "best.pt", "step-00000002.dcp", "step-00000003.pt"}
    saved_alone(tmp_path, 4)
    assert names(tmp_path) == {"last.dcp", "best.pt", "step-00000003.pt", "step-00000004.dcp"}
    assert step_of(checkpoints.newest()) == 4
    assert step_of(tmp_path / "best.pt") == 3


def test_a_run_folder_that_was_copied_without_its_links_goes_on(tmp_path):
    saved_alone(tmp_path / "a", 1, 2, best=1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # links become folders
    checkpoints = saved_alone(tmp_path / "b", 3, best=3)
    assert names(tmp_path / "b") == {
        "last.dcp", "best.dcp", "step-00000002.dcp", "step-00000003.dcp"
    }  # fmt: skip
    assert step_of(checkpoints.newest()) == 3


# Damage


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def linked(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


@pytest.mark.parametrize("name", [".metadata", "content.pt", "__0_0.distcp"])
@pytest.mark.parametrize("damage", [flipped, cut, Path.unlink, linked])
def test_any_damage_is_refused_and_the_checkpoint_before_is_resumed(tmp_path, damage, name):
    checkpoints = saved_alone(tmp_path, 1, 2)
    damage(tmp_path / "step-00000002.dcp" / name)
    with pytest.raises(CheckpointError, match=r"^[^\n]*it is damaged[^\n]*$"):
        read(tmp_path / "step-00000002.dcp")
    assert step_of(checkpoints.newest()) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda last: (last / "__1_0.distcp").touch(), "__1_0.distcp in it is not listed"),
        (lambda last: flipped(last / "__0_0.distcp"), "the sha256 of __0_0.distcp in it is not"),
        (lambda last: (last.parent / manifest.FILE).unlink(), "no manifest.json next to it lists"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(tmp_path, change, said):
    path = saved_alone(tmp_path, 1).newest().resolve()
    change(path)
    with pytest.raises(CheckpointError, match=said):
        read(path)


# Strangers


def listed_again(run: Path) -> None:
    """A manifest as a stranger would write it, to whom all digests are known."""
    folder = run / "step-00000001.dcp"
    files = hashing.listing(folder)
    entry = {"sha256": hashing.digest_of(files), "size": 1, "step": 1, "files": files}
    manifest.write(run, {folder.name: [entry], "last.dcp": [entry]})


def runs_code(name: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        evil = Evil(os.mkdir, str(folder.parent / "mark"))
        (folder / name).write_bytes(pickle.dumps(evil))

    return write


def edited(file: Path, change: Callable[[Any], object]) -> None:
    """Change what a pickle holds."""
    found = pickle.loads(file.read_bytes())
    change(found)
    file.write_bytes(pickle.dumps(found))


def outside(folder: Path) -> None:
    def change(found: Any) -> None:
        for info in found.storage_data.values():
            info.relative_path = "../secret"

    edited(folder / ".metadata", change)


def resized(folder: Path, *size: int) -> None:
    def change(found: Any) -> None:
        found.state_dict_metadata["model.w"].size = torch.Size(size)

    edited(folder / ".metadata", change)


def larger(folder: Path) -> None:
    """Tensors of more bytes than the files have, on which all files agree."""
    outline = torch.load(folder / "content.pt", weights_only=True)
    outline["model"]["w"] = torch.empty(2**50, device="meta")
    torch.save(outline, folder / "content.pt")
    resized(folder, 2**50)


def compressed_content(folder: Path) -> None:
    packed = compressed((folder / "content.pt").read_bytes())
    (folder / "content.pt").write_bytes(packed)


def compressed_tensors(folder: Path) -> None:
    path = folder / "__0_0.distcp"
    path.with_name("__9_0.distcp").write_bytes(bytes(1 << 16))  # no more than the files have
    data = path.read_bytes()

    def change(told: Any) -> None:
        whole = b""
        for part in sorted(told.storage_data.values(), key=lambda part: part.offset):
            packed = compressed(data[part.offset : part.offset + part.length])
            part.offset, part.length = len(whole), len(packed)
            whole += packed
        path.write_bytes(whole)

    edited(folder / ".metadata", change)


STRANGERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "code in the metadata": (runs_code(".metadata"), "it cannot be read"),
    "code in the content": (runs_code("content.pt"), "it cannot be read"),
    "code in the tensors": (runs_code("__0_0.distcp"), "it cannot be read"),
    "a file elsewhere": (outside, "refers to ../secret"),
    "a huge tensor": (lambda folder: resized(folder, 2**40), "do not agree on model.w"),
    "larger than its files": (larger, "its tensors have"),
    "compressed content": (compressed_content, "it cannot be read; .* in it is compressed"),
    "compressed tensors": (compressed_tensors, "it cannot be read; .* in it is compressed"),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_strangers_folder_whose_manifest_fits_runs_no_code_and_takes_no_memory(tmp_path, name):
    change, said = STRANGERS[name]
    path = saved_alone(tmp_path, 1).newest()
    change(path.resolve())
    listed_again(tmp_path)
    with pytest.raises(CheckpointError, match=said):
        read(path)
    assert not (tmp_path / "mark").exists()


# Several ranks, of which one cannot write


@pytest.mark.parametrize("rank", [0, 1])  # 0 also writes what is not in torch's format
def test_a_disk_that_is_full_for_one_rank_is_an_error_on_all(tmp_path, rank):
    folder = tmp_path / "checkpoints"

    def run() -> Any:
        with made() as run:
            run.step()
            save(run, folder, 1)
            if run.context.rank == rank:
                dcp.Stream.write = full
            with pytest.raises(ResourceError) as error:
                save(run, folder, 2)
            return str(error.value)

    for said in on_ranks(2, run, tmp_path):
        assert said.startswith(
            f"error: checkpoint={folder}: it could not be written (No space left on device); "
        )
        assert said.endswith("make room, then resume: earlier checkpoints are intact")
    assert names(folder) == {"last.dcp", "step-00000001.dcp"}
    assert read(Checkpoints(folder, KEEP).newest())["step"] == 1


def full(stream: Any, data: Any) -> int:
    stream.error = OSError(errno.ENOSPC, "No space left on device")
    raise stream.error


def test_a_rank_that_dies_while_it_writes_leaves_the_checkpoint_before(tmp_path):
    folder = tmp_path / "checkpoints"

    def run() -> Any:
        with made() as run:
            run.step()
            save(run, folder, 1)
            if run.context.rank == 1:
                torch.save(None, tmp_path / "rank1")
                dcp.Stream.write = lambda *_: os._exit(0)
            try:
                save(run, folder, 2)
            except RuntimeError as error:
                torch.save(str(error), tmp_path / "rank0")
            os._exit(0)

    assert "Connection" in on_ranks(2, run, tmp_path)[0]
    assert names(folder) == {"last.dcp", "step-00000001.dcp", ".new.dcp"}
    checkpoints = Checkpoints(folder, KEEP)
    assert read(checkpoints.newest())["step"] == 1
    checkpoints.begin()
    assert not (folder / ".new.dcp").exists()


def test_ranks_whose_hosts_share_no_files_are_told_so(tmp_path):
    def run() -> Any:
        with made() as run:
            run.step()
            with pytest.raises(ResourceError, match="a file system that all hosts share") as error:
                save(run, tmp_path / f"host{run.context.rank}", 1)
            return "\n" in str(error.value)

    assert on_ranks(2, run, tmp_path) == [False, False]
