"""Checkpoints in the format of torch.distributed.checkpoint: `.dcp` folders.

All processes of a run write one together, each its own parts; what is no tensor is in a file of
rank 0.
"""

from __future__ import annotations

import errno
import io
import math
import operator
import os
import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeVar, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import metadata as kinds
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.tensor import DTensor

from ninefold.checkpoint import manifest
from ninefold.checkpoint.hashing import Hashing, Listing, digest, digest_of, listing, read_back
from ninefold.checkpoint.loading import require_bounded
from ninefold.checkpoint.manifest import Entry
from ninefold.checkpoint.writer import Writer
from ninefold.engine.state import mapped
from ninefold.errors import CheckpointError
from ninefold.extensions import SHARDED
from ninefold.files import opener, require_stored, sync

OUTLINE = "content.pt"  # of rank 0: the content, with its tensors on the meta device
SHARD = re.compile(r"__\d+_\d+\.distcp")  # a file of torch's with parts of tensors
METADATA = ".metadata"
T = TypeVar("T")


def write(folder: Path, content: Mapping[str, Any]) -> Listing:
    """Write `content` to the new `folder`, to disk; returns its files. Every process must call it.

    Raises OSError on all processes if one of them cannot write.
    """
    taken: dict[str, Tensor] = {}
    outline = outlined(content, taken)
    mine = {name: t for name, t in taken.items() if isinstance(t, DTensor) or rank() == 0}
    files = HashedFiles()
    on_rank_0(lambda: write_outline(folder, outline, files))
    writer = ShardWriter(folder, sync_files=True)
    writer.fs = files
    try:
        with suppress_no_group_warning():
            dcp.save(mine, storage_writer=writer, planner=DefaultSavePlanner(False))
    except CheckpointException as error:
        failures = [cause for cause, _ in error.failures.values()]
        together(files.require_written)
        raise next((f for f in failures if isinstance(f, OSError)), failures[0]) from None
    found = {name: file for part in together(files.read_back) for name, file in part.items()}
    on_rank_0(lambda: require_there(folder, found))
    return found


def write_outline(folder: Path, outline: Any, files: HashedFiles) -> None:
    folder.mkdir()
    with files.create_stream(folder / OUTLINE, "wb") as stream:
        stream.save(outline)
        stream.flush()
        os.fsync(stream.fileno())


def require_there(folder: Path, files: Listing) -> None:
    """Raise OSError unless rank 0 sees in `folder` what the processes wrote; sync the folder."""
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    if sizes != {name: file["size"] for name, file in files.items()}:
        raise OSError(
            errno.EXDEV,
            "not all that the processes wrote is in one folder: sharded checkpoints need a file "
            "system that all hosts share, parallel.checkpoint=whole does not",
        )
    sync(folder)


class ShardWriter(dcp.FileSystemWriter):
    """torch's, without the path and the random number that it puts into the metadata."""

    def storage_meta(self) -> None:
        return None


class HashedFiles(FileSystem):
    """Files as torch writes them here, with the sha256 of what was to be written."""

    def __init__(self) -> None:
        self._written: dict[Path, Hashing] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            file = Stream(cast(BinaryIO, stream))
            self._written[Path(path)] = file
            yield file

    def rename(self, path: Any, new_path: Any) -> None:
        super().rename(path, new_path)
        self._written[Path(new_path)] = self._written.pop(Path(path))

    def require_written(self) -> None:
        """Raise the system's error: torch reports a failed write in words of its own."""
        for file in self._written.values():
            if file.error is not None:
                raise file.error

    def read_back(self) -> Listing:
        """The files of this process, read. Raises OSError if one is not what was written."""
        return {path.name: read_back(path, file) for path, file in self._written.items()}


class Stream(Hashing):
    """What torch needs of a file besides `write`."""

    def tell(self) -> int:
        return self.written

    def fileno(self) -> int:
        assert self._file is not None
        return self._file.fileno()

    def close(self) -> None:
        """Nothing: the one who opened it closes it."""


class ShardedWriter(Writer):
    """Writes sharded checkpoints. Every process calls each method; training waits for a save.

    What goes wrong on one process is an error on all of them.
    """

    spread: ClassVar[bool] = True

    def save(self, content: Mapping[str, Any], best: bool) -> None:
        """Write `content`, whose DTensors are spread; of other tensors those of rank 0 are taken.

        See `Checkpoints.save`.
        """
        self.wait()
        new = self.checkpoints.folder / f".new{SHARDED}"
        try:
            on_rank_0(self.checkpoints.begin)
            files = write(new, content)
            size = sum(file["size"] for file in files.values())
            entry: Entry = {"sha256": digest_of(files), "size": size, "step": content["step"]}
            entry["files"] = files
            on_rank_0(lambda: self.checkpoints.take(new, entry, best))
        except OSError as error:
            self._error = self.checkpoints.refused(error, bytes_of(content))


# Reading


