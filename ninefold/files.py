"""Open, read and write files of folders that anybody may have made; untrusted YAML, dotted keys."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
import struct
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ninefold.tree import each, is_deeper

LARGEST_YAML, DEEPEST_YAML = 100_000, 50  # characters, and levels: a job has 3,000 and 4
# Bytes, and levels: a study of 10,000 runs has a sweep.json of 1 MB, and no file of ours 10 levels.
LARGEST_JSON, DEEPEST_JSON = 1 << 24, 50
LARGEST_TEXT = 1 << 22  # bytes of any other small text: 40 times the largest YAML
BLOCK = 1 << 20  # bytes that are read at a time
KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


class TooLarge(OSError, ValueError):
    """A file is larger than any valid file of its kind can be."""


def opener(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """An opener for open(): opens regular files only, and follows no symbolic link to write.

    A folder may come from anybody: a symbolic link in it could lead to a file of somebody else's,
    opening a FIFO could block for ever, and a device has no end. Raises OSError for these.
    """
    writes = flags & os.O_ACCMODE != os.O_RDONLY
    try:
        # Before it is opened, as opening a device may do something.
        require_regular(os.lstat(path) if writes else os.stat(path), path)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (os.O_NOFOLLOW if writes else 0)
    descriptor = os.open(path, flags, mode)
    try:
        require_regular(os.fstat(descriptor), path)  # it may have been replaced meanwhile
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def require_regular(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Raise OSError unless `found`, the status of `path`, is of a regular file."""
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "a device")
        raise OSError(errno.EINVAL, f"it is {kind}, a regular file is expected", os.fspath(path))


def read_bytes(path: str | os.PathLike[str], most: int = LARGEST_TEXT) -> bytes:
    """The whole of a regular file of at most `most` bytes. Raises OSError."""
    parts, size = [], 0
    with open(path, "rb", buffering=0, opener=opener) as file:
        require_small(path, os.fstat(file.fileno()).st_size, most)
        while part := file.read(BLOCK):
            parts.append(part)
            size += len(part)
            require_small(path, size, most)  # it may grow, or be made up by the system
    return b"".join(parts)


def require_small(path: str | os.PathLike[str], size: int, most: int) -> None:
    """Raise TooLarge if a file of `size` bytes has more than `most`."""
    if size > most:
        found = f"it has {size:,} bytes, at most {most:,} are read"
        raise TooLarge(errno.EFBIG, found, os.fspath(path))


def sha256_of(path: Path) -> str:
    """The SHA-256 of a regular file. Raises OSError."""
    with open(path, "rb", opener=opener) as file:
        digest = hashlib.sha256()
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def lines(path: str | os.PathLike[str], most: int) -> Iterator[bytes]:
    """The lines of a regular file of at most `most` bytes, one after another. Raises OSError."""
    with open(path, "rb", opener=opener) as file:
        require_small(path, os.fstat(file.fileno()).st_size, most)
        yield from file


def read_text(path: str | os.PathLike[str], most: int = LARGEST_TEXT) -> str:
    """The whole of a regular file in UTF-8. Raises OSError, ValueError."""
    return read_bytes(path, most).decode()


def read_json(
    path: str | os.PathLike[str], most: int = LARGEST_JSON, deepest: int = DEEPEST_JSON
) -> Any:
    """The JSON in a regular file. Raises OSError; ValueError if it is none or too deeply nested."""
    text = read_text(path, most)
    try:
        tree = json.loads(text)
        too_deep = is_deeper(tree, deepest)
    except RecursionError:
        too_deep = True
    if too_deep:
        raise ValueError(f"it is nested more than {deepest} deep")
    return tree


