"""Files with Python objects of one process for others: a model, data, a loss, of any class.

What is defined in `__main__`, a notebook's cells or a script, goes by value (cloudpickle), modules
that can be imported go by name. Large arrays and the memory of large tensors are in a file beside,
which each reader maps: all processes of a machine share these pages.

A pickle runs code when it is read. So a file is only read if it is the one that the configuration
names, by its sha256, and if it belongs to this user and nobody else can write to it. The file of
arrays is data alone.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from ninefold.errors import ConfigError, DataError, Failure, error_text, located, memory_failure
from ninefold.files import opener

if TYPE_CHECKING:  # the launcher reads a dataset of arrays without importing it
    from torch import TypedStorage

STDLIB = os.path.abspath(sysconfig.get_path("stdlib"))
ARRAYS = "arrays.bin"  # the file of large arrays, beside that of objects
LARGE = 1 << 16  # bytes from which on an array is in that file
ALIGNED = 64  # bytes, as NumPy's own memory is
Array = np.ndarray[Any, Any]


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles objects into `file`, and the data of large arrays and tensors into the file `arrays`.

    places: offset and size, in bytes, of each buffer there, in the order in which they are loaded.
    unwritten: the error of a buffer that could not be written there, such as of a full disk.
    """

    def __init__(self, file: io.BytesIO, arrays: IO[bytes]) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._keep)
        self._arrays = arrays
        self.places: list[tuple[int, int]] = []
        self.unwritten: OSError | None = None
        # By address and size: views share their memory.
        self._memories: dict[tuple[int, int], Array] = {}

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether a buffer stays in the pickle: one of fewer than LARGE bytes does."""
        data = buffer.raw()
        if data.nbytes < LARGE:
            return True
        try:
            begins = -self._arrays.tell() % ALIGNED + self._arrays.tell()
            self._arrays.seek(begins)
            self._arrays.write(data)
        except OSError as error:
            self.unwritten = error
            raise
        self.places.append((begins, data.nbytes))
        return False

    def reducer_override(self, obj: Any) -> Any:
        """Pickle each memory of tensors once, and an array in a file as any other."""
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.storage.TypedStorage:
            memory = obj._untyped_storage
            if memory.device.type == "cpu" and memory.nbytes():
                key = memory.data_ptr(), memory.nbytes()
                array = self._memories.get(key)
                if array is None:
                    whole = torch.empty(0, dtype=torch.uint8).set_(memory)
                    array = self._memories[key] = whole.numpy()
                return _storage, (array, str(obj.dtype).removeprefix("torch."))
        if type(obj) is np.memmap and obj.flags.forc:
            return np.asarray(obj).__reduce_ex__(5)
        if type(obj) in (np.ndarray, np.memmap) and not obj.flags.forc:
            return np.ascontiguousarray(obj).__reduce_ex__(5)  # others have no buffer
        return super().reducer_override(obj)


def _storage(array: Array, dtype: str) -> TypedStorage:
    """Memory of a tensor."""
    import torch

    memory = torch.from_numpy(array).untyped_storage()
    return torch.storage.TypedStorage(
        wrap_storage=memory, dtype=getattr(torch, dtype), _internal=True
    )


def write(path: Path, parts: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Write objects to new files that only this user can read; return the sha256 of `path`.

    parts: each is pickled by itself. names: what they are called in errors. Raises ConfigError for
    one that cannot be pickled, OSError; the caller then removes what is written.
    """
    path = path.absolute()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(path.parent, 0o700)
    with open(path.with_name(ARRAYS), "xb", opener=private) as arrays:
        pickled = {part: _pickled(parts[part], part, names[part], arrays) for part in parts}
        size = arrays.tell()
    content = {"versions": versions(), "path": folders(), "parts": pickled, "arrays": size}
    data = pickle.dumps(content)
    with open(path, "xb", opener=private) as file:
        file.write(data)
    return hashlib.sha256(data).hexdigest()


def _pickled(
    value: Any, part: str, name: str, arrays: IO[bytes]
) -> tuple[bytes, list[tuple[int, int]]]:
    """A part as text, and the places of its arrays."""
    file = io.BytesIO()
    pickler = Pickler(file, arrays)
    try:
        pickler.dump(value)
    except Exception as error:
        if error is pickler.unwritten:
            raise
        if (exhausted := memory_failure(error, f"{part} was being copied")) is not None:
            raise exhausted from error
        wrong = f"it cannot be copied to a process ({error_text(error)})"
        allowed = "files, locks, generators and connections cannot"
        do = "give a function that makes it in each process"
        raise ConfigError(part, name, wrong, allowed, do) from error
    return file.getvalue(), pickler.places


def versions() -> dict[str, str]:
    """What a file must have been written with to be read here."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return {"Python": python, "cloudpickle": cloudpickle.__version__}


def folders() -> list[str]:
    """The folders of sys.path, absolute: modules that go by name are found there."""
    found = (os.path.abspath(folder) for folder in sys.path)
    return [folder for folder in dict.fromkeys(found) if os.path.isdir(folder)]


def load(file: str, sha256: str, part: str) -> Any:
    """One of the objects in `file`, built anew.

    sha256: of the file, as the configuration has it. Raises Failure.
    """
    try:
        data = read(file)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ValueError("it is not the file that was written for this configuration")
        content, arrays = pickle.loads(data), Path(file).with_name(ARRAYS)
        if (written := content["versions"]) != (here := versions()):
            raise ValueError(f"it was written with {_said(written)}, and this is {_said(here)}")
        if arrays.stat().st_size != content.get("arrays"):
            raise ValueError(f"{ARRAYS} beside it is damaged")
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else None
        do = "objects of a comparison are read by its own user, as they were written: compare again"
        raise DataError("objects", file, "it is not read", said or str(error), do) from error
    # The writer's own folders stay before installed packages, whose names their modules may have.
    known = content["path"]
    own = known[: known.index(STDLIB)] if STDLIB in known else []
    sys.path[:] = dict.fromkeys([*own, *sys.path, *known])
    try:
        text, places = content["parts"][part]
        memory = np.memmap(arrays, np.uint8, mode="c") if places else np.empty(0, np.uint8)
        return pickle.loads(text, buffers=[memory[at : at + size] for at, size in places])
    except Failure:
        raise
    except Exception as error:
        if (exhausted := memory_failure(error, f"{part} was being read")) is not None:
            raise exhausted from error
        wrong = "it cannot be built again in another process"
        do = "modules are imported there as files: see that these have what the notebook has"
        raise ConfigError(part, file, wrong, located(error), do) from error


def read(path: str) -> bytes:
    """The content of a file that nobody else can have written."""
    with open(path, "rb", opener=lambda name, flags: opener(name, flags | os.O_NOFOLLOW)) as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid():
            raise ValueError("it belongs to somebody else")
        if found.st_mode & 0o022:
            raise ValueError("others can write to it")
        return file.read()


def private(path: str, flags: int) -> int:
    """Open a file as only this user can read it."""
    return opener(path, flags, 0o600)


def _said(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())