def read(folder: Path, field: str) -> dict[str, Any]:
    """The content of a folder that the manifest beside it lists, with whole tensors on the CPU.

    It may come from a stranger: nothing in it is run. Raises CheckpointError.
    """
    require_verified(folder, field)
    try:
        with open(folder / OUTLINE, "rb", opener=opener) as file:
            require_stored(file)
            content = torch.load(file, map_location="cpu", weights_only=True)
        require_bounded(content, (folder / OUTLINE).stat().st_size)
        wanted: dict[str, Tensor] = {}
        outlined(content, wanted)
        reader = Reader(folder)
        require_same(reader.read_metadata().state_dict_metadata, wanted, folder)
        tensors = {name: torch.empty_like(meta, device="cpu") for name, meta in wanted.items()}
        with suppress_no_group_warning():
            planner = DefaultLoadPlanner(False, False)
            dcp.load(tensors, storage_reader=reader, planner=planner, no_dist=True)
    except (Exception, CheckpointException) as error:
        cause: BaseException = error
        if isinstance(error, CheckpointException):  # of each rank what it raised
            cause = next((found for found, _ in error.failures.values()), error)
        raise CheckpointError(
            field, folder, "it cannot be read", str(cause).partition("\n")[0] or "it is damaged",
            "only tensors and plain containers are loaded",
        ) from error  # fmt: skip
    found: dict[str, Any] = mapped(content, lambda name, meta: tensors[name])
    return found


def require_verified(folder: Path, field: str) -> None:
    """Raise CheckpointError unless the manifest beside `folder` lists it with what is in it."""
    listed: manifest.Files = {}
    with suppress(OSError):
        listed = manifest.read(folder.parent)
    if folder.name not in listed:
        allowed = f"no {manifest.FILE} next to it lists this folder"
        do = "use it where its run wrote it"
        raise CheckpointError(field, folder, "it cannot be verified", allowed, do)
    if digest(folder) not in manifest.sums(listed, folder.name):
        wrong = difference(listed[folder.name][0].get("files", {}), folder)
        raise CheckpointError(
            field, folder, "it is damaged", wrong, "use another checkpoint of the folder"
        )


def difference(files: Mapping[str, Any], folder: Path) -> str:
    """What is wrong with the first of the listed `files` that differs in `folder`."""
    try:
        there = listing(folder)
    except OSError as error:
        return error.strerror or str(error)
    for name in sorted({*files, *there}):
        if name not in there:
            return f"{name} in it is missing"
        if name not in files:
            return f"{name} in it is not listed in the manifest"
        if files[name] != there[name]:
            return f"the sha256 of {name} in it is not the one in the manifest"
    return "the manifest lists other files"


def require_same(told: Mapping[str, Any], wanted: Mapping[str, Tensor], folder: Path) -> None:
    """Raise ValueError unless `told`, torch's metadata, is of the tensors that are `wanted`.

    They may take no more memory than their files: a few bytes can claim any size.
    """
    for name in sorted({*told, *wanted}):
        found, meta = told.get(name), wanted.get(name)
        if (
            meta is None
            or not isinstance(found, kinds.TensorStorageMetadata)
            or (found.size, found.properties.dtype) != (meta.shape, meta.dtype)
        ):
            raise ValueError(f"{OUTLINE} and {METADATA} in it do not agree on {name}")
    size = sum(path.stat().st_size for path in folder.iterdir())
    if bytes_of(wanted) > size:
        raise ValueError(f"its tensors have {bytes_of(wanted):,} bytes, its files {size:,}")


class Reader(dcp.FileSystemReader):
    """torch's, but it unpickles nothing but what describes, and no tensor larger than its file."""

    def read_metadata(self, *arguments: Any, **options: Any) -> kinds.Metadata:
        with (Path(self.path) / METADATA).open("rb") as file:
            found = Description(file).load()
        if not isinstance(found, kinds.Metadata):
            raise ValueError(f"{METADATA} in it holds a {type(found).__name__}")
        for info in found.storage_data.values():
            if not SHARD.fullmatch(info.relative_path) or info.transform_descriptors:
                raise ValueError(f"{METADATA} in it refers to {info.relative_path}")
        found.storage_meta = kinds.StorageMeta()
        return found

    def _slice_file(self, file: Any, sinfo: Any) -> Any:
        part = io.BytesIO(super()._slice_file(file, sinfo).read())  # torch's cannot seek its end
        require_stored(part)
        return part


class Description(pickle.Unpickler):
    """Makes the classes of torch's metadata, which hold names and numbers, and no other."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in DESCRIBING:
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if (module, name) == ("builtins", "getattr"):  # of an enum, from Python 3.11.0 to 3.11.3
            return operator.getitem  # its members alone: no attribute of anything
        raise pickle.UnpicklingError(f"{METADATA} in it holds a {module}.{name}")


DESCRIBING = {
    *(
        (kinds.__name__, name)
        for name in (
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
}


# The parts of a content


def outlined(tree: Any, taken: dict[str, Tensor]) -> Any:
    """`tree` with its tensors on the meta device, as whole ones; they are put into `taken`."""

    def take(name: str, tensor: Tensor) -> Tensor:
        taken[name] = tensor
        if isinstance(tensor, DTensor):
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        return torch.empty_like(tensor, device="meta")

    return mapped(tree, take)


def bytes_of(tree: Any) -> int:
    """Bytes of the tensors in `tree`, whole."""
    found: dict[str, Tensor] = {}
    outlined(tree, found)
    return sum(math.prod(t.shape) * t.element_size() for t in found.values())


# The processes


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def on_rank_0(do: Callable[[], object]) -> None:
    """Have rank 0 `do` it. Raises on all processes what it raised."""
    together(do if rank() == 0 else lambda: None)


def together(do: Callable[[], T]) -> list[T]:
    """What `do` returned on each process. Raises on all of them what it raised on one."""
    mine: T | Exception
    try:
        mine = do()
    except Exception as error:
        mine = error
    every: list[Any] = [mine]
    if dist.is_initialized():
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, mine)
    for found in every:
        if isinstance(found, Exception):
            raise found
    return every


@contextmanager
def suppress_no_group_warning() -> Iterator[None]:
    """Without torch's warning that a process without a group saves and loads alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
