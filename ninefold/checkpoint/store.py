"""Checkpoint files that survive a crash and are verified on loading."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ninefold.checkpoint import manifest, tensors
from ninefold.checkpoint.manifest import FORMAT, Entry, Files
from ninefold.errors import CheckpointError, ResourceError
from ninefold.files import sync_folder

INODES = 6  # that a save takes where links count: folder, manifest, file, and three names
log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints folder of a run: last.pt, best.pt, and the last few step-N.pt.

    A checkpoint is written to a temporary file, synced, read back, listed in the manifest and only
    then linked to its names; old manifest entries and surplus step files are removed last. Whenever
    the process dies, the file under each name is one whose sha256 the manifest lists. The names
    given in one save are hard links to one file.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def save(self, content: Mapping[str, Any], best: bool) -> None:
        """Write `content` as last.pt and as step-N.pt, and as best.pt if it is the `best`.

        Raises ResourceError if it cannot be written; earlier checkpoints stay.
        """
        new = self.folder / ".new.pt"
        step = f"step-{content['step']:08d}.pt"
        names = ["last.pt", step, *(["best.pt"] if best else [])]
        try:
            if not self.folder.is_dir():
                self.folder.mkdir()
                sync_folder(self.folder.parent)
            self._sweep()
            entry = _write(new, content)
            there = {path.name for path in self.folder.iterdir()}
            # A writer that died may have listed a step that it never linked: it is not kept.
            files = {name: entries for name, entries in self.manifest().items() if name in there}
            listed = {name: [entry, *files.get(name, [])] for name in names}
            manifest.write(self.folder, files | listed)
            for name in names:
                _link(new, self.folder / name)
            sync_folder(self.folder)
            new.unlink()
            files |= {name: [entry] for name in names}
            for name in self._too_many(files, now=step):
                (self.folder / name).unlink(missing_ok=True)
                del files[name]
            manifest.write(self.folder, files)
        except OSError as error:
            with suppress(OSError):
                self._sweep()
            raise self._refused(error, content) from error

    def _sweep(self) -> None:
        """Remove the temporary files of a writer that died."""
        for path in self.folder.glob(".*.pt*"):
            path.unlink()

    def _too_many(self, files: Files, now: str) -> list[str]:
        """The step-N.pt to delete: all but the last `keep`, and those of steps after `now`."""
        steps = sorted((name for name in files if name.startswith("step-")), key=_by_number)
        past = [name for name in steps if _by_number(name) <= _by_number(now)]
        return [name for name in steps if name not in past[-self._keep :]]

    def manifest(self) -> Files:
        """What the folder's manifest lists. Raises OSError if it is there but cannot be read."""
        return manifest.read(self.folder)

    def newest(self) -> Path:
        """The newest checkpoint whose sha256 matches the manifest; warns of each that does not.

        Raises CheckpointError if there is none.
        """
        files: Files = {}
        with suppress(OSError):
            files = self.manifest()
        there = ", ".join(sorted(path.name for path in self.folder.glob("[!.]*.pt"))) or "none"
        if not files and there != "none":
            raise CheckpointError(
                "resume", self.folder.parent, f"{manifest.FILE} is missing, damaged or of a newer "
                "format version, and without it nothing can be verified", f"found {there}",
                f"put {self.folder / manifest.FILE} back or start the run afresh in a new folder",
            )  # fmt: skip
        digests: dict[object, str | None] = {}
        for name, sha256 in manifest.newest_first(files):
            path = self.folder / name
            file = _identity(path)
            if file not in digests:
                digests[file] = _digest(path)
                if digests[file] not in manifest.sums(files, name):
                    line = f"{path} is missing or damaged; trying the checkpoint before it"
                    log.warning(line)
                    print(f"warning: {line}", file=sys.stderr, flush=True)
            if digests[file] == sha256:
                return path
        raise CheckpointError(
            "resume", self.folder.parent, "no checkpoint in it can be used", f"found {there}",
            "start the run afresh in a new folder",
        )  # fmt: skip

    def verifies(self, path: Path) -> bool:
        """Whether the sha256 of the file is one that the manifest lists under its name."""
        return _digest(path) in manifest.sums(self.manifest(), path.name)

    def _refused(self, error: OSError, content: Mapping[str, Any]) -> ResourceError:
        """The error for a checkpoint that could not be written, with the space needed and free."""
        size = _Hashing(None)
        torch.save(dict(content), size)  # type: ignore[arg-type]
        mount = Path(os.path.realpath(self.folder))
        while not os.path.ismount(mount) and mount != mount.parent:
            mount = mount.parent
        needed, free = _amount(size.written), "an unknown amount"
        with suppress(OSError):
            room = os.statvfs(mount)
            free = _amount(room.f_bavail * room.f_frsize)
            if room.f_files and room.f_favail < INODES:
                needed, free = f"{needed} and {INODES} inodes", f"{free} and {room.f_favail} inodes"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        earlier = os.path.exists(self.folder / "last.pt")
        return ResourceError(
            "checkpoint", self.folder, f"it could not be written ({error.strerror or error})",
            f"{needed} needed, {free} free on {mount}",
            ("make room" if full else "see that it can be written to") + ", then "
            + ("resume: earlier checkpoints are intact" if earlier else "start again"),
        )  # fmt: skip


