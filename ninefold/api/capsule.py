"""A file with Python objects of one process for others: a model, data, a loss, of any class.

What is defined in `__main__`, a notebook's cells or a script, goes by value (cloudpickle), modules
that can be imported go by name. The memory of arrays and tensors lies in the file as it is, and
each reader maps it: all processes of a machine share these pages.

A pickle runs code when it is read. So a file is only opened if it is the one that the configuration
names, by its sha256, and if it belongs to this user and nobody else can write to it.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from ninefold.errors import ConfigError, DataError, Failure, located, memory_failure
from ninefold.files import LARGEST_JSON, opener

if TYPE_CHECKING:  # the launcher reads a dataset of arrays without importing it
    from torch import TypedStorage

MAGIC = b"ninefold objects 1\n"
ALIGNED = 64  # bytes, as torch aligns its own memory
PAGE = 4096


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles tensors on the CPU so that their memory goes out of band, as that of arrays does."""

    def __init__(self, file: io.BytesIO, keep: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, protocol=5, buffer_callback=keep.append)
        self._arrays: dict[int, np.ndarray[Any, Any]] = {}  # by address: views share their memory

    def reducer_override(self, obj: Any) -> Any:
        """Pickle the memory of a tensor as an array of bytes, each memory once."""
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.storage.TypedStorage:
            memory = obj._untyped_storage
            if memory.device.type == "cpu" and memory.nbytes():
                array = self._arrays.get(memory.data_ptr())
                if array is None:
                    whole = torch.empty(0, dtype=torch.uint8).set_(memory)
                    array = self._arrays[memory.data_ptr()] = whole.numpy()
                return _storage, (array, str(obj.dtype).removeprefix("torch."))
        return super().reducer_override(obj)


def _storage(array: np.ndarray[Any, Any], dtype: str) -> TypedStorage:
    """Memory of a tensor, mapped from the file."""
    import torch

    memory = torch.from_numpy(array).untyped_storage()
    return torch.storage.TypedStorage(
        wrap_storage=memory, dtype=getattr(torch, dtype), _internal=True
    )