def require_stored(file: IO[bytes]) -> None:
    """Raise ValueError if a zip archive would take more memory than its file has bytes.

    torch.save compresses nothing; compressed, a few megabytes can hold gigabytes, and so they can
    if its parts overlap. A file that is no archive passes.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    archive = file.read(4) == b"PK\3\4"
    try:
        members = _members(file, size) if archive else []
    except (struct.error, zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise ValueError(f"its list of parts is damaged ({error})") from error
    finally:
        file.seek(0)
    if packed := [part.filename for part in members if part.compress_type != zipfile.ZIP_STORED]:
        raise ValueError(f"{packed[0]} in it is compressed, which torch.save never does")
    if (claimed := sum(part.file_size for part in members)) > size:
        raise ValueError(f"its parts have {claimed:,} bytes, the file {size:,}")


def _members(file: IO[bytes], size: int) -> list[zipfile.ZipInfo]:
    """The directory of a zip archive, which stands at the end of the file.

    torch looks for it at the offset that the archive states, Python's zipfile right before the end
    of the file. Raises BadZipFile if these are two places, as the two would read different lists.
    """

    def field(place: int, sign: bytes, layout: str) -> tuple[int, ...]:
        file.seek(max(place, 0))
        found = file.read(struct.calcsize(layout))
        return struct.unpack(layout, found) if found.startswith(sign) else ()

    place = size - 22
    end = field(place, b"PK\5\6", "<4s8xLLH")
    bare = end[3:] == (0,)  # no comment, behind which another list could be
    if found := field(place - 20, b"PK\6\7", "<4s4xQ4x"):  # of large archives, and torch's
        place -= 20 + 56
        end = field(place, b"PK\6\6", "<4s36xQQ") if found[1] == place else ()
    if not bare or not end or end[1] + end[2] != place:
        raise zipfile.BadZipFile("it is not at its end")
    with zipfile.ZipFile(file) as archive:
        return archive.infolist()


def write_text(path: Path, text: str) -> None:
    """Write a text in place: not atomic, so a reader may see a part of it. Raises OSError."""
    with open(path, "w", encoding="utf-8", newline="\n", opener=opener) as file:
        file.write(text)


def write_json(path: Path, content: Any) -> None:
    """Write `path` so that a reader finds the previous file or the whole new one."""
    text = json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False)
    write_durably(path, text.encode() + b"\n")


def stamp(seconds: float) -> str:
    """Format a time.time() as in the JSON files: ISO 8601, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def finite(tree: Any) -> Any:
    """`tree` with None for NaN and infinity, which JSON does not have."""
    return each(
        lambda leaf: None if isinstance(leaf, float) and not math.isfinite(leaf) else leaf, tree
    )


def write_durably(path: Path, data: bytes | memoryview) -> None:
    """Write `data` to `path` atomically, with fsync before the rename."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb", opener=opener) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except OSError:  # a part of it would take what room there is
            temporary.unlink(missing_ok=True)
            raise
    replace_durably(temporary, path)


def replace_durably(new: Path, path: Path) -> None:
    """Rename `new`, a file or folder that was synced, to `path`, with fsync after the rename."""
    os.replace(new, path)
    sync(path.parent)


def mount_of(path: Path) -> Path:
    """Where the file system begins that `path` is on, or would be on."""
    mount = Path(os.path.realpath(path))
    while not os.path.ismount(mount) and mount != mount.parent:
        mount = mount.parent
    return mount


def sync(path: Path) -> None:
    """fsync a file, or a folder, so that renames in it are durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def safe_loader() -> Any:
    """PyYAML's SafeLoader, the one in C where PyYAML was built with libyaml: ten times as fast."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def require_plain_yaml(text: str) -> None:
    """Raise ValueError if `text` is too long, nested too deeply or holds an alias.

    The text is scanned as a stream of events: a few lines of aliases can expand to gigabytes.
    Raises yaml.YAMLError if it is not YAML.
    """
    import yaml

    if len(text) > LARGEST_YAML:
        raise ValueError(f"it has {len(text)} characters, a job has at most {LARGEST_YAML}")
    depth = 0
    for event in yaml.parse(text, Loader=safe_loader()):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it holds a YAML alias, which a job has no use for")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_YAML:
            raise ValueError(f"it is nested more than {DEEPEST_YAML} deep")


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as a mapping of dotted keys; an empty mapping is a value."""
    return dict(_leaves(tree, prefix))


def _leaves(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, Mapping) or (prefix and not tree):
        yield prefix, tree
        return
    for key, value in tree.items():
        yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