def _by_number(name: str) -> tuple[int, str]:
    """A key that sorts step-N.pt by N, which has eight digits or more."""
    return len(name), name


def _amount(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size:,} bytes"


def _write(path: Path, content: Mapping[str, Any]) -> Entry:
    """Save `content` to `path` and to disk; returns its entry. Raises OSError."""
    with path.open("xb") as file:  # a file left there may be a checkpoint's other name
        hashing = _Hashing(file)
        try:
            torch.save(dict(content), hashing)  # type: ignore[arg-type]
        except RuntimeError:
            # torch reports a failed write in words of its own, without the system's reason.
            if hashing.error is not None:
                raise hashing.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
    digest = hashing.sha256.hexdigest()
    if _sha256(path) != digest:
        raise OSError(errno.EIO, "what was read back differs from what was written")
    return {"sha256": digest, "size": hashing.written, "step": content["step"]}


class _Hashing:
    """A binary file that hashes what is written and remembers why a write failed; None measures."""

    def __init__(self, file: BinaryIO | None) -> None:
        self.sha256 = hashlib.sha256()
        self.written = 0
        self.error: OSError | None = None
        self._file = file

    def write(self, data: bytes) -> int:
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
                raise
            self.sha256.update(data)
        self.written += len(data)
        return len(data)

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _digest(path: Path) -> str | None:
    """The sha256 of a file, or None if there is none that can be read."""
    try:
        return _sha256(path) if path.is_file() else None
    except OSError:
        return None


def _identity(path: Path) -> object:
    """What the names of one file have in common."""
    try:
        found = path.stat()
    except OSError:
        return path
    return found.st_dev, found.st_ino


def _link(source: Path, target: Path) -> None:
    """Give `source`'s content the name `target`, atomically and without a second copy."""
    temporary = target.with_name(f".{target.name}.link")
    os.link(source, temporary)
    os.replace(temporary, target)


def _damaged_part(path: Path) -> str | None:
    """The name of a part of a checkpoint that does not match its own checksum, if one does not.

    A checkpoint is a zip archive, whose checksums torch writes and does not look at.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError):
        return None  # it is another kind of file, or so damaged that torch will tell


def _reason(error: Exception) -> str:
    """Why torch could not read a file, without its advice to run what code it holds."""
    text = str(error)
    if found := re.search(r"Unsupported global: GLOBAL (\S+)", text):
        return f"it holds a {found[1]}"
    said = text.partition("\n")[0]
    return said if said and "weights_only" not in said else "it is no checkpoint, or a damaged one"


def read(path: Path, field: str = "ckpt") -> dict[str, Any]:
    """The dictionary in a checkpoint file, tensors on the CPU; never runs code from it.

    Raises CheckpointError if it is not a dictionary of tensors and plain containers, or is
    listed in a manifest beside it with another content.
    """
    listed: Files = {}
    with suppress(OSError):
        listed = manifest.read(path.parent)
    if path.name in listed and _digest(path) not in manifest.sums(listed, path.name):
        raise CheckpointError(
            field, path, "it is damaged", "its sha256 is not the one in the manifest",
            "use another file of the folder",
        )  # fmt: skip
    if path.suffix == tensors.SUFFIX:
        return dict(tensors.read(path, field))
    if path.name not in listed and (part := _damaged_part(path)) is not None:
        raise CheckpointError(
            field, path, "it is damaged", f"the checksum of {part} in it is another",
            "fetch or copy the file again",
        )  # fmt: skip
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a damaged file is reported once, below
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load fails in at least five types
        raise CheckpointError(
            field, path, "it cannot be read", _reason(error),
            "only tensors and plain containers are loaded",
        ) from error  # fmt: skip
    if not isinstance(content, dict):
        raise CheckpointError(
            field, path, f"it holds a {type(content).__name__}", "a dictionary is expected",
            "save model.state_dict()",
        )  # fmt: skip
    found = content.get("format")  # a foreign file's need not be a number
    if isinstance(found, int) and found > FORMAT:
        raise CheckpointError(
            field, path, f"it is of a newer format version, {found}",
            f"this one reads up to {FORMAT}", "use the version of ninefold that wrote it",
        )  # fmt: skip
    return content