def write(path: Path, parts: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Write objects to a new file that only this user can read; return the sha256 of its index.

    parts: each is pickled by itself. names: what they are called in errors. Raises ConfigError for
    one that cannot be pickled, OSError.
    """
    index: dict[str, Any] = {"versions": versions(), "path": folders(), "parts": {}}
    blobs: list[memoryview] = []
    size = 0
    for part, value in parts.items():
        buffers: list[pickle.PickleBuffer] = []
        blob = _pickled(value, part, names[part], buffers)
        places = []
        for view in (memoryview(blob), *(buffer.raw() for buffer in buffers)):
            places.append([size, view.nbytes])
            blobs.append(view)
            size += -(-view.nbytes // ALIGNED) * ALIGNED
        index["parts"][part] = {"sha256": hashlib.sha256(blob).hexdigest(), "places": places}
    digest = hashlib.sha256()
    for block in _blocks(blobs):
        digest.update(block)
    index["sha256"] = digest.hexdigest()
    text = json.dumps(index).encode()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(path.parent, 0o700)
    with open(path, "xb", opener=lambda name, flags: opener(name, flags, 0o600)) as file:
        file.write(MAGIC + len(text).to_bytes(8, "little") + text)
        file.write(bytes(-file.tell() % PAGE))
        for block in _blocks(blobs):
            file.write(block)
    return hashlib.sha256(text).hexdigest()


def _blocks(blobs: list[memoryview]) -> Iterator[memoryview | bytes]:
    """What is written one after the other: each blob begins at a multiple of ALIGNED."""
    for view in blobs:
        yield view
        yield bytes(-view.nbytes % ALIGNED)


def _pickled(value: Any, part: str, name: str, buffers: list[pickle.PickleBuffer]) -> bytes:
    file = io.BytesIO()
    try:
        Pickler(file, buffers).dump(value)
    except Exception as error:
        if (exhausted := memory_failure(error, f"{part} was being copied")) is not None:
            raise exhausted from error
        raise ConfigError(
            part,
            name,
            f"it cannot be copied to a process ({type(error).__name__}: {error}); files, locks, "
            "generators and connections cannot; give a function that makes it in each process",
        ) from error
    return file.getvalue()


def versions() -> dict[str, str]:
    """What a file must have been written with to be read here."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return {"Python": python, "cloudpickle": cloudpickle.__version__}


def folders() -> list[str]:
    """The folders of sys.path, absolute: modules that go by name are found there."""
    found = (os.path.abspath(folder) for folder in sys.path)
    return [folder for folder in dict.fromkeys(found) if os.path.isdir(folder)]


class Capsule:
    """An open file of objects, checked to be the one that is meant.

    path: of the file. sha256: of its index, as the configuration has it. Raises DataError.
    """

    def __init__(self, path: str, sha256: str) -> None:
        self._path = path
        try:
            self._memory, self._start, index = self._opened(path)
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else None
            raise self._wrong(said or str(error)) from error
        if hashlib.sha256(index).hexdigest() != sha256:
            raise self._wrong("it is not the file that was written for this configuration")
        self._index = json.loads(index)
        if (written := self._index["versions"]) != (here := versions()):
            raise self._wrong(f"it was written with {_said(written)}, and this is {_said(here)}")

    @staticmethod
    def _opened(path: str) -> tuple[mmap.mmap, int, bytes]:
        """The mapped file, where its data begins, and its index."""
        with open(path, "rb", opener=_no_link) as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid():
                raise ValueError("it belongs to somebody else")
            if found.st_mode & 0o022:
                raise ValueError("others can write to it")
            head = file.read(len(MAGIC) + 8)
            size = int.from_bytes(head[len(MAGIC) :], "little")
            if not head.startswith(MAGIC) or size > LARGEST_JSON:
                raise ValueError("it is no file of objects")
            index = file.read(size)
            start = -(-file.tell() // PAGE) * PAGE
            # What a process writes there is its own (MAP_PRIVATE).
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), start, index

    def verify(self) -> None:
        """Read all of the file and compare its sha256, once for all processes. Raises DataError."""
        data = memoryview(self._memory)[self._start :]
        if hashlib.sha256(data).hexdigest() != self._index["sha256"]:
            raise self._wrong("it is damaged")

    def load(self, part: str) -> Any:
        """One of the objects, built anew. Raises Failure."""
        found = self._index["parts"][part]
        memory = memoryview(self._memory)
        blob, *buffers = (
            memory[self._start + place : self._start + place + size]
            for place, size in found["places"]
        )
        if hashlib.sha256(blob).hexdigest() != found["sha256"]:
            raise self._wrong("it is damaged")
        sys.path += [folder for folder in self._index["path"] if folder not in sys.path]
        try:
            return pickle.loads(blob, buffers=buffers)
        except Failure:
            raise
        except Exception as error:
            if (exhausted := memory_failure(error, f"{part} was being read")) is not None:
                raise exhausted from error
            said = located(error, f"{type(error).__name__}: {error}")
            raise ConfigError(
                part,
                self._path,
                f"it cannot be built again in another process; {said}; modules are imported there "
                "as files: see that these have what the notebook has",
            ) from error

    def _wrong(self, what: str) -> DataError:
        return DataError(
            "objects",
            self._path,
            f"it is not read; {what}; objects of a comparison are read by its own user, as they "
            "were written: compare again",
        )


def load(file: str, sha256: str, part: str) -> Any:
    """One of the objects in `file`, built anew. Raises Failure."""
    return Capsule(file, sha256).load(part)


def _no_link(path: str, flags: int) -> int:
    return opener(path, flags | os.O_NOFOLLOW)


def _said(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())
